#include "base/sha256.h"

#include <algorithm>
#include <bit>

namespace moontide {
namespace {

constexpr uint32_t kRounds[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return std::byteswap(value);
}

template <class T>
void put_big_endian(T value, std::byte* at) {
  value = std::byteswap(value);
  std::memcpy(at, &value, sizeof value);
}

}  // namespace

void Sha256::block(const std::byte* bytes) {
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i) w[i] = big_endian(bytes + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t low = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t high = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + low + w[i - 7] + high;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t first =
        h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
    const uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const uint32_t mixed[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += mixed[i];
}

void Sha256::update(ByteView bytes) {
  total_ += bytes.size();
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), rest_.size() - rest_size_);
    std::memcpy(rest_.data() + rest_size_, bytes.data(), count);
    rest_size_ += count;
    bytes = bytes.subspan(count);
    if (rest_size_ < rest_.size()) return;
    block(rest_.data());
    rest_size_ = 0;
  }
}

Sha256Digest Sha256::finish() {
  const uint64_t bits = total_ * 8;
  std::array<std::byte, 72> padding{std::byte{0x80}};
  // a one, zeros up to 8 bytes below a full block, the length
  const size_t zeros = (rest_size_ < 56 ? 55 : 119) - rest_size_;
  put_big_endian(bits, padding.data() + 1 + zeros);
  update(ByteView(padding).first(1 + zeros + sizeof bits));
  Sha256Digest digest;
  for (size_t i = 0; i < state_.size(); ++i) put_big_endian(state_[i], digest.data() + 4 * i);
  return digest;
}

Sha256Digest sha256(ByteView bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Sha256Digest hmac_sha256(ByteView key, ByteView message) {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    std::ranges::copy(sha256(key), padded.begin());
  } else {
    std::ranges::copy(key, padded.begin());
  }
  auto inner_pad = padded, outer_pad = padded;
  for (std::byte& byte : inner_pad) byte ^= std::byte{0x36};
  for (std::byte& byte : outer_pad) byte ^= std::byte{0x5c};
  Sha256 inner;
  inner.update(inner_pad);
  inner.update(message);
  Sha256 outer;
  outer.update(outer_pad);
  outer.update(inner.finish());
  return outer.finish();
}

bool equal_in_constant_time(ByteView a, ByteView b) {
  if (a.size() != b.size()) return false;
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | std::to_integer<uint8_t>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace moontide
