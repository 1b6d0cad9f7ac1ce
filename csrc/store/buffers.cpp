#include "store/buffers.h"

#include "catalog/types.h"

namespace moontide::store {

uint64_t total_length(std::span<const Part> parts) {
  uint64_t sum = 0;
  for (const Part& part : parts) sum = part.length > UINT64_MAX - sum ? UINT64_MAX : sum + part.length;
  return sum;
}

Result<memory::RegionRef> TemporaryRegions::acquire(const Part& part, uint8_t access) {
  auto found = engine_.registry().find_local(part.address, part.length);
  if (!found) {
    found = engine_.add_region(reinterpret_cast<std::byte*>(part.address), part.length, access, "");
    if (!found) return found;
    temporary_.emplace((*found)->id, 0);
  }
  const memory::Region& region = **found;
  if ((region.access & access) != access) {
    return fail(Code::kDenied, "region '" + region.name + "' is not readable for peers, and a put lets a node read it");
  }
  if (auto known = temporary_.find(region.id); known != temporary_.end()) ++known->second;
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
