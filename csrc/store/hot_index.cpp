#include "store/hot_index.h"

#include <atomic>
#include <cstring>

#include "base/status.h"

namespace moontide::store {
namespace {

HotSlot load(const std::byte* at) {
  HotSlot slot;
  std::memcpy(&slot, at, sizeof slot);
  return slot;
}

bool is_of(const HotSlot& slot, Generation generation) {
  return slot.place != 0 && slot.sequence == generation.sequence && slot.term == generation.term;
}

// Two words, each written at once: a reader may see one of them only.
void store_slot(std::byte* at, const HotSlot& slot) {
  std::array<uint64_t, 2> words{};
  static_assert(sizeof words == sizeof slot);
  std::memcpy(words.data(), &slot, sizeof words);
  auto* to = reinterpret_cast<uint64_t*>(at);
  std::atomic_ref(to[0]).store(words[0], std::memory_order_relaxed);
  std::atomic_ref(to[1]).store(words[1], std::memory_order_release);
}

}  // namespace

size_t hot_bucket(Generation generation, size_t buckets) {
  uint64_t mixed = (generation.sequence ^ uint64_t{generation.term} << 40) * 0x9E3779B97F4A7C15u;
  mixed ^= mixed >> 32;
  return static_cast<size_t>(mixed % buckets);
}

std::optional<uint64_t> find_in_bucket(ByteView bucket, Generation generation) {
  for (size_t i = 0; i < kHotSlots; ++i) {
    const HotSlot slot = load(bucket.data() + i * sizeof(HotSlot));
    if (is_of(slot, generation)) return uint64_t{slot.place - 1} * kHotBucketBytes;
  }
  return std::nullopt;
}

std::array<std::byte*, kHotSlots> HotIndex::slots_of(Generation generation) const {
  std::array<std::byte*, kHotSlots> slots{};
  std::byte* const bucket = memory_.data() + hot_bucket(generation, buckets()) * kHotBucketBytes;
  for (size_t i = 0; i < kHotSlots; ++i) slots[i] = bucket + i * sizeof(HotSlot);
  return slots;
}

std::optional<Generation> HotIndex::add(Generation generation, uint64_t offset) {
  MT_CHECK(offset % kHotBucketBytes == 0 && offset / kHotBucketBytes < UINT32_MAX,
           "an entry at " + std::to_string(offset));
  const auto place = static_cast<uint32_t>(offset / kHotBucketBytes + 1);
  const auto slots = slots_of(generation);
  for (std::byte* at : slots) {
    if (load(at).place != 0) continue;
    store_slot(at, {generation.sequence, generation.term, place});
    return std::nullopt;
  }
  const HotSlot first = load(slots[generation.sequence % kHotSlots]);
  return Generation{first.term, first.sequence};
}

void HotIndex::remove(Generation generation) {
  for (std::byte* at : slots_of(generation)) {
    if (is_of(load(at), generation)) store_slot(at, {});
  }
}

}  // namespace moontide::store
