#include "catalog/eviction/tiny_lfu.h"

#include <algorithm>
#include <bit>

namespace moontide::catalog {
namespace {

constexpr uint64_t kWindowPercent = 1;
constexpr uint64_t kProtectedPercent = 80;  // of the main part
constexpr uint32_t kUsesMax = 15;
constexpr size_t kSettleSteps = 4;

}  // namespace

void UseSketch::reserve(size_t keys) {
  size_t wanted = std::bit_ceil(std::max<size_t>(keys, 64));
  if (words_.size() >= wanted) return;
  words_.assign(wanted, 0);  // what was counted is forgotten, while a store fills for the first time
  counted_ = 0;
}

UseSketch::Place UseSketch::place(uint64_t key_hash, size_t row) const {
  constexpr std::array<uint64_t, kRows> kSeeds = {0x9E3779B97F4A7C15u, 0xC2B2AE3D27D4EB4Fu, 0xFF51AFD7ED558CCDu,
                                                  0xD6E8FEB86659FD93u};
  uint64_t mixed = (key_hash ^ key_hash >> 29) * kSeeds[row];
  return {static_cast<size_t>(mixed >> 20 & (words_.size() - 1)), static_cast<uint32_t>(mixed >> 60) * 4};
}

void UseSketch::count(uint64_t key_hash) {
  for (size_t row = 0; row < kRows; ++row) {
    Place at = place(key_hash, row);
    if ((words_[at.word] >> at.shift & 15) < kUsesMax) words_[at.word] += uint64_t{1} << at.shift;
  }
  if (++counted_ < 10 * words_.size()) return;
  for (uint64_t& word : words_) word = word >> 1 & 0x7777777777777777u;
  counted_ /= 2;
}

uint32_t UseSketch::uses(uint64_t key_hash) const {
  uint32_t least = kUsesMax;
  for (size_t row = 0; row < kRows; ++row) {
    Place at = place(key_hash, row);
    least = std::min(least, static_cast<uint32_t>(words_[at.word] >> at.shift & 15));
  }
  return least;
}

void TinyLfuPolicy::used(Evictable& entry, const Use& use) {
  sketch_.reserve(count_ + 1);
  sketch_.count(entry.key_hash);
  if (entry.slot == kNoSlot) {
    entry.slot = slots_.take();
    slots_[entry.slot].entry = &entry;
    slots_[entry.slot].bytes = use.bytes;
    ++count_;
    push(entry.slot, kWindow);
  } else {
    Part part = static_cast<Part>(slots_[entry.slot].part);
    unlink(entry.slot);
    push(entry.slot, part == kWindow ? kWindow : kProtected);
  }
  for (size_t i = 0; i < kSettleSteps && settle_one(); ++i) {
  }
}

void TinyLfuPolicy::erased(Evictable& entry) {
  unlink(entry.slot);
  slots_.give_back(entry.slot);
  entry.slot = kNoSlot;
  --count_;
}

bool TinyLfuPolicy::settle_one() {
  uint64_t main_bytes = parts_[kProbation].bytes + parts_[kProtected].bytes;
  Part from = kParts;
  if (parts_[kProtected].bytes > main_bytes * kProtectedPercent / 100) from = kProtected;
  if (parts_[kWindow].bytes > std::max<uint64_t>(bytes() * kWindowPercent / 100, 1)) from = kWindow;
  if (from == kParts) return false;
  Slot slot = parts_[from].list.coldest();
  unlink(slot);
  push(slot, kProbation);
  return true;
}

bool TinyLfuPolicy::pick(size_t scan, int64_t, const std::function<Verdict(Evictable&)>& offer) {
  for (; scan > 1 && settle_one(); --scan) {
  }
  // On probation the candidate, who came last, contends with the victim, who has been there longest.
  Slot victim = parts_[kProbation].list.coldest(), candidate = parts_[kProbation].list.hottest();
  std::array<Slot, 2> others = {parts_[kProtected].list.coldest(), parts_[kWindow].list.coldest()};
  for (; scan > 0; --scan) {
    Slot slot = kNoSlot;
    if (victim != kNoSlot) {
      bool last = victim == candidate;
      bool keep =
          !last && sketch_.uses(slots_[candidate].entry->key_hash) > sketch_.uses(slots_[victim].entry->key_hash);
      slot = last || keep ? victim : candidate;
      (slot == victim ? victim : candidate) = slot == victim ? slots_[slot].hotter : slots_[slot].colder;
      if (last) victim = kNoSlot;
    } else {
      Slot& other = others[0] != kNoSlot ? others[0] : others[1];
      if (other == kNoSlot) return true;
      slot = other;
      other = slots_[slot].hotter;
    }
    if (offer(*slots_[slot].entry) == Verdict::kTakeLast) return false;
  }
  return victim == kNoSlot && others[0] == kNoSlot && others[1] == kNoSlot;
}

void TinyLfuPolicy::push(Slot slot, Part part) {
  slots_[slot].part = part;
  parts_[part].list.push_hottest(slots_, slot);
  parts_[part].bytes += slots_[slot].bytes;
}

void TinyLfuPolicy::unlink(Slot slot) {
  Lru& part = parts_[slots_[slot].part];
  part.list.remove(slots_, slot);
  part.bytes -= slots_[slot].bytes;
}

}  // namespace moontide::catalog
