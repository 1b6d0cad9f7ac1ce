// One word per region, in memory that peers of this host map read-only. The owner sets a region's word to its
// generation while the region is registered and clears it first when it is not any more. Whoever reads the region
// one-sidedly looks at the word after the last byte: unchanged means that the region was registered all the while.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "memory/arena.h"

namespace moontide::memory {

class GenerationTable {
 public:
  static constexpr uint32_t kWords = 1u << 17;  // 1 MiB, touched as used; bounds the regions of an engine

  static Result<std::unique_ptr<GenerationTable>> create();
  // Without a descriptor, for the simulation.
  static Result<std::unique_ptr<GenerationTable>> create_private();

  // Takes a free word and sets it. NO_SPACE when all are in use.
  Result<uint32_t> acquire(uint64_t generation);
  // Clears the word at once; it may be acquired again, with another generation.
  void release(uint32_t word);

  // As GenerationView::is_current, for the owner's own process.
  bool is_current(uint32_t word, uint64_t generation) const;

  const Arena& arena() const { return *arena_; }

 private:
  explicit GenerationTable(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}
  std::atomic_ref<uint64_t> at(uint32_t word) const;
  std::shared_ptr<Arena> arena_;
  std::vector<uint32_t> free_;
  uint32_t used_ = 0;
};

// The peer's table as this process sees it.
class GenerationView {
 public:
  explicit GenerationView(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}

  // Call after the last byte was read: orders the load behind it. False for a word outside the table.
  bool is_current(uint32_t word, uint64_t generation) const;

 private:
  std::shared_ptr<Mapping> mapping_;
};

}  // namespace moontide::memory
