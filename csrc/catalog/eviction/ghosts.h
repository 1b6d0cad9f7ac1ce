// Keys that left lately, as fingerprints: 16 bytes each at half load, no lists.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace moontide::catalog {

// A fingerprint may stand for another key (about one lookup in a million), and a full bucket forgets its oldest key
// early: both cost a better choice, never more.
class Ghosts {
 public:
  struct Ghost {
    uint32_t fingerprint : 24 = 0;
    uint32_t note : 8 = 0;
    uint32_t stamp = 0;
  };

  // Room for so many; when it grows, which happens while a store fills for the first time, all are forgotten.
  void reserve(size_t count);
  // Remembers the key, in place of the one with the lowest stamp nearby. `stamp` grows, and is not 0.
  void insert(uint64_t key_hash, uint32_t stamp, uint8_t note = 0);
  // What was remembered of the key; it is forgotten.
  std::optional<Ghost> take(uint64_t key_hash);

 private:
  using Bucket = std::array<Ghost, 8>;

  // A key may be in either of two: so they fill evenly.
  std::array<Bucket*, 2> buckets_of(uint64_t key_hash);

  std::vector<Bucket> buckets_;
};

}  // namespace moontide::catalog
