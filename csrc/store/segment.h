// The memory that a node lends, and the entries in it. The node is its only allocator and writer. Single-threaded.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "memory/arena.h"
#include "store/allocator.h"
#include "store/entry.h"

namespace moontide::store {

class Segment {
 public:
  struct Entry {
    std::string key;
    uint64_t length = 0;
    uint64_t offset = 0;  // of the header
    uint32_t crc = 0;
    bool confirmed = false;
    catalog::Pin pin = catalog::Pin::kNone;
    int64_t expires_ns = 0;  // of the node's clock; 0: never
    uint32_t pins = 0;       // of those who look at it in place
  };
  using Inventory = std::map<Generation, Entry>;

  explicit Segment(std::shared_ptr<memory::Arena> arena) : arena_(std::move(arena)), extents_(arena_->size()) {}

  // Room for a header and `length` bytes; no entry yet. nullopt: no free extent is long enough.
  std::optional<uint64_t> allocate(uint64_t length);
  MutableBytes payload(uint64_t offset, uint64_t length) const;
  // The bytes are there: the entry can be read from now on.
  void publish(Generation generation, std::string_view key, uint64_t length, uint64_t offset, uint32_t crc);
  // An allocated extent that became no entry; nothing writes to it any more.
  void discard(uint64_t offset) { extents_.free(offset); }
  // Ends the entry: its generation word is cleared before its bytes are free. A reader under way fails its proof.
  // False: there is none.
  bool retire(Generation generation);
  void confirm(Generation generation, catalog::Pin pin, int64_t expires_ns);

  // Keeps the entry's bytes as they are until unpin(), also when it ends meanwhile. Pins count. False: no such entry.
  bool pin(Generation generation);
  void unpin(Generation generation);
  // Of entries that ended and are pinned.
  uint64_t held_bytes() const { return held_bytes_; }

  const Entry* find(Generation generation) const;
  const Inventory& inventory() const { return inventory_; }
  const ExtentAllocator& extents() const { return extents_; }

 private:
  std::shared_ptr<memory::Arena> arena_;
  ExtentAllocator extents_;
  Inventory inventory_;
  struct Held {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t pins = 0;
  };
  std::map<Generation, Held> held_;
  uint64_t held_bytes_ = 0;
};

}  // namespace moontide::store
