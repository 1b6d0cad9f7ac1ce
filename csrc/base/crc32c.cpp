#include "base/crc32c.h"

#include <array>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moontide {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    table[i] = value;
  }
  return table;
}
constexpr auto kTable = make_table();

#if defined(__x86_64__)

// Three streams of kLane bytes run at once, because the crc instruction has a latency of three cycles and a
// throughput of one; shifting a lane's value over the lanes behind it is a multiplication by a power of x.
constexpr size_t kLane = 4096;  // a multiple of 8

// x^(8n) modulo the polynomial in the reflected representation, as a table of 4 x 256 for one multiplication.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

uint32_t shift_by_zeros(uint32_t crc, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTable[crc & 0xff];
  return crc;
}

ShiftTable make_shift_table(size_t bytes) {
  ShiftTable table{};
  for (int byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) table[byte][value] = 0;
    for (int bit = 0; bit < 8; ++bit) table[byte][1u << bit] = shift_by_zeros(1u << (byte * 8 + bit), bytes);
    for (uint32_t value = 1; value < 256; ++value) {
      uint32_t low = value & -value;
      if (low != value) table[byte][value] = table[byte][low] ^ table[byte][value ^ low];
    }
  }
  return table;
}

uint32_t shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(ByteView bytes, uint32_t seed) {
  static const ShiftTable kShiftOne = make_shift_table(kLane);
  const std::byte* p = bytes.data();
  size_t left = bytes.size();
  uint64_t crc = ~seed;
  auto word = [](const std::byte* at) {
    uint64_t value;
    std::memcpy(&value, at, 8);
    return value;
  };
  while (left >= 3 * kLane) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLane; i += 8) {
      crc = _mm_crc32_u64(crc, word(p + i));
      second = _mm_crc32_u64(second, word(p + kLane + i));
      third = _mm_crc32_u64(third, word(p + 2 * kLane + i));
    }
    crc = shift(kShiftOne, static_cast<uint32_t>(crc)) ^ second;
    crc = shift(kShiftOne, static_cast<uint32_t>(crc)) ^ third;
    p += 3 * kLane;
    left -= 3 * kLane;
  }
  for (; left >= 8; p += 8, left -= 8) crc = _mm_crc32_u64(crc, word(p));
  auto narrow = static_cast<uint32_t>(crc);
  for (; left > 0; ++p, --left) narrow = _mm_crc32_u8(narrow, std::to_integer<uint8_t>(*p));
  return ~narrow;
}

#endif

}  // namespace

uint32_t crc32c_portable(ByteView bytes, uint32_t seed) {
  uint32_t crc = ~seed;
  for (std::byte b : bytes) crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<uint32_t>(b)) & 0xff];
  return ~crc;
}

uint32_t crc32c(ByteView bytes, uint32_t seed) {
#if defined(__x86_64__)
  static const bool kHasInstruction = __builtin_cpu_supports("sse4.2");
  if (kHasInstruction) return crc32c_sse42(bytes, seed);
#endif
  return crc32c_portable(bytes, seed);
}

}  // namespace moontide
