#include "base/hash.h"

#include <bit>

namespace moontide {
namespace {

uint64_t mix(uint64_t a, uint64_t b) {
  auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

uint64_t hash64(ByteView bytes) {
  constexpr uint64_t kA = 0x9e3779b97f4a7c15, kB = 0xe7037ed1a0b428db;
  uint64_t state = mix(bytes.size() ^ kA, kB);
  while (bytes.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    state = mix(state ^ word, kB) + std::rotl(state, 23);
    bytes = bytes.subspan(8);
  }
  uint64_t tail = 0;
  if (!bytes.empty()) std::memcpy(&tail, bytes.data(), bytes.size());
  state = mix(state ^ tail, kA);
  return mix(state ^ (state >> 32), kB);
}

}  // namespace moontide
