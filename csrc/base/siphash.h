// SipHash-2-4: a keyed 64-bit hash. Nobody without the key can make a tag that fits, so it authenticates short messages
// between processes that share the key.
#pragma once

#include <array>
#include <cstdint>

#include "base/bytes.h"

namespace moontide {

using SipKey = std::array<uint64_t, 2>;

uint64_t siphash(const SipKey& key, ByteView message);

}  // namespace moontide
