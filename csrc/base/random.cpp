#include "base/random.h"

#include <sys/random.h>

#include <bit>
#include <string>

#include "base/status.h"

namespace moontide {

void Random::fill(MutableBytes into) {
  while (!into.empty()) {
    uint64_t word = next();
    size_t n = std::min(into.size(), sizeof word);
    std::memcpy(into.data(), &word, n);
    into = into.subspan(n);
  }
}

SeededRandom::SeededRandom(uint64_t seed) {
  for (uint64_t& word : state_) {  // splitmix64 spreads small seeds over the whole state
    seed += 0x9e3779b97f4a7c15;
    uint64_t z = seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    word = z ^ (z >> 31);
  }
}

uint64_t SeededRandom::next() {
  uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
  uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

uint64_t SystemRandom::next() {
  if (left_ == 0) {
    ssize_t got = getrandom(buffer_, sizeof buffer_, 0);
    MT_CHECK(got == static_cast<ssize_t>(sizeof buffer_), "getrandom returned " + std::to_string(got));
    left_ = std::size(buffer_);
  }
  return buffer_[--left_];
}

}  // namespace moontide
