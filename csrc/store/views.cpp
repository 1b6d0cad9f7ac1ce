#include "store/views.h"

#include <algorithm>

namespace moontide::store {

Views::Views(engine::Engine& engine, Segment& segment, const NodeOptions& options, std::function<void()> released)
    : engine_(engine), segment_(segment), options_(options), released_(std::move(released)) {}

Views::~Views() = default;

void Views::open(const engine::LinkRef& link, const rpc::Incoming& request, rpc::Responder responder) {
  auto message = wire::decode<wire::ViewOpen>(request.payload);
  if (!message) return responder.refuse(message.error());
  if (message->generations.size() > wire::kStoreItemsMax) {
    return responder.refuse({Code::kInvalid, std::to_string(message->generations.size()) + " entries in one request"});
  }
  wire::ViewOpenReply reply;
  reply.viewer = message->viewer;
  std::vector<int> fds;
  io::Fd holders;
  if (reply.viewer == 0) {
    auto number = admit(*link, fds, holders);
    if (!number) return responder.refuse(number.error());
    reply.viewer = *number;
  }
  Viewer* viewer = find(*link, reply.viewer);
  if (viewer == nullptr) return responder.refuse({Code::kStale, "no such viewer at this node"});
  for (Generation generation : message->generations) reply.items.push_back(pin(*viewer, generation));
  responder.reply(wire::encode(reply), fds);
}

void Views::close(const engine::LinkRef& link, const rpc::Incoming& request, rpc::Responder responder) {
  auto message = wire::decode<wire::ViewClose>(request.payload);
  if (!message) return responder.refuse(message.error());
  Viewer* viewer = find(*link, message->viewer);
  if (viewer == nullptr) return responder.refuse({Code::kStale, "no such viewer at this node"});
  const uint64_t held = segment_.held_bytes();
  for (Generation generation : message->generations) unpin(*viewer, generation);
  responder.reply(Bytes{});
  tell_if_released(held);
}

Views::Viewer* Views::find(const engine::Link& link, uint64_t number) {
  auto found = viewers_.find(number);
  return found == viewers_.end() || found->second.peer != link.peer_instance() ? nullptr : &found->second;
}

// A new viewer; what its process is to keep goes into `holders` and `fds`.
Result<uint64_t> Views::admit(const engine::Link& link, std::vector<int>& fds, io::Fd& holders) {
  const bool here = link.same_instance();
  if (!here && link.credentials() == nullptr) return fail(Code::kUnsupported, "views are for processes of this host");
  auto of_peer = [&](const auto& one) { return one.second.peer == link.peer_instance(); };
  const bool crowded = viewers_.size() >= options_.viewers_max ||
                       std::cmp_greater_equal(std::ranges::count_if(viewers_, of_peer), options_.viewers_per_peer);
  if (crowded) return fail(Code::kOverloaded, std::to_string(viewers_.size()) + " viewers at this node");
  uint64_t number = 0;
  while (number == 0 || viewers_.contains(number)) number = engine_.reactor().random().next();
  Viewer viewer{.peer = link.peer_instance(), .leave = nullptr, .pinned = {}, .bytes = 0};
  if (!here) {
    TRY(auto leave, engine_.network().give_leave(*link.credentials(), [this, number] { gone(number); }));
    viewer.leave = std::move(leave.given);
    holders = std::move(leave.holders);
    fds.push_back(holders.get());
  }
  viewers_.emplace(number, std::move(viewer));
  return number;
}

wire::Viewed Views::pin(Viewer& viewer, Generation generation) {
  const Segment::Entry* entry = segment_.find(generation);
  if (entry == nullptr) return {.code = Code::kNotFound};
  auto found = viewer.pinned.find(generation);
  if (found == viewer.pinned.end()) {
    const uint64_t bytes = catalog::entry_footprint(entry->length);
    uint64_t of_peer = 0;
    for (const auto& [number, other] : viewers_) of_peer += other.peer == viewer.peer ? other.bytes : 0;
    const uint64_t capacity = segment_.extents().size();
    const bool room = range_inside(of_peer, bytes, capacity / 100 * options_.view_percent_per_peer) &&
                      range_inside(pinned_bytes_, bytes, capacity / 100 * options_.view_percent);
    if (!room) return {.code = Code::kNoSpace};
    found = viewer.pinned.emplace(generation, Pinned{bytes, 0}).first;
    viewer.bytes += bytes;
    pinned_bytes_ += bytes;
    segment_.pin(generation);
  }
  ++found->second.pins;
  return {.code = Code::kOk, .offset = entry->offset};
}

void Views::unpin(Viewer& viewer, Generation generation) {
  auto found = viewer.pinned.find(generation);
  if (found == viewer.pinned.end() || --found->second.pins > 0) return;
  viewer.bytes -= found->second.bytes;
  pinned_bytes_ -= found->second.bytes;
  viewer.pinned.erase(found);
  segment_.unpin(generation);
}

void Views::gone(uint64_t number) {
  auto viewer = viewers_.extract(number);
  if (!viewer) return;
  const uint64_t held = segment_.held_bytes();
  for (const auto& [generation, pinned] : viewer.mapped().pinned) segment_.unpin(generation);
  pinned_bytes_ -= viewer.mapped().bytes;
  tell_if_released(held);
}

void Views::tell_if_released(uint64_t held_before) {
  if (segment_.held_bytes() < held_before) released_();
}

}  // namespace moontide::store
