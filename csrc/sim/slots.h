// A client's buffers: registered once, used by one operation after the other. Between uses they hold a mark, so that a
// byte which lands after its operation was quiet is found.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "memory/arena.h"

namespace moontide::sim {

class Slots {
 public:
  static constexpr size_t kSlotBytes = 64u << 10;
  static constexpr size_t kSlots = 24;

  static Result<Slots> create();

  const std::shared_ptr<memory::Arena>& arena() const { return arena_; }
  // nullopt: all are in use.
  std::optional<size_t> take();
  // The operation is quiet: nobody may touch the memory any more.
  void give_back(size_t slot);
  MutableBytes bytes(size_t slot) const { return {arena_->data() + slot * kSlotBytes, kSlotBytes}; }
  // False when a buffer that nobody uses was written to.
  bool untouched() const;

 private:
  explicit Slots(std::shared_ptr<memory::Arena> arena);
  std::shared_ptr<memory::Arena> arena_;
  std::vector<bool> used_;
};

}  // namespace moontide::sim
