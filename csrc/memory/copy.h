// The copy loops: an ordinary memcpy for what fits the caches, non-temporal stores for what does not.
#pragma once

#include <cstddef>

namespace moontide::memory {

// From this size on copy() writes around the caches.
inline constexpr size_t kStreamingBytes = 64u << 10;

// memcpy semantics (no overlap).
void copy(void* to, const void* from, size_t size);

// The non-temporal loop itself, any size and alignment; ordered before later stores when it returns.
void copy_streaming(void* to, const void* from, size_t size);

}  // namespace moontide::memory
