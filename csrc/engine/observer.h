// What an engine sees of itself: how long each stage of a slice takes, per path and peer; what failed, and of what;
// what is slow. Everything is bounded: peers beyond a number are folded into one record, oldest first; events that
// nobody takes are counted and dropped.
//
// Thread: under the engine's lock.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/histogram.h"
#include "base/id.h"
#include "base/status.h"
#include "io/reactor.h"

namespace moontide::engine {

// Whether a name may go into logs as it is: at most kTraceBytesMax characters from '!' to '~'.
inline constexpr size_t kTraceBytesMax = 64;
bool is_trace(std::string_view name);
// A name for what its maker numbers: 16 hexadecimal digits, unlike those of other makers.
std::string make_trace(const InstanceId& maker, uint64_t number);

// Where a slice is. kQueue: submitted, and no endpoint has it; kWire: posted to an endpoint that needs the peer;
// kCopy: being copied by a thread of this process; kFence: the transfer has its outcome, and the slice is not quiet.
enum class Stage : uint8_t { kQueue, kWire, kCopy, kFence };
std::string_view stage_name(Stage stage);

// One more than the largest code: indexes counts by cause.
inline constexpr size_t kCodes = static_cast<size_t>(Code::kInternal) + 1;
using CountByCode = std::array<uint64_t, kCodes>;
inline uint64_t& count_of(CountByCode& counts, Code code) {
  return counts[std::min(static_cast<size_t>(code), kCodes - 1)];
}

// What went between this engine and one peer over one path.
struct PathSeen {
  static constexpr size_t kTimed = 3;  // kQueue, kWire, kCopy

  std::string name;
  std::array<std::unique_ptr<Histogram>, kTimed> stages;  // nanoseconds per slice; null: never seen
  uint64_t bytes_read = 0, bytes_written = 0, slices = 0, retries = 0;
  CountByCode failures{};  // of slices

  Histogram& timed(Stage stage) {
    auto& histogram = stages[static_cast<size_t>(stage)];
    if (!histogram) histogram = std::make_unique<Histogram>();
    return *histogram;
  }
  void merge(const PathSeen& other);
};

struct PeerSeen {
  InstanceId id;  // empty: the record of those that were folded
  std::string address;
  uint64_t links = 0;          // opened so far
  uint64_t last_link = 0;      // sequence of the latest
  std::deque<PathSeen> paths;  // few: one per transport

  PathSeen& path(std::string_view name);
  void merge(const PeerSeen& other);
};

using PeerSeenRef = std::shared_ptr<PeerSeen>;

// Something that takes longer than it should, or took longer and is over.
struct SlowEvent {
  std::string kind = "transfer";  // or "pull" (for a peer), "put", "get"
  bool over = false;
  Code code = Code::kOk;  // of the outcome, once over
  uint64_t number = 0;    // of the transfer
  uint64_t key_hash = 0;  // of the first slow key of a store's operation
  std::string trace, peer, path, stage;
  int64_t age_ns = 0, idle_ns = 0;  // since it began, since it last moved
  uint64_t bytes_moved = 0, bytes_total = 0;
};

class Observer {
 public:
  static constexpr size_t kPeersMax = 64;
  static constexpr size_t kEventsMax = 256;
  static constexpr double kSteadyBytes = 64 << 20;  // a long transfer that does better is long, not slow

  explicit Observer(const io::Reactor& reactor) : reactor_(reactor) {}

  // The record for a new link to the peer; the link keeps it.
  PeerSeenRef peer(const InstanceId& id, const std::string& address);
  const std::map<InstanceId, PeerSeenRef>& peers() const { return peers_; }
  const PeerSeen& other() const { return *other_; }

  // A link is being opened to `address`; each is followed by connected().
  void connecting(const std::string& address) { connecting_[address] = reactor_.now_ns(); }
  void connected(const std::string& address, Code code);
  const std::map<std::string, int64_t>& connecting() const { return connecting_; }  // address → since when
  const Histogram& connect_ns() const { return connect_ns_; }
  const CountByCode& connect_failures() const { return connect_failures_; }

  void transfer_over(int64_t took_ns, Code code) {
    transfer_ns_.record(took_ns);
    if (code != Code::kOk) ++count_of(transfer_failures_, code);
  }
  const Histogram& transfer_ns() const { return transfer_ns_; }
  const CountByCode& transfer_failures() const { return transfer_failures_; }

  // What is slow by `slow_ns` becomes an event (0: nothing does); `wake` is called when there are new ones.
  void watch_slow(int64_t slow_ns, std::function<void()> wake);
  int64_t slow_ns() const { return slow_ns_; }
  bool is_slow(int64_t age_ns) const { return slow_ns_ > 0 && age_ns >= slow_ns_; }
  // Of what moves bytes: also that it stands still for so long, or has moved less than kSteadyBytes in each such time.
  bool is_slow(int64_t age_ns, int64_t idle_ns, uint64_t bytes_moved) const {
    if (!is_slow(age_ns)) return false;
    const double times = static_cast<double>(age_ns) / static_cast<double>(slow_ns_);
    return is_slow(idle_ns) || static_cast<double>(bytes_moved) < times * kSteadyBytes;
  }
  void report(SlowEvent event);
  uint64_t slow_count() const { return slow_count_; }  // reported so far, dropped ones included
  struct Events {
    std::vector<SlowEvent> events;
    uint64_t dropped = 0;
  };
  Events take_events();

 private:
  bool fold_one();

  const io::Reactor& reactor_;
  std::map<InstanceId, PeerSeenRef> peers_;
  PeerSeenRef other_ = std::make_shared<PeerSeen>();
  uint64_t next_link_ = 1;
  std::map<std::string, int64_t> connecting_;
  Histogram connect_ns_, transfer_ns_;
  CountByCode connect_failures_{}, transfer_failures_{};
  int64_t slow_ns_ = 0;
  std::function<void()> wake_;
  std::deque<SlowEvent> events_;
  uint64_t dropped_ = 0, slow_count_ = 0;
};

}  // namespace moontide::engine
