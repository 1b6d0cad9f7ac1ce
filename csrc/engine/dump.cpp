#include "engine/dump.h"

#include <algorithm>

#include "engine/engine.h"

namespace moontide::engine {
namespace {

constexpr size_t kSlicesWalked = 1 << 17;  // of all transfers together; the lock is held meanwhile
constexpr size_t kPlacesMax = 32;          // of one transfer

}  // namespace

TransferView Transfer::view(int64_t now_ns, size_t& walk) const {
  TransferView out;
  out.number = number_;
  out.trace = trace();
  out.served = options_.served;
  out.done = done_;
  out.code = error_.code;
  out.age_ns = now_ns - submitted_ns_;
  out.idle_ns = now_ns - last_progress_ns_;
  out.bytes_moved = bytes_moved_;
  out.bytes_total = plan_->bytes;
  out.slices_left = live_slices_;
  for (const Part& part : parts_) {
    if (walk == 0) break;
    --walk;
    if (part.over) continue;
    Stage stage = !part.posted ? Stage::kQueue : part.copied ? Stage::kCopy : done_ ? Stage::kFence : Stage::kWire;
    std::string_view path = part.endpoint ? part.endpoint->name() : "";
    auto same = [&](const SlicesView& view) {
      return view.stage == stage && view.path == path && view.peer == part.link->peer_instance();
    };
    auto place = std::ranges::find_if(out.slices, same);
    if (place == out.slices.end()) {
      if (out.slices.size() == kPlacesMax) continue;
      out.slices.push_back({part.link->peer_instance(), part.link->peer_address(), std::string(path), stage, 0, 0, 0});
      place = std::prev(out.slices.end());
    }
    ++place->count;
    place->bytes += part.slice.length;
    place->oldest_ns = std::max(place->oldest_ns, now_ns - part.since_ns);
  }
  return out;
}

DumpView dump(const Engine& engine, size_t transfers_max) {
  const int64_t now = engine.clock().now_ns();
  DumpView out;
  out.instance = engine.instance();
  out.address = engine.address();
  size_t walk = kSlicesWalked;
  for (const auto& [number, transfer] : engine.active()) {
    if (out.transfers.size() == transfers_max) {
      ++out.transfers_left_out;
      continue;
    }
    out.transfers.push_back(transfer->view(now, walk));
  }
  for (const auto& [address, since_ns] : engine.observer().connecting())
    out.connecting.emplace_back(address, now - since_ns);
  out.links = engine.links();
  out.lingering = engine.lingering();
  out.hostages = engine.hostages();
  out.holds = engine.holds().size();
  return out;
}

int64_t oldest_transfer_ns(const Engine& engine) {
  for (const auto& [number, transfer] : engine.active()) {  // in the order in which they were submitted
    if (!transfer->done()) return engine.clock().now_ns() - transfer->submitted_ns();
  }
  return 0;
}

}  // namespace moontide::engine
