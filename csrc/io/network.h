// Byte streams between processes, as the components see them: tcp and local sockets in a real process (io/socket),
// pairs within a process (io/inproc), the simulated network (io/sim_network).
//
// Addresses are text: "127.0.0.1:7700", "[::1]:7700", "host:7700", "unix:@name" (abstract local socket, network
// namespace scoped), "inproc:name".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "io/reactor.h"

namespace moontide::io {

// An owned file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  void reset();  // closes
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Where a stream puts what arrives. Called by the stream in turns of its reactor, never inside a call to the stream.
// The sink outlives the stream or is detached from it by Stream::close(), after which nothing is called any more.
class StreamSink {
 public:
  virtual ~StreamSink() = default;

  // Where the next bytes go; the stream asks anew before every read, so a receiver that withdraws memory simply gives
  // another span next time. An empty span pauses reading until Stream::resume().
  virtual MutableBytes want() = 0;

  // Asked right after want(): further places behind it, filled in their order by the same read. Returns how many of
  // `more` were set.
  virtual size_t want_more(std::span<MutableBytes> more) {
    (void)more;
    return 0;
  }

  // `count` bytes were put at the start of the span that want() gave last (and, once it was full, of those that
  // want_more() gave), 0 < count <= their size.
  virtual void arrived(size_t count) = 0;

  // Descriptors that came along (local sockets only), before the bytes they were sent with.
  virtual void arrived_fds(std::vector<Fd> fds) { (void)fds; }

  // The stream is over, by the peer, the network or the kernel; not called for the owner's own close().
  virtual void closed(Error cause) = 0;
};

// Who is at the other end, as the kernel says it (local sockets only).
struct PeerCredentials {
  int pid = -1;
  uint32_t uid = UINT32_MAX;
  Fd pidfd;  // readable once that process is dead
};

class Stream {
 public:
  // INVALID: the kernel found nothing at its address; the stream ends. Anything else: the stream is over.
  using Sent = std::move_only_function<void(Result<> outcome)>;

  // Closes without a word; pending writes are dropped. No callback runs after that.
  virtual ~Stream() = default;

  // Starts reading into `sink`; called again (also from within a callback of the old sink) to hand the stream to
  // another one, which gets every byte that the old one did not.
  virtual void start(StreamSink& sink) = 0;

  // want() may give room again.
  virtual void resume() = 0;

  // Queues a copy of `bytes`. Tries the socket at once.
  virtual void write(ByteView bytes) = 0;

  // Queues a reference: the memory must stay unchanged until `sent` runs. It runs in a later turn or inside this call,
  // exactly once unless the stream is destroyed first: with success once the stream will not read the memory again
  // (the kernel has a copy), with the cause of the end otherwise.
  virtual void write_reference(ByteView bytes, Sent sent) = 0;

  // The same for a copy of `head` and then several parts, sent together; `sent` runs once, for all of them.
  virtual void write_references(ByteView head, std::span<const ByteView> parts, Sent sent) {
    write(head);
    for (size_t i = 0; i + 1 < parts.size(); ++i) write_reference(parts[i], [](Result<>) {});
    write_reference(parts.empty() ? ByteView{} : parts.back(), std::move(sent));
  }

  // Queues a copy of `bytes` together with descriptors (duplicated; the caller keeps its own). Local sockets only:
  // elsewhere UNSUPPORTED and nothing is queued.
  virtual Result<> write_with_fds(ByteView bytes, const std::vector<int>& fds) = 0;

  // Bytes queued and not yet taken by the kernel: the back-pressure of this stream.
  virtual size_t pending() const = 0;

  // Ends the stream now: nothing of it touches any memory after this returns, and no callback runs. Pending `sent`
  // callbacks are dropped.
  virtual void close() = 0;

  virtual std::string local_address() const = 0;
  virtual std::string peer_address() const = 0;

  // UNSUPPORTED where the kernel cannot say.
  virtual Result<PeerCredentials> credentials() const = 0;

  // What only the two ends of this very connection know, where it is encrypted and stands; else empty. A proof that
  // includes it cannot be carried over to another connection.
  virtual Bytes binding() const { return {}; }
};

class Listener {
 public:
  // Stops listening; accepted streams go on.
  virtual ~Listener() = default;
  // With the port that the kernel chose where 0 was asked.
  virtual std::string address() const = 0;
};

struct NewLeave;

class Network {
 public:
  virtual ~Network() = default;
  using Accepted = std::move_only_function<void(std::unique_ptr<Stream> stream)>;
  using Connected = std::move_only_function<void(Result<std::unique_ptr<Stream>> stream)>;

  // Fails at once: INVALID (malformed), UNAVAILABLE (in use, cannot resolve: names the address and the system's error),
  // DENIED (an address off loopback where neither a cluster secret nor a waiver is configured).
  virtual Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted) = 0;

  // `connected` runs exactly once in a later turn, at the latest after `timeout_ns` (TIMED_OUT). Errors as in listen().
  // A name is resolved by the caller beforehand: only numeric addresses and "localhost" are accepted here, since
  // resolving blocks.
  virtual void connect(const std::string& address, int64_t timeout_ns, Connected connected) = 0;

  // The same from the local address `from` (its port does not count): where a host has several devices, it says which
  // one the bytes leave by. Empty, and in networks without devices: as connect().
  virtual void connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                            Connected connected) {
    (void)from;
    connect(address, timeout_ns, std::move(connected));
  }

  // Gives the process at the other end of a local stream a leave (io/leave.h). `over` runs once, in a later turn: the
  // holder gave it back, or is dead. UNAVAILABLE (no descriptors left), UNSUPPORTED in networks without processes.
  virtual Result<NewLeave> give_leave(const PeerCredentials& holder, Task over);
};

}  // namespace moontide::io
