#include "sim/slots.h"

#include <algorithm>

namespace moontide::sim {
namespace {

constexpr std::byte kMark{0xa5};

}  // namespace

Result<Slots> Slots::create() {
  TRY(auto arena, memory::Arena::create_private(kSlotBytes * kSlots));
  return Slots(std::move(arena));
}

Slots::Slots(std::shared_ptr<memory::Arena> arena) : arena_(std::move(arena)), used_(kSlots) {
  std::memset(arena_->data(), static_cast<int>(kMark), kSlotBytes * kSlots);
}

std::optional<size_t> Slots::take() {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (used_[slot]) continue;
    used_[slot] = true;
    return slot;
  }
  return std::nullopt;
}

void Slots::give_back(size_t slot) {
  used_[slot] = false;
  std::memset(bytes(slot).data(), static_cast<int>(kMark), kSlotBytes);
}

bool Slots::untouched() const {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    const MutableBytes memory = bytes(slot);
    if (!used_[slot] && !std::all_of(memory.begin(), memory.end(), [](std::byte b) { return b == kMark; }))
      return false;
  }
  return true;
}

}  // namespace moontide::sim
