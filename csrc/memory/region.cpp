#include "memory/region.h"

#include <algorithm>

namespace moontide::memory {
namespace {

std::string range_text(uint64_t address, uint64_t length) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "[0x%llx, +%llu)", static_cast<unsigned long long>(address),
                static_cast<unsigned long long>(length));
  return buffer;
}

constexpr size_t kUsersNamed = 4;

}  // namespace

Pin::Pin(RegionRef region, const PinUser* user) : region_(std::move(region)), user_(user) {
  ++region_->pins;
  link();
}

void Pin::link() {
  older_ = std::exchange(region_->newest_pin, this);
  if (older_ != nullptr) older_->newer_ = this;
}

void Pin::unlink() {
  (newer_ != nullptr ? newer_->older_ : region_->newest_pin) = older_;
  if (older_ != nullptr) older_->newer_ = newer_;
  older_ = newer_ = nullptr;
}

void Pin::take(Pin& other) {
  if (!other.region_) return;
  other.unlink();
  region_ = std::move(other.region_);
  user_ = other.user_;
  link();
}

void Pin::release() {
  if (!region_) return;
  unlink();
  RegionRef region = std::move(region_);
  if (--region->pins == 0 && !region->live && region->on_quiet) {
    auto on_quiet = std::move(region->on_quiet);
    on_quiet();
  }
}

// The table of generations is bounded, so few ids are taken.
uint32_t Registry::take_id() {
  while (true) {
    const uint32_t id = next_id_++;
    if (next_id_ == 0) next_id_ = 1, ids_went_round_ = true;
    if (id != 0 && !by_id_.contains(id) && !leaving_.contains(id)) return id;
  }
}

Result<RegionRef> Registry::add(std::byte* address, uint64_t length, uint8_t access, std::string name,
                                std::shared_ptr<Arena> arena) {
  auto start = reinterpret_cast<uintptr_t>(address);
  if (address == nullptr || length == 0 || !range_valid(start, length)) {
    return fail(Code::kInvalid, "cannot register " + range_text(start, length));
  }
  uint64_t generation = next_generation_++;
  TRY(uint32_t word, generations_->acquire(generation));
  auto region = std::make_shared<Region>();
  region->id = take_id();
  region->generation = generation;
  region->address = address;
  region->length = length;
  region->access = access;
  region->name = std::move(name);
  region->arena = std::move(arena);
  region->word = word;
  by_id_.emplace(region->id, region);
  by_address_.add(region);
  ++changes_;
  return region;
}

Result<> Registry::remove(uint32_t id, std::move_only_function<void()> on_quiet) {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return fail(Code::kNotFound, "no region " + std::to_string(id));
  RegionRef region = found->second;
  by_id_.erase(found);
  by_address_.remove(*region);
  ++changes_;
  region->live = false;
  generations_->release(region->word);
  if (region->pins == 0) {
    if (on_quiet) on_quiet();
  } else {
    region->on_quiet = std::move(on_quiet);
    if (leaving_.size() >= leaving_looked_at_) {
      std::erase_if(leaving_, [](const auto& item) {
        auto left = item.second.lock();
        return !left || left->pins == 0;
      });
      leaving_looked_at_ = std::max<size_t>(16, leaving_.size() * 2);
    }
    leaving_.emplace(id, region);
  }
  return {};
}

Result<RegionRef> Registry::find_local(uint64_t address, uint64_t length, Use use) const {
  if (auto region = by_address_.covering(address, length, use)) return region;
  if (use != Use::kAny && by_address_.covering(address, length, Use::kAny)) {
    return fail(Code::kDenied, "local memory " + range_text(address, length) +
                                   (use == Use::kInto ? " is registered as read-only" : " is not readable for peers"));
  }
  return fail(Code::kDenied, "local memory " + range_text(address, length) +
                                 " is not inside one registered region; register it first");
}

void Registry::mark_missing(uint64_t address) {
  ++changes_;
  by_address_.touching(address, 1, [](const RegionRef& region) { return region->missing = true; });
}

bool Registry::stands_alone(const Region& region) const {
  size_t found = 0;
  by_address_.touching(reinterpret_cast<uint64_t>(region.address), region.length,
                       [&](const RegionRef&) { return ++found < 2; });
  return found == 1;
}

std::vector<std::string> Registry::users(uint32_t id) const {
  RegionRef region = by_id(id);
  if (!region) {
    auto left = leaving_.find(id);
    if (left != leaving_.end()) region = left->second.lock();
  }
  std::vector<std::string> out;
  if (!region) return out;
  for (const Pin* pin = region->newest_pin; pin != nullptr && out.size() < kUsersNamed; pin = pin->older_) {
    out.push_back(pin->user_ == nullptr ? "somebody" : pin->user_->describe_use(*region));
  }
  if (region->pins > out.size()) out.push_back(std::to_string(region->pins - out.size()) + " more");
  return out;
}

Result<RegionRef> Registry::check_remote(uint32_t id, uint64_t generation, uint64_t offset, uint64_t length,
                                         Access right) const {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) {
    // an id that was given out once, and is nobody's now
    if (id != 0 && (id < next_id_ || ids_went_round_))
      return fail(Code::kStale, "region " + std::to_string(id) + " was unregistered");
    return fail(Code::kNotFound, "no region " + std::to_string(id));
  }
  const Region& region = *found->second;
  if (region.generation != generation) {
    return fail(Code::kStale, "region " + std::to_string(id) + " has generation " + std::to_string(region.generation) +
                                  ", asked was " + std::to_string(generation));
  }
  if (region.missing)
    return fail(Code::kDenied, "the memory of region " + std::to_string(id) + " is not there any more");
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
  ++changes_;
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
