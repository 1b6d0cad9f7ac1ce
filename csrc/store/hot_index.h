// Where a hot cache has which entry: a table that its node writes and the processes of the host read, as they read any
// memory of a node. It proves nothing: whoever finds an entry by it proves the entry itself. So it needs no lock, and a
// node that stops while it writes leaves a hint that is wrong at worst.
//
// Buckets of 64 bytes; a generation belongs to one of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/bytes.h"
#include "base/id.h"

namespace moontide::store {

struct HotSlot {
  uint64_t sequence = 0;
  uint32_t term = 0;
  uint32_t place = 0;  // offset of the entry's header / 64, plus one; 0: nothing here
};

inline constexpr size_t kHotBucketBytes = 64;
inline constexpr size_t kHotSlots = kHotBucketBytes / sizeof(HotSlot);

// Of `buckets` > 0.
size_t hot_bucket(Generation generation, size_t buckets);

// The offset of its header, by a bucket that was read.
std::optional<uint64_t> find_in_bucket(ByteView bucket, Generation generation);

// The node's side. Single-threaded.
class HotIndex {
 public:
  // `memory`: whole buckets of zeros, 64-byte aligned; outlives the index.
  explicit HotIndex(MutableBytes memory) : memory_(memory) {}

  size_t buckets() const { return memory_.size() / kHotBucketBytes; }
  // `offset`: a multiple of 64. Where the bucket is full, one that has to leave it first: add it again then.
  std::optional<Generation> add(Generation generation, uint64_t offset);
  void remove(Generation generation);

 private:
  std::array<std::byte*, kHotSlots> slots_of(Generation generation) const;
  MutableBytes memory_;
};

}  // namespace moontide::store
