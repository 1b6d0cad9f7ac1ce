#include "store/buffers.h"

#include "catalog/types.h"

namespace moontide::store {
namespace {

std::byte* address_of(const Part& part) { return reinterpret_cast<std::byte*>(part.address); }

}  // namespace

uint64_t total_length(std::span<const Part> parts) {
  uint64_t sum = 0;
  for (const Part& part : parts) sum = part.length > UINT64_MAX - sum ? UINT64_MAX : sum + part.length;
  return sum;
}

Result<memory::RegionRef> TemporaryRegions::acquire(const Part& part, uint8_t access) {
  const auto use = (access & memory::kReadable) != 0 ? memory::Use::kGranted : memory::Use::kInto;
  auto& registry = engine_.registry();
  auto found = registry.find_local(part.address, part.length, use);
  if (!found) {
    // what the caller registered so that it does not suit stays so; what is here for another operation binds nobody
    bool refused = false;
    registry.touching(part.address, part.length, [&](const memory::RegionRef& region) {
      refused = !temporary_.contains(region->id) && region->bytes().data() <= address_of(part) &&
                range_inside(static_cast<uint64_t>(address_of(part) - region->address), part.length, region->length);
      return !refused;
    });
    if (refused) return found;
    found = engine_.add_region(address_of(part), part.length, access, "");
    if (!found) return found;
    temporary_.emplace((*found)->id, 0);
  }
  if (auto known = temporary_.find((*found)->id); known != temporary_.end()) ++known->second;
  return found;
}

void TemporaryRegions::release(const memory::RegionRef& region, std::move_only_function<void()> quiet) {
  auto known = temporary_.find(region->id);
  if (known == temporary_.end() || --known->second > 0) return quiet();
  temporary_.erase(known);
  auto removed = engine_.remove_region(region->id, std::move(quiet));
  MT_CHECK(removed.has_value(), removed.error().text());
}

HeaderSlots::~HeaderSlots() {
  // the registry keeps the memory until no transfer uses it
  for (auto& chunk : chunks_) [[maybe_unused]]
    auto removed = engine_.remove_region(chunk->id, {});
}

Result<std::byte*> HeaderSlots::take() {
  if (free_.empty()) {
    if (chunks_.size() == kChunksMax) return fail(Code::kOverloaded, "too many gets are under way");
    TRY(auto arena, memory::Arena::create_private(kSlots * catalog::kEntryHeaderBytes));
    TRY(auto region,
        engine_.add_region(arena->data(), kSlots * catalog::kEntryHeaderBytes, memory::kLocal, "headers", arena));
    chunks_.push_back(region);
    for (size_t i = kSlots; i-- > 0;) free_.push_back(arena->data() + i * catalog::kEntryHeaderBytes);
  }
  std::byte* slot = free_.back();
  free_.pop_back();
  return slot;
}

}  // namespace moontide::store
