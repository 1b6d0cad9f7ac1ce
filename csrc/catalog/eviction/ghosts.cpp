#include "catalog/eviction/ghosts.h"

#include <bit>

namespace moontide::catalog {
namespace {

uint32_t fingerprint_of(uint64_t key_hash) { return static_cast<uint32_t>(key_hash >> 40 ^ key_hash) & 0xFFFFFF; }

}  // namespace

void Ghosts::reserve(size_t count) {
  size_t wanted = std::bit_ceil(count / std::tuple_size_v<Bucket> + 1) * 2;
  if (buckets_.size() < wanted) buckets_.assign(wanted, Bucket{});
}

void Ghosts::insert(uint64_t key_hash, uint32_t stamp, uint8_t note) {
  if (buckets_.empty()) reserve(1);
  const auto buckets = buckets_of(key_hash);
  Ghost* place = buckets[0]->data();
  for (Bucket* bucket : buckets) {
    for (Ghost& ghost : *bucket) {
      if (ghost.stamp < place->stamp) place = &ghost;
    }
  }
  *place = {.fingerprint = fingerprint_of(key_hash), .note = note, .stamp = stamp};
}

std::optional<Ghosts::Ghost> Ghosts::take(uint64_t key_hash) {
  if (buckets_.empty()) return std::nullopt;
  uint32_t fingerprint = fingerprint_of(key_hash);
  for (Bucket* bucket : buckets_of(key_hash)) {
    for (Ghost& ghost : *bucket) {
      if (ghost.fingerprint != fingerprint || ghost.stamp == 0) continue;
      Ghost found = ghost;
      ghost = {};
      return found;
    }
  }
  return std::nullopt;
}

std::array<Ghosts::Bucket*, 2> Ghosts::buckets_of(uint64_t key_hash) {
  uint64_t mixed = key_hash * 0x9E3779B97F4A7C15u;
  size_t mask = buckets_.size() - 1;
  return {&buckets_[mixed >> 32 & mask], &buckets_[mixed >> 8 & mask]};
}

}  // namespace moontide::catalog
