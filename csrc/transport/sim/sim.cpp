#include "transport/sim/sim.h"

#include <algorithm>
#include <cstring>

#include "wire/codec.h"

namespace moontide::transport {
namespace {

constexpr int64_t kCutPollNs = 20 * kMillisecond;
constexpr int64_t kCutPatienceNs = 4 * kSecond;  // then the path has failed
constexpr int64_t kSpreadNs = 150 * kMicrosecond;

struct SimKey {
  uint64_t owner = 0;
  auto fields() { return std::tie(owner); }
};

// A copy that one access of the simulated hardware does.
struct Part {
  std::byte* to;
  uint64_t offset;
  uint64_t length;
};

// One posted slice. It belongs to the world, not to its poster: parts land until it is over.
struct Read {
  Slice* slice = nullptr;  // the poster's; looked at only while the endpoint still has this read
  uint64_t tag = 0;
  RemoteRegionRef remote;
  uint64_t owner = 0;
  size_t left = 0;
  size_t fails_at = SIZE_MAX;  // parts left when it fails
  int64_t held_since_ns = -1;
  bool canceled = false;
  bool fenced = false;  // no part lands any more
};
using ReadRef = std::shared_ptr<Read>;

class SimEndpoint final : public Endpoint, public std::enable_shared_from_this<SimEndpoint> {
 public:
  SimEndpoint(SimHub& hub, io::SimProcess& process) : hub_(hub), process_(process) {}
  ~SimEndpoint() override {
    for (auto& [tag, read] : reads_) read->fenced = true;
  }

  std::string_view name() const override { return "sim"; }
  void start(std::move_only_function<void(Result<>)> ready) override { ready({}); }
  bool reaches(const RemoteRegion& remote, Op op) const override {
    return op == Op::kRead && remote.key(name()) != nullptr;
  }
  size_t room(bool) const override {
    const size_t most = hub_.faults().outstanding_max;
    return reads_.size() < most ? most - reads_.size() : 0;
  }

  void post(Slice& slice) override {
    slice.endpoint = this;
    slice.tag = next_tag_++;
    auto key = wire::decode<SimKey>(*slice.remote->key(name()));
    if (!key) {
      slice.endpoint = nullptr;
      return slice.owner->completed(slice, fail(Code::kInvalid, "malformed key of region " + slice.remote->name));
    }
    auto read = std::make_shared<Read>();
    read->slice = &slice;
    read->tag = slice.tag;
    read->remote = slice.remote;
    read->owner = key->owner;
    reads_[slice.tag] = read;
    begin(read, divide(slice.pieces));
  }

  // Until the fence takes effect parts go on landing.
  void cancel(Slice& slice) override {
    const auto found = reads_.find(slice.tag);
    if (found == reads_.end() || found->second->canceled) return;
    ReadRef read = found->second;
    read->canceled = true;
    const uint64_t most = random().below(2) == 0 ? 2 * kSecond : kMillisecond;
    world().after(static_cast<int64_t>(random().below(most)), [self = weak_from_this(), read] {
      if (auto live = self.lock()) live->over(read, fail(Code::kCanceled, "canceled by the caller"));
    });
  }

  void close(const Error& cause) override {
    auto self = shared_from_this();
    auto reads = std::exchange(reads_, {});
    for (auto& [tag, read] : reads) read->fenced = true;
    for (auto& [tag, read] : reads) {
      read->slice->endpoint = nullptr;
      read->slice->owner->completed(*read->slice, std::unexpected(cause));
    }
  }

 private:
  io::SimWorld& world() { return process_.world(); }
  Random& random() { return process_.world().random(); }

  std::vector<Part> divide(std::span<const Piece> pieces) {
    std::vector<Part> parts;
    for (const Piece& piece : pieces) {
      for (uint64_t done = 0; done < piece.length;) {
        const uint64_t left = piece.length - done;
        const uint64_t length = random().below(3) == 0 ? left : 1 + random().below(left);
        parts.push_back({piece.local + done, piece.offset + done, length});
        done += length;
      }
    }
    for (size_t i = parts.size(); i > 1; --i) std::swap(parts[i - 1], parts[random().below(i)]);
    return parts;
  }

  void begin(const ReadRef& read, const std::vector<Part>& parts) {
    const SimReadFaults& faults = hub_.faults();
    int64_t at_ns = 2 * kMicrosecond + static_cast<int64_t>(random().below(20 * kMicrosecond));
    int64_t spread_ns = kSpreadNs;
    if (faults.late_one_in != 0 && random().below(faults.late_one_in) == 0) {
      at_ns += static_cast<int64_t>(random().below(static_cast<uint64_t>(faults.late_most_ns)));
      spread_ns = faults.late_most_ns;
    }
    if (faults.very_late_one_in != 0 && random().below(faults.very_late_one_in) == 0) {
      at_ns += static_cast<int64_t>(random().below(static_cast<uint64_t>(faults.very_late_most_ns)));
    }
    read->left = parts.size();
    if (faults.fail_one_in != 0 && random().below(faults.fail_one_in) == 0)
      read->fails_at = random().below(parts.size()) + 1;
    for (const Part& part : parts) {
      const int64_t when_ns = at_ns + static_cast<int64_t>(random().below(static_cast<uint64_t>(spread_ns)));
      world().after(when_ns, [self = weak_from_this(), read, part] {
        if (auto live = self.lock()) live->land(read, part);
      });
    }
  }

  void land(const ReadRef& read, const Part& part) {
    if (read->fenced) return;
    const SimHub::Owner* owner = hub_.find(read->owner);
    if (owner == nullptr) return over(read, fail(Code::kPeerLost, "the peer's memory is gone"));
    const std::string& there = owner->process->host();
    io::SimFabric& fabric = hub_.fabric();
    if (fabric.is_cut(process_.host(), there) || fabric.is_cut(there, process_.host())) return held_up(read, part);
    read->held_since_ns = -1;
    if (!owner->process->alive() && random().below(2) == 0) return over(read, fail(Code::kPeerLost, "the peer died"));
    auto region = owner->registry->check_remote(read->remote->id, read->remote->generation, part.offset, part.length,
                                                memory::kReadable);
    if (!region) return over(read, std::unexpected(region.error()));
    if (read->left == read->fails_at) return over(read, fail(Code::kUnavailable, "the path failed"));
    std::memcpy(part.to, (*region)->address + part.offset, part.length);
    world().note(part.length);
    if (--read->left == 0) return over(read, {}, part.length);
    process_.deliver([self = weak_from_this(), read, length = part.length] {
      auto live = self.lock();
      if (live && live->reads_.contains(read->tag)) read->slice->owner->progressed(*read->slice, length);
    });
  }

  void held_up(const ReadRef& read, const Part& part) {
    const int64_t now_ns = world().time_ns();
    if (read->held_since_ns < 0) read->held_since_ns = now_ns;
    if (now_ns - read->held_since_ns > kCutPatienceNs)
      return over(read, fail(Code::kUnavailable, "the peer is cut off"));
    world().after(kCutPollNs, [self = weak_from_this(), read, part] {
      if (auto live = self.lock()) live->land(read, part);
    });
  }

  // Nothing of it lands from here on; the poster hears of it in a turn of its own.
  void over(const ReadRef& read, Result<> outcome, uint64_t progress = 0) {
    if (std::exchange(read->fenced, true)) return;
    process_.deliver([self = weak_from_this(), read, progress, outcome = std::move(outcome)] {
      auto live = self.lock();
      if (!live || live->reads_.erase(read->tag) == 0) return;
      Slice& slice = *read->slice;
      if (progress > 0) slice.owner->progressed(slice, progress);
      slice.endpoint = nullptr;
      slice.owner->completed(slice, outcome);
    });
  }

  SimHub& hub_;
  io::SimProcess& process_;
  std::map<uint64_t, ReadRef> reads_;
  uint64_t next_tag_ = 1;
};

}  // namespace

Result<std::optional<Bytes>> SimTransport::attach(const memory::Region&, uint64_t, uint64_t) {
  return wire::encode(SimKey{number_});
}

Result<std::shared_ptr<Endpoint>> SimTransport::connect(LinkContext& link, uint32_t) {
  if (link.same_instance()) return fail(Code::kUnsupported, "its own process");
  return std::make_shared<SimEndpoint>(hub_, process_);
}

}  // namespace moontide::transport
