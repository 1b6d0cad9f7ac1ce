#include "memory/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace moontide::memory {

#if defined(__x86_64__)

namespace {

using StreamFn = void (*)(std::byte*, const std::byte*, size_t);

// What is copied the ordinary way first, so that the stores after it are aligned.
size_t head_of(const std::byte* to, size_t alignment, size_t size) {
  return std::min((alignment - reinterpret_cast<uintptr_t>(to) % alignment) % alignment, size);
}

__attribute__((target("avx2"))) void stream_avx2(std::byte* to, const std::byte* from, size_t size) {
  const size_t head = head_of(to, 32, size);
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

// Both halves at a time: two streams keep more of the memory's banks busy than one does.
__attribute__((target("avx512f"))) void stream_avx512(std::byte* to, const std::byte* from, size_t size) {
  const size_t head = head_of(to, 64, size);
  std::memcpy(to, from, head);
  to += head, from += head, size -= head;
  const size_t half = size / 256 * 128;
  for (size_t i = 0; i < half; i += 128) {
    const __m512i a = _mm512_loadu_si512(from + i), b = _mm512_loadu_si512(from + i + 64);
    const __m512i c = _mm512_loadu_si512(from + half + i), d = _mm512_loadu_si512(from + half + i + 64);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 64), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + half + i), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + half + i + 64), d);
  }
  _mm_sfence();
  std::memcpy(to + 2 * half, from + 2 * half, size - 2 * half);
}

void copy_plain(std::byte* to, const std::byte* from, size_t size) { std::memcpy(to, from, size); }

StreamFn best_stream() {
  if (__builtin_cpu_supports("avx512f")) return stream_avx512;
  return __builtin_cpu_supports("avx2") ? stream_avx2 : copy_plain;
}

}  // namespace

void copy_streaming(void* to, const void* from, size_t size) {
  static const StreamFn kBest = best_stream();
  kBest(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), size);
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
