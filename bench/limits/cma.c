// Limit of cross-memory attach: process_vm_readv / process_vm_writev against another process, with no protocol at all.
//   cma SIZE COUNT POOL ITERATIONS
#include "limits.h"

#include <sys/uio.h>
#include <sys/wait.h>

typedef ssize_t (*CmaFn)(pid_t, const struct iovec*, unsigned long, const struct iovec*, unsigned long, unsigned long);

typedef struct {
  const Shape* shape;
  uint8_t *local, *remote;
  pid_t pid;
  struct iovec *l, *r;
} Link;

// One batch in calls of at most `piece` bytes and `per_call` pieces.
static void batch(const Link* k, CmaFn call, size_t base, size_t piece, size_t per_call) {
  const Shape* s = k->shape;
  size_t n = 0;
  for (size_t i = 0; i < s->count; i++) {
    for (size_t at = 0; at < s->size; at += piece) {
      size_t len = s->size - at < piece ? s->size - at : piece;
      k->l[n] = (struct iovec){k->local + base + i * s->size + at, len};
      k->r[n++] = (struct iovec){k->remote + base + s->order[i] * s->size + at, len};
      if (n == per_call) {
        if (call(k->pid, k->l, n, k->r, n, 0) < 0) die("cross-memory attach");
        n = 0;
      }
    }
  }
  if (n > 0 && call(k->pid, k->l, n, k->r, n, 0) < 0) die("cross-memory attach");
}

static void measure(const Link* k, CmaFn call, const char* verb, size_t piece, size_t per_call) {
  const Shape* s = k->shape;
  double* t = malloc((size_t)s->iterations * sizeof *t);
  for (int i = -3; i < s->iterations; i++) {
    double start = now_us();
    batch(k, call, window_at(s, i < 0 ? 0 : i), piece, per_call);
    if (i >= 0) t[i] = now_us() - start;
  }
  char name[96];
  snprintf(name, sizeof name, "%s %zu KiB x %zu per call", verb, piece / KIB, per_call);
  report(name, t, s->iterations);
  free(t);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  Shape s = shape_of(argv + 1);
  uint8_t* local = shared_memory(s.pool, 1);
  uint8_t* remote = shared_memory(s.pool, 2);
  int ready[2];
  if (pipe(ready) != 0) die("pipe");
  pid_t other = fork();
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pin(1);
    memset(remote, 3, s.pool);
    if (write(ready[1], "", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  pin(0);
  char c;
  if (read(ready[0], &c, 1) != 1) die("the other side");
  // This side's own mapping of the remote pages goes, so that only the system call can reach them.
  Link k = {&s, local, remote, other, malloc(1024 * sizeof(struct iovec)), malloc(1024 * sizeof(struct iovec))};
  munmap(remote, s.pool);
  if (s.size < 64 * KIB) {
    size_t calls[] = {1, 16, 64, 256, 1024};
    for (int i = 0; i < 5 && (i == 0 || calls[i - 1] < s.count); i++) {
      measure(&k, process_vm_readv, "process_vm_readv", s.size, calls[i]);
      measure(&k, process_vm_writev, "process_vm_writev", s.size, calls[i]);
    }
  } else {
    for (size_t piece = 64 * KIB; piece <= 1 * MIB; piece *= 4) {
      measure(&k, process_vm_readv, "process_vm_readv", piece, 1);
      measure(&k, process_vm_readv, "process_vm_readv", piece, 16);
      measure(&k, process_vm_writev, "process_vm_writev", piece, 1);
    }
  }
  kill(other, SIGKILL);
  waitpid(other, NULL, 0);
  return local[0] == 3 ? 0 : 1;
}
