// Randomness is a parameter too: the simulation passes a seeded source, everyone else the kernel's.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace moontide {

class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t next() = 0;
  void fill(MutableBytes into);
  // Uniform in [0, bound), bound > 0 (a bias of bound / 2^64 is accepted).
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }
};

// xoshiro256**: reproducible, not for secrets.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed);
  uint64_t next() override;

 private:
  uint64_t state_[4];
};

// getrandom(2), buffered: fit for identities and tickets.
class SystemRandom final : public Random {
 public:
  uint64_t next() override;

 private:
  uint64_t buffer_[32];
  size_t left_ = 0;
};

}  // namespace moontide
