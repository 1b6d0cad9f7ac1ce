// Shared by the bare loops that bound the bench: time, pinning, memory of the kind every contestant uses, statistics,
// output. Each program forks the "other side" itself, pins itself to core 0 and the other to core 1, and prints one
// JSON line per loop.
#pragma once

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KIB 1024UL
#define MIB (1024UL * KIB)

static void die(const char* what) {
  perror(what);
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

// Pins the calling thread; on a machine with one core both sides share it, and the bench says so.
static void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core % (int)sysconf(_SC_NPROCESSORS_ONLN), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("sched_setaffinity");
}

// Shared memory file, mapped and touched: what the contestants' buffers are made of, too.
static uint8_t* shared_memory(size_t bytes, uint8_t fill) {
  int fd = memfd_create("limit", 0);
  if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) die("memfd");
  uint8_t* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) die("mmap");
  memset(p, fill, bytes);
  close(fd);
  return p;
}

// After a fork: the child has the memory but none of its pages yet, and must not pay for them while it is measured.
static inline void touch_again(uint8_t* memory, size_t bytes) {
  volatile uint8_t* page = memory;
  for (size_t at = 0; at < bytes; at += 4 * KIB) page[at] = page[at];
}

// The shape of one batch: `count` entries of `size` bytes; `window` advances through `pool` bytes when it is larger
// than a batch.
typedef struct {
  size_t size, count, pool;
  int iterations;
  uint32_t* order;  // entry i of the remote side lies at slot order[i] of the window
} Shape;

// Takes the arguments common to all programs off the front: SIZE COUNT POOL ITERATIONS ORDER. ORDER "shuffled" deals
// the remote entries by a fixed shuffle, so that nothing can be merged; "straight" leaves them side by side.
static Shape shape_of(int* argc, char*** argv) {
  char** a = *argv + 1;
  if (*argc < 6) {
    fprintf(stderr, "usage: SIZE COUNT POOL ITERATIONS shuffled|straight ...\n");
    exit(2);
  }
  Shape s = {strtoul(a[0], NULL, 10), strtoul(a[1], NULL, 10), strtoul(a[2], NULL, 10), atoi(a[3]), NULL};
  if (s.size == 0 || s.count == 0 || s.iterations <= 0 || s.pool < s.size * s.count) {
    fprintf(stderr, "SIZE, COUNT and ITERATIONS are positive, POOL is at least SIZE * COUNT\n");
    exit(2);
  }
  s.order = malloc(s.count * sizeof *s.order);
  for (size_t i = 0; i < s.count; i++) s.order[i] = (uint32_t)i;
  uint64_t x = 88172645463325252ULL;
  for (size_t i = s.count - 1; i > 0 && strcmp(a[4], "shuffled") == 0; i--) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    size_t j = x % (i + 1);
    uint32_t t = s.order[i];
    s.order[i] = s.order[j], s.order[j] = t;
  }
  *argc -= 6, *argv += 6;
  return s;
}

// Whether a loop was asked for: named among the rest of the arguments, or nothing is.
static inline int wanted(const char* loop, int argc, char** argv) {
  for (int i = 0; i < argc; i++)
    if (strcmp(argv[i], loop) == 0) return 1;
  return argc == 0;
}

static size_t window_at(const Shape* s, int iteration) {
  size_t batch = s->size * s->count;
  return (size_t)iteration % (s->pool / batch) * batch;
}

// Batches before the clock. The memory is touched already; what is large warms everything else up in one go.
static inline int warm_ups(const Shape* s) { return s->size * s->count > 16 * MIB ? 1 : 3; }

static int by_value(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

// Prints median and 99th percentile of `n` samples (microseconds for one batch); sorts them.
static void report(const char* loop, double* samples, int n) {
  qsort(samples, (size_t)n, sizeof *samples, by_value);
  int p99 = (int)(0.99 * n);
  printf("{\"loop\": \"%s\", \"p50_us\": %.3f, \"p99_us\": %.3f}\n", loop, samples[n / 2],
         samples[p99 < n ? p99 : n - 1]);
  fflush(stdout);
}
