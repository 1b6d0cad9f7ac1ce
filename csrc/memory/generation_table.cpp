#include "memory/generation_table.h"

namespace moontide::memory {

Result<std::unique_ptr<GenerationTable>> GenerationTable::create() {
  TRY(auto arena, Arena::create(kWords * sizeof(uint64_t), "moontide-generations"));
  return std::unique_ptr<GenerationTable>(new GenerationTable(std::move(arena)));
}

Result<std::unique_ptr<GenerationTable>> GenerationTable::create_private() {
  TRY(auto arena, Arena::create_private(kWords * sizeof(uint64_t)));
  return std::unique_ptr<GenerationTable>(new GenerationTable(std::move(arena)));
}

std::atomic_ref<uint64_t> GenerationTable::at(uint32_t word) const {
  return std::atomic_ref<uint64_t>(reinterpret_cast<uint64_t*>(arena_->data())[word]);
}

Result<uint32_t> GenerationTable::acquire(uint64_t generation) {
  uint32_t word;
  if (!free_.empty()) {
    word = free_.back();
    free_.pop_back();
  } else if (used_ < kWords) {
    word = used_++;
  } else {
    return fail(Code::kNoSpace, "all " + std::to_string(kWords) + " regions are in use");
  }
  at(word).store(generation, std::memory_order_release);
  return word;
}

void GenerationTable::release(uint32_t word) {
  // the caller frees or refills the region's memory after this: no such store may be seen before the cleared word
  at(word).store(0, std::memory_order_seq_cst);
  free_.push_back(word);
}

bool GenerationTable::is_current(uint32_t word, uint64_t generation) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  return word < kWords && at(word).load(std::memory_order_acquire) == generation;
}

bool GenerationView::is_current(uint32_t word, uint64_t generation) const {
  if (static_cast<uint64_t>(word) * sizeof(uint64_t) >= mapping_->size()) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  auto* words = reinterpret_cast<const uint64_t*>(mapping_->data());
  return __atomic_load_n(words + word, __ATOMIC_ACQUIRE) == generation;
}

}  // namespace moontide::memory
