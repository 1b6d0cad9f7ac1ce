// Limit of cross-memory attach: process_vm_readv / process_vm_writev against another process, with no protocol at all.
//   cma SIZE COUNT POOL ITERATIONS ORDER [LOOP...]      LOOP: "readv|writev PIECE_KIB x PIECES_PER_CALL"
#include <sys/uio.h>
#include <sys/wait.h>

#include "limits.h"

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
  size_t n = 0, bytes = 0;
  for (size_t i = 0; i < s->count; i++) {
    for (size_t at = 0; at < s->size; at += piece) {
      size_t len = s->size - at < piece ? s->size - at : piece;
      k->l[n] = (struct iovec){k->local + base + i * s->size + at, len};
      k->r[n++] = (struct iovec){k->remote + base + s->order[i] * s->size + at, len};
      bytes += len;
      if (n == per_call || (i + 1 == s->count && at + len == s->size)) {
        if (call(k->pid, k->l, n, k->r, n, 0) != (ssize_t)bytes) die("cross-memory attach");
        n = bytes = 0;
      }
    }
  }
}

static void measure(const Link* k, const char* loop) {
  const Shape* s = k->shape;
  char verb[16];
  size_t piece_kib, per_call;
  if (sscanf(loop, "%15s %zu x %zu", verb, &piece_kib, &per_call) != 3 || piece_kib == 0 || per_call == 0 ||
      per_call > 1024) {
    fprintf(stderr, "not a loop: %s\n", loop);
    exit(2);
  }
  CmaFn call = strcmp(verb, "writev") == 0 ? process_vm_writev : process_vm_readv;
  double* t = malloc((size_t)s->iterations * sizeof *t);
  for (int i = -warm_ups(s); i < s->iterations; i++) {
    double start = now_us();
    batch(k, call, window_at(s, i < 0 ? 0 : i), piece_kib * KIB, per_call);
    if (i >= 0) t[i] = now_us() - start;
  }
  report(loop, t, s->iterations);
  free(t);
}

int main(int argc, char** argv) {
  Shape s = shape_of(&argc, &argv);
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
  batch(&k, process_vm_readv, 0, 64 * KIB, 16);
  int arrived = local[0] == 3 && local[s.size * s.count - 1] == 3;
  for (int i = 0; i < argc; i++) measure(&k, argv[i]);
  kill(other, SIGKILL);
  waitpid(other, NULL, 0);
  return arrived ? 0 : 1;
}
