// A batch under way: one result per item, one outcome, one quiet.
//
// Outcome (`done`): every item has its result, write-once, at the latest at the operation's deadline. Quiet: nothing
// touches the caller's memory any more; only then may it be given back. `on_done` runs once, `on_quiet` once after it,
// both in turns of the reactor, never inside the call that began the operation.
//
// Thread: the reactor's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/id.h"
#include "base/status.h"
#include "io/reactor.h"

namespace moontide::store {

struct OperationOptions {
  int64_t timeout_ns = 0;  // 0: the client's
  std::string trace = {};  // see engine::TransferOptions
  std::move_only_function<void()> on_done = {};
  std::move_only_function<void()> on_quiet = {};
};

class Operation : public std::enable_shared_from_this<Operation> {
 public:
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool done() const { return left_ == 0; }
  bool quiet() const { return done() && holds_ == 0; }
  // Per item, in order: the object's length, or what went wrong. Complete once done.
  const std::vector<Result<uint64_t>>& results() const { return results_; }
  // Of an item that was put: the object that it became.
  virtual Generation version(size_t item) const {
    (void)item;
    return {};
  }
  const std::string& trace() const { return options_.trace; }
  int64_t began_ns() const { return began_ns_; }

  // Items without a result get CANCELED.
  void cancel() { end(Error{Code::kCanceled, "canceled by the caller"}); }
  void end(const Error& cause);

 protected:
  Operation(io::Reactor& reactor, size_t items, OperationOptions options);

  // Starts the clock. A batch of nothing is done at once.
  void begin(int64_t timeout_ns);
  bool open(size_t item) const { return !settled_[item]; }
  // Write-once: later results of an item are ignored.
  void settle(size_t item, Result<uint64_t> result);
  // While held, the operation is not quiet.
  void hold() { ++holds_; }
  void release();
  int64_t deadline_ns() const { return deadline_ns_; }
  io::Reactor& reactor() { return reactor_; }
  std::optional<io::Timer>& retry_timer() { return retry_timer_; }

  // What an item that end() has to settle is told; an operation may know better than that time ran out.
  virtual Error why(size_t item, const Error& cause) const {
    (void)item;
    return cause;
  }
  // Once, when the outcome is there; items that end() had to settle are among `unfinished`.
  virtual void ended(const std::vector<size_t>& unfinished) = 0;

 private:
  void finish(const std::vector<size_t>& unfinished);
  void tell_quiet();

  io::Reactor& reactor_;
  OperationOptions options_;
  std::vector<Result<uint64_t>> results_;
  std::vector<bool> settled_;
  size_t left_;
  size_t holds_ = 0;
  bool quiet_told_ = false;
  int64_t began_ns_ = 0;
  int64_t deadline_ns_ = 0;
  std::optional<io::Timer> deadline_timer_;
  std::optional<io::Timer> retry_timer_;
};

using OperationRef = std::shared_ptr<Operation>;

}  // namespace moontide::store
