#include "memory/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moontide::memory {

#if defined(__x86_64__)

namespace {

__attribute__((target("avx2"))) void stream_avx2(std::byte* to, const std::byte* from, size_t size) {
  size_t head = (32 - reinterpret_cast<uintptr_t>(to) % 32) % 32;
  if (head > size) head = size;
  std::memcpy(to, from, head);
  to += head, from += head, size -= head;
  for (; size >= 128; to += 128, from += 128, size -= 128) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + 1024, _MM_HINT_NTA);
    _mm_prefetch(reinterpret_cast<const char*>(from) + 1088, _MM_HINT_NTA);
    for (int i = 0; i < 4; ++i) {
      auto value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + i);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + i, value);
    }
  }
  _mm_sfence();
  std::memcpy(to, from, size);
}

}  // namespace

void copy_streaming(void* to, const void* from, size_t size) {
  static const bool kAvx2 = __builtin_cpu_supports("avx2");
  if (!kAvx2) {
    std::memcpy(to, from, size);
    return;
  }
  stream_avx2(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), size);
}

#else

void copy_streaming(void* to, const void* from, size_t size) { std::memcpy(to, from, size); }

#endif

void copy(void* to, const void* from, size_t size) {
  if (size >= kStreamingBytes) {
    copy_streaming(to, from, size);
  } else if (size != 0) {
    std::memcpy(to, from, size);
  }
}

}  // namespace moontide::memory
