// Limit of TCP on loopback: bytes of one batch through plain sockets, with an end mark and nothing else.
//   tcp SIZE COUNT POOL ITERATIONS ORDER read|write poll|sleep LOOP...      LOOP: "SOCKETS x CHUNK_KIB buffers
//   BUFFER_KIB"
// "write": core 0 sends, core 1 receives into place and answers one byte. "read": core 0 asks with one byte, core 1
// sends. "poll": both sides spin on non-blocking sockets. "sleep": the other side blocks; core 0 still spins.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "limits.h"

enum { MAX_SOCKETS = 4, MAX_IOV = 1024 };

typedef struct {
  const Shape* shape;
  size_t chunk;  // bytes per system call
  int sockets;   // entries (or chunks of them) go round over these
  int buffer;    // SO_SNDBUF and SO_RCVBUF; 0: the kernel's own tuning
  int spin_here, spin_there;
} Plan;

// One side's stream of pieces for one socket: where they lie, in order.
typedef struct {
  struct iovec* iov;
  size_t n, at;
} Pieces;

// Sizes are set before the connection exists, else the window scale is fixed without them.
static int tcp_socket(const Plan* p) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (fd < 0) die("socket");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  if (p->buffer == 0) return fd;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &p->buffer, sizeof p->buffer);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &p->buffer, sizeof p->buffer);
  return fd;
}

static void connect_pairs(int* here, int* there, const Plan* p) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int l = tcp_socket(p);
  if (bind(l, (struct sockaddr*)&a, sizeof a) || listen(l, 8) || getsockname(l, (struct sockaddr*)&a, &len))
    die("listen");
  for (int i = 0; i < p->sockets; i++) {
    here[i] = tcp_socket(p);
    if (connect(here[i], (struct sockaddr*)&a, sizeof a)) die("connect");
    there[i] = accept(l, NULL, NULL);
    if (there[i] < 0) die("accept");
  }
  close(l);
}

// Cuts the batch at `base` into pieces of at most `chunk` and deals them over the sockets; both sides deal alike.
static void deal(const Plan* p, uint8_t* memory, size_t base, int shuffled, Pieces* out) {
  const Shape* s = p->shape;
  for (int i = 0; i < p->sockets; i++) out[i].n = out[i].at = 0;
  size_t turn = 0;
  for (size_t i = 0; i < s->count; i++) {
    uint8_t* entry = memory + base + (shuffled ? s->order[i] : i) * s->size;
    for (size_t at = 0; at < s->size; at += p->chunk) {
      size_t len = s->size - at < p->chunk ? s->size - at : p->chunk;
      Pieces* q = &out[s->size < 64 * KIB ? (i / 64) % (size_t)p->sockets : turn++ % (size_t)p->sockets];
      q->iov[q->n++] = (struct iovec){entry + at, len};
    }
  }
}

// Moves one system call's worth on one socket; returns whether that socket's pieces are done.
static int step(int fd, Pieces* q, const Plan* p, int sending, int flags) {
  if (q->at == q->n) return 1;
  size_t n = 0, bytes = 0;
  while (q->at + n < q->n && n < MAX_IOV && (n == 0 || bytes + q->iov[q->at + n].iov_len <= p->chunk))
    bytes += q->iov[q->at + n++].iov_len;
  struct msghdr m = {.msg_iov = q->iov + q->at, .msg_iovlen = n};
  ssize_t done = sending ? sendmsg(fd, &m, flags | MSG_NOSIGNAL) : recvmsg(fd, &m, flags);
  if (done < 0) {
    if (errno == EAGAIN || errno == EINTR) return 0;
    die("socket");
  }
  if (done == 0) die("closed");
  while (done > 0) {
    struct iovec* v = &q->iov[q->at];
    size_t take = (size_t)done < v->iov_len ? (size_t)done : v->iov_len;
    v->iov_base = (uint8_t*)v->iov_base + take, v->iov_len -= take, done -= (ssize_t)take;
    if (v->iov_len == 0) q->at++;
  }
  return q->at == q->n;
}

static void move(int* fd, Pieces* q, const Plan* p, int sending, int spin) {
  // A sleeper with one socket may block in the call itself; with several it would block on the wrong one, so it spins
  // while bytes flow.
  int flags = spin || p->sockets > 1 ? MSG_DONTWAIT : 0;
  for (int left = 1; left;) {
    left = 0;
    for (int i = 0; i < p->sockets; i++) left |= !step(fd[i], &q[i], p, sending, flags);
  }
}

static void get_byte(int fd, int spin) {
  char c;
  while (recv(fd, &c, 1, spin ? MSG_DONTWAIT : 0) != 1)
    if (errno != EAGAIN && errno != EINTR) _exit(0);
}

static void put_byte(int fd) {
  if (send(fd, "", 1, MSG_NOSIGNAL) != 1) die("send");
}

static void pieces_of(Pieces* q, const Plan* p) {
  for (int i = 0; i < p->sockets; i++)
    q[i].iov = malloc((p->shape->count * (p->shape->size / p->chunk + 1) + 1) * sizeof(struct iovec));
}

// The other side: for each iteration, receive and answer, or wait for the question and send.
static void other_side(int* fd, const Plan* p, uint8_t* memory, int reading) {
  Pieces q[MAX_SOCKETS];
  pieces_of(q, p);
  for (int k = -warm_ups(p->shape);; k++) {
    deal(p, memory, window_at(p->shape, k < 0 ? 0 : k), 1, q);
    if (reading) {
      get_byte(fd[0], p->spin_there);
      move(fd, q, p, 1, p->spin_there);
    } else {
      move(fd, q, p, 0, p->spin_there);
      put_byte(fd[0]);
    }
  }
}

static void measure(const char* name, const Plan* p, int reading, uint8_t* local, uint8_t* remote) {
  int here[MAX_SOCKETS], there[MAX_SOCKETS];
  connect_pairs(here, there, p);
  pid_t other = fork();
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(1);
    for (int i = 0; i < p->sockets; i++) close(here[i]);
    touch_again(remote, p->shape->pool);
    other_side(there, p, remote, reading);
    _exit(0);
  }
  for (int i = 0; i < p->sockets; i++) close(there[i]);
  Pieces q[MAX_SOCKETS];
  pieces_of(q, p);
  int n = p->shape->iterations;
  double* t = malloc((size_t)n * sizeof *t);
  for (int k = -warm_ups(p->shape); k < n; k++) {
    deal(p, local, window_at(p->shape, k < 0 ? 0 : k), 0, q);
    // Give a sleeper the time to fall asleep, else its wake-up is not in the figure.
    if (!p->spin_there)
      for (double until = now_us() + 150; now_us() < until;) continue;
    double start = now_us();
    if (reading) put_byte(here[0]);
    move(here, q, p, !reading, p->spin_here);
    if (!reading) get_byte(here[0], p->spin_here);
    if (k >= 0) t[k] = now_us() - start;
  }
  kill(other, SIGKILL);
  waitpid(other, NULL, 0);
  report(name, t, n);
  for (int i = 0; i < p->sockets; i++) close(here[i]), free(q[i].iov);
  free(t);
}

int main(int argc, char** argv) {
  Shape s = shape_of(&argc, &argv);
  if (argc < 3) return 2;
  int reading = strcmp(argv[0], "read") == 0, sleeps = strcmp(argv[1], "sleep") == 0;
  uint8_t* local = shared_memory(s.pool, 1);
  uint8_t* remote = shared_memory(s.pool, 2);
  pin(0);
  for (int i = 2; i < argc; i++) {
    Plan p = {.shape = &s, .spin_here = 1, .spin_there = !sleeps};
    size_t chunk_kib;
    if (sscanf(argv[i], "%d x %zu buffers %d", &p.sockets, &chunk_kib, &p.buffer) != 3 || p.sockets < 1 ||
        p.sockets > MAX_SOCKETS || chunk_kib == 0) {
      fprintf(stderr, "not a loop: %s\n", argv[i]);
      return 2;
    }
    p.chunk = chunk_kib * KIB, p.buffer *= 1024;
    measure(argv[i], &p, reading, local, remote);
    uint8_t* landed = reading ? local : remote;
    if (landed[0] != (reading ? 2 : 1) || landed[s.size * s.count - 1] != landed[0]) return 1;
  }
  return 0;
}
