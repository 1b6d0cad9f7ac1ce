// Whether memory can be read, asked of the kernel: a look at it would end the process where nothing is there.
#pragma once

#include <cstddef>

#include "base/bytes.h"

namespace moontide::memory {

// The first byte of `bytes` in a page that this process cannot read; null: all can be. As slow as reading them.
const std::byte* first_missing(ByteView bytes);

}  // namespace moontide::memory
