#include "transport/fault/fault.h"

#include <map>
#include <optional>
#include <unordered_map>

namespace moontide::transport {
namespace {

// Stands between an endpoint and the owners of its slices: it is the owner that the wrapped endpoint reports to.
class FaultEndpoint final : public Endpoint, private SliceOwner {
 public:
  FaultEndpoint(std::shared_ptr<Endpoint> inner, std::shared_ptr<FaultDice> dice, io::Reactor& reactor)
      : inner_(std::move(inner)), dice_(std::move(dice)), reactor_(reactor) {}

  std::string_view name() const override { return inner_->name(); }
  std::string_view transport() const override { return inner_->transport(); }
  bool synchronous() const override { return inner_->synchronous(); }
  void start(std::move_only_function<void(Result<>)> ready) override { inner_->start(std::move(ready)); }
  bool reaches(const RemoteRegion& remote, Op op) const override { return !dropped_ && inner_->reaches(remote, op); }

  Result<> copy(const RemoteRegion& remote, Op op, std::span<const Piece> pieces) override {
    const Faults& faults = dice_->faults;
    if (dice_->strikes(faults.fail_before_one_in, dice_->failed_before))
      return fail(faults.code, "fault before a copy");
    auto outcome = inner_->copy(remote, op, pieces);
    if (outcome && dice_->strikes(faults.fail_after_one_in, dice_->failed_after)) {
      return fail(faults.code, "fault after a copy");
    }
    return outcome;
  }

  size_t room(bool urgent) const override { return inner_->room(urgent); }

  void post(Slice& slice) override {
    const Faults& faults = dice_->faults;
    if (dropped_) return slice.owner->completed(slice, fail(Code::kUnavailable, "the endpoint was dropped"));
    if (dice_->strikes(faults.refuse_one_in, dice_->refused)) {
      return slice.owner->completed(slice, fail(faults.code, "fault: refused"));
    }
    Held& held = held_[&slice];
    held = {slice.owner, {}, false, false, false, next_++};
    if (dice_->strikes(faults.fail_before_one_in, dice_->failed_before)) {
      slice.endpoint = this;
      return tell_later(slice, fail(faults.code, "fault: failed before it began"), 0);
    }
    held.stays = dice_->strikes(faults.keep_one_in, dice_->kept);
    held.stalls = held.stays || dice_->strikes(faults.stall_one_in, dice_->stalled);
    held.inside = true;
    slice.owner = this;
    inner_->post(slice);  // may complete inside
    if (!closed_ && dice_->strikes(faults.drop_one_in, dice_->dropped)) drop_soon();
  }

  void cancel(Slice& slice) override {
    auto found = held_.find(&slice);
    if (found == held_.end() || found->second.stays) return;
    if (found->second.inside) {
      found->second.stalls = false;
      return inner_->cancel(slice);
    }
    const bool stalled = found->second.stalls;
    tell(slice, stalled ? fail(Code::kCanceled, "") : std::move(*found->second.outcome));
  }

  void reset(const Error& cause) override { inner_->reset(cause); }
  void revive(std::move_only_function<void(Result<>)> working) override {
    if (dropped_) return working(fail(Code::kUnavailable, "the endpoint was dropped"));
    inner_->revive(std::move(working));
  }

  void region_added(const memory::Region& region) override { inner_->region_added(region); }
  void region_gone(const RemoteRegion& remote) override { inner_->region_gone(remote); }
  void message(Bytes payload, std::vector<io::Fd> fds) override { inner_->message(std::move(payload), std::move(fds)); }
  void accepted(uint64_t stream_id, std::unique_ptr<io::Stream> stream) override {
    inner_->accepted(stream_id, std::move(stream));
  }
  void fence_stream(uint64_t stream_id) override { inner_->fence_stream(stream_id); }

  bool retire(const Error& cause) override {
    closed_ = true;
    const bool kept = inner_->retire(cause);
    tell_all(cause);
    return kept;
  }
  void close(const Error& cause) override {
    closed_ = true;
    inner_->close(cause);
    tell_all(cause);
  }

 private:
  struct Held {
    SliceOwner* owner = nullptr;
    std::optional<Result<>> outcome;  // there and not told
    bool inside = false;              // with the wrapped endpoint
    bool stalls = false;
    bool stays = false;   // whatever is canceled
    uint64_t number = 0;  // a slice may be posted again at the same address
  };

  // SliceOwner
  void progressed(Slice& slice, uint64_t bytes) override { held_.at(&slice).owner->progressed(slice, bytes); }
  void completed(Slice& slice, Result<> outcome) override {
    Held& held = held_.at(&slice);
    held.inside = false;
    slice.owner = held.owner;
    slice.endpoint = this;
    const Faults& faults = dice_->faults;
    if (dropping_ && !outcome && outcome.error().code == Code::kCanceled) {
      outcome = fail(Code::kUnavailable, "the endpoint was dropped");
    }
    if (closed_) return tell(slice, std::move(outcome));
    if (held.stalls) return held.outcome.emplace(std::move(outcome)), void();
    if (outcome && dice_->strikes(faults.fail_after_one_in, dice_->failed_after)) {
      outcome = fail(faults.code, "fault: failed after the last byte");
    }
    if (dice_->strikes(faults.delay_one_in, dice_->delayed)) {
      return tell_later(slice, std::move(outcome), dice_->below(faults.delay_most_ns));
    }
    tell(slice, std::move(outcome));
  }

  void tell(Slice& slice, Result<> outcome) {
    SliceOwner* owner = held_.extract(&slice).mapped().owner;
    slice.endpoint = nullptr;
    owner->completed(slice, std::move(outcome));
  }
  void tell_later(Slice& slice, Result<> outcome, int64_t delay_ns) {
    Held& held = held_.at(&slice);
    held.outcome.emplace(std::move(outcome));
    reactor_.call_after(delay_ns, [this, alive = std::weak_ptr(alive_), &slice, number = held.number] {
      if (alive.expired()) return;
      auto found = held_.find(&slice);
      if (found == held_.end() || found->second.number != number || !found->second.outcome) return;
      tell(slice, std::move(*found->second.outcome));
    });
  }
  // What is quiet already and was only not told.
  void tell_all(const Error& cause) {
    for (Slice* slice : in_order(false)) {
      if (held_.contains(slice)) tell(*slice, std::unexpected(cause));
    }
  }
  // In the order of their posts, so that a run is the same again.
  std::vector<Slice*> in_order(bool inside) const {
    std::map<uint64_t, Slice*> sorted;
    for (const auto& [slice, held] : held_) {
      if (held.inside == inside) sorted.emplace(held.number, slice);
    }
    std::vector<Slice*> out;
    for (const auto& [number, slice] : sorted) out.push_back(slice);
    return out;
  }
  void drop_soon() {
    dropped_ = true;
    reactor_.post([this, alive = std::weak_ptr(alive_)] {
      if (alive.expired() || closed_) return;
      dropping_ = true;  // from here on what is canceled is lost with the endpoint
      for (Slice* slice : in_order(true)) {
        auto found = held_.find(slice);
        if (found != held_.end() && found->second.inside) inner_->cancel(*slice);
      }
    });
  }

  std::shared_ptr<Endpoint> inner_;
  std::shared_ptr<FaultDice> dice_;
  io::Reactor& reactor_;
  std::unordered_map<Slice*, Held> held_;
  uint64_t next_ = 1;
  bool dropped_ = false, dropping_ = false, closed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace

Result<std::shared_ptr<Endpoint>> FaultTransport::connect(LinkContext& link, uint32_t rail) {
  TRY(auto inner, inner_->connect(link, rail));
  return std::make_shared<FaultEndpoint>(std::move(inner), dice_, link.reactor());
}

}  // namespace moontide::transport
