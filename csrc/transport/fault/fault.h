// Any transport, with failures. It refuses, delays, fails, stalls and drops by the throw of seeded dice, and never
// breaks the contract: what it does, the wrapped transport might do on a bad day. No configuration leads here: tests
// put it around the transports of an engine that they make.
#pragma once

#include <memory>
#include <mutex>

#include "base/random.h"
#include "transport/transport.h"

namespace moontide::transport {

// Each is "one slice in so many"; 0: none.
struct Faults {
  uint64_t refuse_one_in = 0;       // at the post, with `code`
  uint64_t fail_before_one_in = 0;  // in a later turn, with `code`, and no byte moved
  uint64_t fail_after_one_in = 0;   // with `code` after all bytes moved
  uint64_t delay_one_in = 0;        // completion told late, by up to `delay_most_ns`
  uint64_t stall_one_in = 0;        // moves and reports bytes, and is not told to be over before it is canceled
  uint64_t keep_one_in = 0;         // as stall, and is not over either when it is canceled: before the endpoint ends
  uint64_t drop_one_in = 0;         // the endpoint ends with all that is on it, and carries nothing any more
  int64_t delay_most_ns = 200 * kMillisecond;
  Code code = Code::kUnavailable;  // of refusals and failures
};

// The dice, and how often each fault struck. Shared by all endpoints of a test. Any thread.
class FaultDice {
 public:
  explicit FaultDice(uint64_t seed) : random_(seed) {}

  bool strikes(uint64_t one_in, uint64_t& count) {
    std::lock_guard lock(mutex_);
    if (one_in == 0 || random_.below(one_in) != 0) return false;
    ++count;
    return true;
  }
  int64_t below(int64_t bound) {
    std::lock_guard lock(mutex_);
    return static_cast<int64_t>(random_.below(static_cast<uint64_t>(bound)));
  }

  Faults faults;  // changed only while nothing is under way
  uint64_t refused = 0, failed_before = 0, failed_after = 0, delayed = 0, stalled = 0, kept = 0, dropped = 0;

 private:
  std::mutex mutex_;  // synchronous copies run in any thread
  SeededRandom random_;
};

class FaultTransport final : public Transport {
 public:
  FaultTransport(std::unique_ptr<Transport> inner, std::shared_ptr<FaultDice> dice)
      : inner_(std::move(inner)), dice_(std::move(dice)) {}

  std::string_view name() const override { return inner_->name(); }
  uint64_t max_region_bytes() const override { return inner_->max_region_bytes(); }
  Result<std::optional<Bytes>> attach(const memory::Region& region, uint64_t offset, uint64_t length) override {
    return inner_->attach(region, offset, length);
  }
  void detach(const memory::Region& region, uint64_t offset, const Bytes& key) override {
    inner_->detach(region, offset, key);
  }
  bool same_host_only() const override { return inner_->same_host_only(); }
  bool per_rail() const override { return inner_->per_rail(); }
  Result<std::shared_ptr<Endpoint>> connect(LinkContext& link, uint32_t rail) override;

 private:
  std::unique_ptr<Transport> inner_;
  std::shared_ptr<FaultDice> dice_;
};

}  // namespace moontide::transport
