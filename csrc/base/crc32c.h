// CRC-32C (Castagnoli) of memory: the proof that the bytes which arrived are those that were put.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace moontide {

// Continues from `seed` (0 to start): crc32c(b, crc32c(a)) == crc32c(a ++ b). Uses SSE4.2 where the CPU has it.
uint32_t crc32c(ByteView bytes, uint32_t seed = 0);

// The table form, for machines without the instruction and for tests.
uint32_t crc32c_portable(ByteView bytes, uint32_t seed = 0);

}  // namespace moontide
