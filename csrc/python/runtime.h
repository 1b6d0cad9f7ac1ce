// What one process has: a driver with its reactor, the networks, an engine. Python objects share it; whichever goes
// last takes it down.
//
// Thread: any, without the GIL. Everything behind engine() is touched under lock() only.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"
#include "io/driver.h"
#include "io/inproc.h"
#include "io/socket.h"
#include "rpc/secure_network.h"

namespace moontide::python {

// Tells an event loop by a descriptor that operations are over.
class Notifier {
 public:
  Notifier();
  int fd() const { return fd_.get(); }
  void push(uint64_t token);
  std::vector<uint64_t> drain();

 private:
  io::Fd fd_;
  std::mutex mutex_;
  std::vector<uint64_t> tokens_;
};

struct Completion;

// Who may talk to this process, and whom it talks to. Each runtime counts on a copy of its own.
struct Access {
  std::shared_ptr<rpc::Security> security = std::make_shared<rpc::Security>();
  bool off_loopback = false;
};

class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  static Result<std::shared_ptr<Runtime>> create(engine::EngineOptions options, int64_t spin_ns, const Access& access);
  // Without an engine, for a process that moves no bytes (a master).
  static std::shared_ptr<Runtime> create_bare(int64_t spin_ns, const Access& access);
  ~Runtime();

  // CLOSED in a forked child and after close().
  Result<std::unique_lock<std::mutex>> lock();
  // As lock(), also after close(): to look at outcomes, which stay. CLOSED in a forked child.
  Result<std::unique_lock<std::mutex>> look();
  bool forked() const { return parts_->driver.forked(); }
  engine::Engine& engine() { return *engine_; }  // not of a bare one
  io::Reactor& reactor() { return parts_->driver.reactor(); }
  // To the pool's master, and where one of this process listens.
  io::Network& master_network() { return parts_->master_routed; }
  const rpc::Security& security() const { return *parts_->access.security; }

  // Under the lock: whether small messages that are sent outside of a turn wait for the next turn or let_go().
  void gather(bool on) { parts_->driver.reactor().gather(on); }
  void let_go() { parts_->driver.reactor().let_go(); }

  // Blocks until `ready` (under the lock), the timeout or a signal that Python wants to see. `far`: see Driver.
  bool wait(const std::function<bool()>& ready, std::optional<double> timeout_s, const std::function<bool()>& far = {});

  // What `ready` (under the lock) says; runs a turn of the reactor first where that would otherwise come later.
  bool poll(const std::function<bool()>& ready) { return parts_->driver.poll(ready); }

  // Runs the copies of `transfer` that need no peer, in this thread. True: it has succeeded.
  bool run_work(const engine::TransferRef& transfer);

  // Under the lock: keeps what lives on the engine until close(), which lets it go before the engine, last come first.
  void attach(std::shared_ptr<void> tenant) { parts_->tenants.push_back(std::move(tenant)); }
  void detach(const std::shared_ptr<void>& tenant) { std::erase(parts_->tenants, tenant); }

  // Ends the engine and the thread. Idempotent. Waits for peers that have leave to write regions of it, for so long as
  // it waits for progress; returns the regions that some of them may write even after that (stopped, not dead).
  std::vector<uint32_t> close();
  bool closed();

  // Under the lock: `completion` ends at the latest with close(), whoever awaits it.
  void watch(const std::shared_ptr<Completion>& completion);

 private:
  // On the heap, so that a forked child can leave it alone: it belongs to threads that do not exist there.
  struct Parts {
    Parts(int64_t spin_ns, const Access& granted)
        : access{std::make_shared<rpc::Security>(*granted.security), granted.off_loopback},
          driver(spin_ns),
          sockets(driver.reactor(), {.off_loopback = access.off_loopback}),
          inproc(driver.reactor()),
          engine_network(driver.reactor(), sockets, "engine", access.security),
          engine_routed(inproc, engine_network),
          master_network(driver.reactor(), sockets, "master", access.security),
          master_routed(inproc, master_network) {}
    Access access;
    io::Driver driver;
    io::SocketNetwork sockets;
    io::InprocNetwork inproc;
    rpc::SecureNetwork engine_network;
    io::RoutedNetwork engine_routed;
    rpc::SecureNetwork master_network;
    io::RoutedNetwork master_routed;
    std::vector<std::shared_ptr<void>> tenants;
    std::condition_variable copied;  // no copy is under way
  };
  Runtime(int64_t spin_ns, const Access& access) : parts_(std::make_unique<Parts>(spin_ns, access)) {}

  std::unique_ptr<Parts> parts_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<uint32_t> end_leaves();

  std::vector<std::weak_ptr<Completion>> watched_;
  size_t copies_ = 0;  // run by callers without the lock
  bool closing_ = false;
  bool closed_ = false;
};

// Something under way: Python waits for it, polls it or awaits it. Callbacks under the lock.
struct Completion {
  bool done = false;
  std::vector<std::pair<std::shared_ptr<Notifier>, uint64_t>> watchers;

  void finish() {
    done = true;
    for (auto& [notifier, token] : watchers) notifier->push(token);
    watchers.clear();
  }
  void watch(std::shared_ptr<Notifier> notifier, uint64_t token) {
    if (done) {
      notifier->push(token);
    } else {
      watchers.emplace_back(std::move(notifier), token);
    }
  }
};

// The same with a value.
template <class T>
struct Pending : Completion {
  std::optional<Result<T>> value;
  void set(Result<T> outcome) {
    if (done) return;
    value.emplace(std::move(outcome));
    finish();
  }
};

}  // namespace moontide::python
