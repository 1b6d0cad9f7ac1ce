// Extents of one segment: best fit, neighbours joined when freed, so that a segment from which everything was deleted
// takes any size again. Single-threaded; touches no memory of the segment.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace moontide::store {

class ExtentAllocator {
 public:
  // Everything is a multiple of `alignment`; a rest of `size` below it is not used.
  explicit ExtentAllocator(uint64_t size, uint64_t alignment = 64);

  // `length` > 0 is rounded up. nullopt: no free extent is that long.
  std::optional<uint64_t> allocate(uint64_t length);
  // Exactly what was allocated at `offset`.
  void free(uint64_t offset);

  uint64_t size() const { return size_; }
  uint64_t used() const { return used_; }
  uint64_t largest_free() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }
  size_t extents() const { return allocated_.size(); }

 private:
  void insert_free(uint64_t offset, uint64_t length);
  void erase_free(std::map<uint64_t, uint64_t>::iterator extent);

  uint64_t size_;
  uint64_t alignment_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> allocated_;             // offset → length
  std::map<uint64_t, uint64_t> free_;                  // offset → length
  std::set<std::pair<uint64_t, uint64_t>> by_length_;  // (length, offset) of free_
};

}  // namespace moontide::store
