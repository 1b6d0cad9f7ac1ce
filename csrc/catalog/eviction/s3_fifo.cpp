#include "catalog/eviction/s3_fifo.h"

namespace moontide::catalog {
namespace {

constexpr uint64_t kSmallPercent = 10;
constexpr uint32_t kUsesMax = 3;
constexpr uint32_t kUsesToStay = 1;  // in the small queue

}  // namespace

void S3FifoPolicy::used(Evictable& entry, const Use& use) {
  if (entry.slot != kNoSlot) {
    Node& node = slots_[entry.slot];
    if (node.uses < kUsesMax) node.uses = node.uses + 1;
    return;
  }
  entry.slot = slots_.take();
  Node& node = slots_[entry.slot];
  node.entry = &entry;
  node.bytes = use.bytes;
  if (auto ghost = ghosts_.take(entry.key_hash)) node.main = departures_ - ghost->stamp < small_.count + main_.count;
  push(entry.slot);
}

void S3FifoPolicy::erased(Evictable& entry) {
  if (!slots_[entry.slot].main) {
    ghosts_.reserve(main_.count + small_.count);
    ghosts_.insert(entry.key_hash, ++departures_);
  }
  unlink(entry.slot);
  slots_.give_back(entry.slot);
  entry.slot = kNoSlot;
}

bool S3FifoPolicy::pick(size_t scan, int64_t, const std::function<Verdict(Evictable&)>& offer) {
  Slot small = small_.list.coldest(), main = main_.list.coldest();
  uint64_t small_bytes = small_.bytes, all_bytes = small_.bytes + main_.bytes;  // without what was taken
  bool draining = small_bytes >= all_bytes * kSmallPercent / 100;  // the small queue, until it gave a victim
  for (; scan > 0 && (small != kNoSlot || main != kNoSlot); --scan) {
    bool from_small = small != kNoSlot && (main == kNoSlot || draining);
    Slot& cursor = from_small ? small : main;
    Slot slot = cursor;
    Node& node = slots_[slot];
    bool stays = from_small ? node.uses >= kUsesToStay : node.uses > 0;
    if (stays) {
      // Not before the move: the entry may become its own successor.
      Slot next = node.hotter;
      unlink(slot);
      if (from_small) small_bytes -= node.bytes;
      node.uses = from_small ? 0 : node.uses - 1;
      node.main = true;
      push(slot);
      cursor = next;
      if (main == kNoSlot) main = slot;
      continue;
    }
    cursor = node.hotter;
    Verdict verdict = offer(*node.entry);
    if (verdict == Verdict::kTakeLast) return false;
    if (verdict == Verdict::kKeep) continue;
    all_bytes -= node.bytes;
    if (from_small) small_bytes -= node.bytes;
    draining = small_bytes >= all_bytes * kSmallPercent / 100;
  }
  return small == kNoSlot && main == kNoSlot;
}

void S3FifoPolicy::push(Slot slot) {
  Queue& queue = queue_of(slots_[slot]);
  queue.list.push_hottest(slots_, slot);
  queue.bytes += slots_[slot].bytes;
  ++queue.count;
}

void S3FifoPolicy::unlink(Slot slot) {
  Queue& queue = queue_of(slots_[slot]);
  queue.list.remove(slots_, slot);
  queue.bytes -= slots_[slot].bytes;
  --queue.count;
}

}  // namespace moontide::catalog
