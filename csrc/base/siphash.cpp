#include "base/siphash.h"

#include <bit>

namespace moontide {
namespace {

struct State {
  uint64_t v0, v1, v2, v3;

  void round() {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  }
  void absorb(uint64_t word) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  }
};

}  // namespace

uint64_t siphash(const SipKey& key, ByteView message) {
  // the constants of the definition: "somepseudorandomlygeneratedbytes"
  State state{key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
              key[1] ^ 0x7465646279746573};
  uint64_t last = static_cast<uint64_t>(message.size()) << 56;
  while (message.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, message.data(), 8);
    state.absorb(word);
    message = message.subspan(8);
  }
  for (size_t i = 0; i < message.size(); ++i) last |= std::to_integer<uint64_t>(message[i]) << (8 * i);
  state.absorb(last);
  state.v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) state.round();
  return state.v0 ^ state.v1 ^ state.v2 ^ state.v3;
}

}  // namespace moontide
