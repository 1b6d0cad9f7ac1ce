#include "catalog/eviction/lru.h"

namespace moontide::catalog {

void LruPolicy::used(Evictable& entry, const Use& use) {
  if (entry.slot == kNoSlot) {
    entry.slot = slots_.take();
    slots_[entry.slot].entry = &entry;
  } else {
    list_.remove(slots_, entry.slot);
  }
  if (use.parent != nullptr && use.parent->slot != kNoSlot) {
    list_.insert_before(slots_, entry.slot, use.parent->slot);
  } else {
    list_.push_hottest(slots_, entry.slot);
  }
}

void LruPolicy::erased(Evictable& entry) {
  list_.remove(slots_, entry.slot);
  slots_.give_back(entry.slot);
  entry.slot = kNoSlot;
}

bool LruPolicy::pick(size_t scan, int64_t, const std::function<Verdict(Evictable&)>& offer) {
  Slot slot = list_.coldest();
  for (; slot != kNoSlot && scan > 0; --scan) {
    Slot next = slots_[slot].hotter;
    if (offer(*slots_[slot].entry) == Verdict::kTakeLast) return false;
    slot = next;
  }
  return slot == kNoSlot;
}

}  // namespace moontide::catalog
