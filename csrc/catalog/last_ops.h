// The last operation on keys that have no live object: what decides whether an entry that a node reports is news or
// was removed meanwhile.
//
// Bounded: of the oldest endings only the highest generation is kept (`forgotten`). An entry that is not newer than
// that may be one of the forgotten, so it is not adopted: past the bound the pool loses cache, never correctness.
// Keys are kept as hashes; a collision has the same harmless effect.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <utility>

#include "base/id.h"

namespace moontide::catalog {

class LastOps {
 public:
  explicit LastOps(size_t max_keys) : max_keys_(max_keys) {}

  // Whatever the key had up to `generation` is over.
  void ended(uint64_t key_hash, Generation generation);
  // May an entry of this key and generation still be alive?
  bool newer(uint64_t key_hash, Generation generation) const;
  void clear();
  size_t size() const { return endings_.size(); }

 private:
  size_t max_keys_;
  std::unordered_map<uint64_t, Generation> endings_;
  std::deque<std::pair<uint64_t, Generation>> order_;  // oldest first; an overwritten ending leaves a dead record
  Generation forgotten_;
};

}  // namespace moontide::catalog
