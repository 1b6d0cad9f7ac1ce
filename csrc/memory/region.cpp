#include "memory/region.h"

namespace moontide::memory {
namespace {

std::string range_text(uint64_t address, uint64_t length) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "[0x%llx, +%llu)", static_cast<unsigned long long>(address),
                static_cast<unsigned long long>(length));
  return buffer;
}

}  // namespace

void Pin::release() {
  if (!region_) return;
  RegionRef region = std::move(region_);
  if (--region->pins == 0 && !region->live && region->on_quiet) {
    auto on_quiet = std::move(region->on_quiet);
    on_quiet();
  }
}

Result<RegionRef> Registry::add(std::byte* address, uint64_t length, uint8_t access, std::string name,
                                std::shared_ptr<Arena> arena) {
  auto start = reinterpret_cast<uintptr_t>(address);
  if (address == nullptr || length == 0 || !range_valid(start, length)) {
    return fail(Code::kInvalid, "cannot register " + range_text(start, length));
  }
  auto next = by_address_.lower_bound(start);
  const Region* overlap = nullptr;
  if (next != by_address_.end() && next->first < start + length) overlap = next->second.get();
  if (next != by_address_.begin()) {
    const Region& before = *std::prev(next)->second;
    if (reinterpret_cast<uintptr_t>(before.address) + before.length > start) overlap = &before;
  }
  if (overlap != nullptr) {
    return fail(Code::kInvalid, range_text(start, length) + " overlaps region " + std::to_string(overlap->id) + " at " +
                                    range_text(reinterpret_cast<uintptr_t>(overlap->address), overlap->length));
  }
  uint64_t generation = next_generation_++;
  TRY(uint32_t word, generations_->acquire(generation));
  auto region = std::make_shared<Region>();
  region->id = next_id_++;
  region->generation = generation;
  region->address = address;
  region->length = length;
  region->access = access;
  region->name = std::move(name);
  region->arena = std::move(arena);
  region->word = word;
  by_id_.emplace(region->id, region);
  by_address_.emplace(start, region);
  return region;
}

Result<> Registry::remove(uint32_t id, std::move_only_function<void()> on_quiet) {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return fail(Code::kNotFound, "no region " + std::to_string(id));
  RegionRef region = found->second;
  by_id_.erase(found);
  by_address_.erase(reinterpret_cast<uintptr_t>(region->address));
  region->live = false;
  generations_->release(region->word);
  if (region->pins == 0) {
    if (on_quiet) on_quiet();
  } else {
    region->on_quiet = std::move(on_quiet);
  }
  return {};
}

Result<RegionRef> Registry::find_local(uint64_t address, uint64_t length) const {
  auto next = by_address_.upper_bound(address);
  if (next != by_address_.begin()) {
    const RegionRef& region = std::prev(next)->second;
    uint64_t offset = address - reinterpret_cast<uintptr_t>(region->address);
    if (range_inside(offset, length, region->length)) return region;
  }
  return fail(Code::kDenied, "local memory " + range_text(address, length) +
                                 " is not inside one registered region; register it first");
}

Result<RegionRef> Registry::check_remote(uint32_t id, uint64_t generation, uint64_t offset, uint64_t length,
                                         Access right) const {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) {
    // ids are never used twice, so an id below the next one was a region once
    if (id != 0 && id < next_id_) return fail(Code::kStale, "region " + std::to_string(id) + " was unregistered");
    return fail(Code::kNotFound, "no region " + std::to_string(id));
  }
  const Region& region = *found->second;
  if (region.generation != generation) {
    return fail(Code::kStale, "region " + std::to_string(id) + " has generation " + std::to_string(region.generation) +
                                  ", asked was " + std::to_string(generation));
  }
  if ((region.access & right) == 0) {
    return fail(Code::kDenied,
                "region " + std::to_string(id) + " is not " + (right == kReadable ? "readable" : "writable"));
  }
  if (!range_inside(offset, length, region.length)) {
    return fail(Code::kDenied, "offset " + std::to_string(offset) + " + " + std::to_string(length) +
                                   " is outside region " + std::to_string(id) + " of " + std::to_string(region.length) +
                                   " bytes");
  }
  return found->second;
}

void Registry::close() {
  for (auto& [id, region] : by_id_) {
    region->live = false;
    generations_->release(region->word);
  }
  by_id_.clear();
  by_address_.clear();
}

RegionRef Registry::by_id(uint32_t id) const {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

}  // namespace moontide::memory
