// Limit of lent memory: how fast one core copies out of (or into) pages that another process wrote, with no protocol at
// all.
//   copy SIZE COUNT POOL ITERATIONS ORDER [LOOP...]      LOOP: a name from the table below; none: all
#include <immintrin.h>
#include <sys/wait.h>

#include "limits.h"

typedef void (*CopyFn)(uint8_t*, const uint8_t*, size_t);

static void copy_memcpy(uint8_t* d, const uint8_t* s, size_t n) { memcpy(d, s, n); }

static void copy_rep_movsb(uint8_t* d, const uint8_t* s, size_t n) {
  __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n)::"memory");
}

// Streaming stores leave the destination out of the caches: no read for ownership. Sizes are multiples of 256 here.
__attribute__((target("avx2"))) static void copy_nontemporal(uint8_t* d, const uint8_t* s, size_t n) {
  for (size_t i = 0; i < n; i += 128) {
    _mm_prefetch((const char*)s + i + 1024, _MM_HINT_NTA);
    _mm_prefetch((const char*)s + i + 1088, _MM_HINT_NTA);
    __m256i a = _mm256_loadu_si256((const __m256i*)(s + i)), b = _mm256_loadu_si256((const __m256i*)(s + i + 32));
    __m256i c = _mm256_loadu_si256((const __m256i*)(s + i + 64)), e = _mm256_loadu_si256((const __m256i*)(s + i + 96));
    _mm256_stream_si256((__m256i*)(d + i), a), _mm256_stream_si256((__m256i*)(d + i + 32), b);
    _mm256_stream_si256((__m256i*)(d + i + 64), c), _mm256_stream_si256((__m256i*)(d + i + 96), e);
  }
  _mm_sfence();
}

__attribute__((target("avx512f"))) static void copy_nontemporal_512(uint8_t* d, const uint8_t* s, size_t n) {
  for (size_t i = 0; i < n; i += 256) {
    __m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + 64);
    __m512i c = _mm512_loadu_si512(s + i + 128), e = _mm512_loadu_si512(s + i + 192);
    _mm512_stream_si512((void*)(d + i), a), _mm512_stream_si512((void*)(d + i + 64), b);
    _mm512_stream_si512((void*)(d + i + 128), c), _mm512_stream_si512((void*)(d + i + 192), e);
  }
  _mm_sfence();
}

// Two pages at a time: more of the memory's banks are open at once than one stream keeps busy.
__attribute__((target("avx512f"))) static void copy_nontemporal_2_streams(uint8_t* d, const uint8_t* s, size_t n) {
  size_t half = n / 2;
  if (half % 128 != 0 || half < 8192) {
    copy_nontemporal_512(d, s, n);
    return;
  }
  for (size_t i = 0; i < half; i += 128) {
    __m512i a = _mm512_loadu_si512(s + i), b = _mm512_loadu_si512(s + i + 64);
    __m512i c = _mm512_loadu_si512(s + half + i), e = _mm512_loadu_si512(s + half + i + 64);
    _mm512_stream_si512((void*)(d + i), a), _mm512_stream_si512((void*)(d + i + 64), b);
    _mm512_stream_si512((void*)(d + half + i), c), _mm512_stream_si512((void*)(d + half + i + 64), e);
  }
  _mm_sfence();
}

static void measure(const char* name, CopyFn copy, const Shape* s, uint8_t* local, const uint8_t* remote) {
  double* t = malloc((size_t)s->iterations * sizeof *t);
  for (int k = -warm_ups(s); k < s->iterations; k++) {
    size_t base = window_at(s, k < 0 ? 0 : k);
    double start = now_us();
    for (size_t i = 0; i < s->count; i++)
      copy(local + base + i * s->size, remote + base + s->order[i] * s->size, s->size);
    if (k >= 0) t[k] = now_us() - start;
  }
  report(name, t, s->iterations);
  free(t);
}

static int has_avx2(void) { return __builtin_cpu_supports("avx2"); }
static int has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
static int always(void) { return 1; }

static const struct {
  const char* name;
  CopyFn copy;
  int (*usable)(void);
  size_t multiple;  // of this many bytes the entries must be
} loops[] = {
    {"memcpy", copy_memcpy, always, 1},
    {"rep movsb", copy_rep_movsb, always, 1},
    {"non-temporal avx2", copy_nontemporal, has_avx2, 128},
    {"non-temporal avx512", copy_nontemporal_512, has_avx512, 256},
    {"non-temporal avx512 in halves", copy_nontemporal_2_streams, has_avx512, 256},
};

int main(int argc, char** argv) {
  Shape s = shape_of(&argc, &argv);
  uint8_t* local = shared_memory(s.pool, 1);
  uint8_t* remote = shared_memory(s.pool, 2);
  pid_t other = fork();
  if (other == 0) {
    pin(1);
    memset(remote, 3, s.pool);
    _exit(0);
  }
  pin(0);
  waitpid(other, NULL, 0);
  for (size_t i = 0; i < sizeof loops / sizeof *loops; i++) {
    if (!wanted(loops[i].name, argc, argv) || !loops[i].usable() || s.size % loops[i].multiple != 0) continue;
    memset(local, 1, s.size * s.count);
    measure(loops[i].name, loops[i].copy, &s, local, remote);
    if (local[0] != 3 || local[s.size * s.count - 1] != 3) return 1;
  }
  return 0;
}
