#include "store/allocator.h"

#include <string>

#include "base/status.h"

namespace moontide::store {

ExtentAllocator::ExtentAllocator(uint64_t size, uint64_t alignment)
    : size_(size / alignment * alignment), alignment_(alignment) {
  if (size_ > 0) insert_free(0, size_);
}

std::optional<uint64_t> ExtentAllocator::allocate(uint64_t length) {
  if (length == 0 || length > size_) return std::nullopt;
  length = (length + alignment_ - 1) / alignment_ * alignment_;
  auto best = by_length_.lower_bound({length, 0});
  if (best == by_length_.end()) return std::nullopt;
  auto [free_length, offset] = *best;
  erase_free(free_.find(offset));
  if (free_length > length) insert_free(offset + length, free_length - length);
  allocated_.emplace(offset, length);
  used_ += length;
  return offset;
}

void ExtentAllocator::free(uint64_t offset) {
  auto extent = allocated_.find(offset);
  MT_CHECK(extent != allocated_.end(), "nothing is allocated at " + std::to_string(offset));
  uint64_t length = extent->second;
  allocated_.erase(extent);
  used_ -= length;
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + length) {
    length += after->second;
    auto next = std::next(after);
    erase_free(after);
    after = next;
  }
  if (after != free_.begin()) {
    auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      length += before->second;
      erase_free(before);
    }
  }
  insert_free(offset, length);
}

void ExtentAllocator::insert_free(uint64_t offset, uint64_t length) {
  free_.emplace(offset, length);
  by_length_.emplace(length, offset);
}

void ExtentAllocator::erase_free(std::map<uint64_t, uint64_t>::iterator extent) {
  by_length_.erase({extent->second, extent->first});
  free_.erase(extent);
}

}  // namespace moontide::store
