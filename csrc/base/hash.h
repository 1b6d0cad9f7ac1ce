// One stable 64-bit hash of bytes for tables, log lines and entry headers. Not for secrets.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace moontide {

uint64_t hash64(ByteView bytes);

struct BytesHash {
  using is_transparent = void;
  size_t operator()(std::string_view key) const noexcept { return hash64(as_bytes(key)); }
};

}  // namespace moontide
