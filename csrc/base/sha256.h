// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), for challenges that must also work where no crypto library is. Not
// made for bulk.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace moontide {

using Sha256Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(ByteView bytes);
  // Once, at the end.
  Sha256Digest finish();

 private:
  void block(const std::byte* bytes);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> rest_{};
  size_t rest_size_ = 0;
  uint64_t total_ = 0;
};

Sha256Digest sha256(ByteView bytes);
Sha256Digest hmac_sha256(ByteView key, ByteView message);

// Takes as long for the first byte that differs as for the last: for proofs that a stranger presents.
bool equal_in_constant_time(ByteView a, ByteView b);

}  // namespace moontide
