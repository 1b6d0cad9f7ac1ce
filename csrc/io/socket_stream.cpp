#include "io/socket_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/socket_address.h"

namespace moontide::io {
namespace {

// With this much room at the sink a read goes there alone: what follows is likely payload, too.
constexpr size_t kDirectBytes = 16u << 10;
constexpr size_t kReadMax = 512u << 10;
constexpr size_t kPiecesMax = 258;  // of one read: the places of a slice, and the lookahead

}  // namespace

SocketStream::SocketStream(EpollReactor& reactor, std::shared_ptr<SocketShared> shared, Fd fd, bool local,
                           std::shared_ptr<size_t> accepted)
    : reactor_(reactor), shared_(std::move(shared)), fd_(std::move(fd)), local_(local), accepted_(std::move(accepted)) {
  if (!local_) {
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
}

SocketStream::~SocketStream() {
  close();
  if (accepted_) --*accepted_;
}

void SocketStream::close() {
  *alive_ = false;
  if (std::exchange(put_off_, false)) {
    reactor_.forget(*this);
    send_last();
  }
  if (watch_ != 0) reactor_.unwatch(std::exchange(watch_, 0));
  fd_.reset();
  sink_ = nullptr;
  write_over_ = true;
  pending_ = 0;
  leftover_.clear();
  leftover_used_ = 0;
  // Callbacks may own what owns this stream: let them go only when nothing here is touched any more.
  auto queue = std::exchange(queue_, {});
  auto completed = std::exchange(completed_, {});
}

void SocketStream::start(StreamSink& sink) {
  if (!fd_) return;
  sink_ = &sink;
  resume();
}

void SocketStream::resume() {
  if (!fd_ || sink_ == nullptr) return;
  paused_ = false;
  hung_up_ = false;
  if (leftover_used_ < leftover_.size()) post_pump();
  update_interest();
}

void SocketStream::post_pump() {
  reactor_.post([this, alive = alive_] {
    if (*alive && sink_ != nullptr && !paused_) read_turn();
  });
}

void SocketStream::update_interest() {
  if (!fd_) return;
  const bool reading = sink_ != nullptr && !paused_;
  const uint32_t events = (reading ? EPOLLIN : 0u) | (queue_.empty() || put_off_ ? 0u : EPOLLOUT);
  if (watch_ != 0) {
    reactor_.modify(watch_, events);
    return;
  }
  if (events == 0 || (hung_up_ && !reading)) return;
  auto watch = reactor_.watch(fd_.get(), events, *this);
  if (watch) {
    watch_ = *watch;
    return;
  }
  reactor_.post([this, alive = alive_, cause = watch.error()]() mutable {
    if (*alive) end(std::move(cause));
  });
}

void SocketStream::ready(uint32_t events) {
  const Alive alive = alive_;
  if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) flush();
  if (sink_ != nullptr && !paused_) {
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) read_turn();
  } else if (events & (EPOLLERR | EPOLLHUP)) {
    read_while_idle();
  }
  if (*alive) update_interest();
}

// The connection is over while nobody reads: say so if nothing is left to read, else keep it for the next resume().
void SocketStream::read_while_idle() {
  std::byte probe;
  const ssize_t got = recv(fd_.get(), &probe, 1, MSG_PEEK | MSG_DONTWAIT);
  const int cause = errno;
  if (got > 0 || sink_ == nullptr || leftover_used_ < leftover_.size()) {
    hung_up_ = true;
    if (watch_ != 0) reactor_.unwatch(std::exchange(watch_, 0));
    return;
  }
  if (got < 0 && (cause == EAGAIN || cause == EINTR)) return;
  end({Code::kPeerLost, got == 0 ? "closed by the peer" : std::strerror(cause)});
}

// Hands `bytes` to the sink until it has no room. False when the stream was closed or destroyed meanwhile.
bool SocketStream::deliver(ByteView bytes, size_t& used) {
  const Alive alive = alive_;
  while (used < bytes.size()) {
    const MutableBytes room = sink_->want();
    if (!*alive) return false;
    if (room.empty()) {
      paused_ = true;
      return true;
    }
    const size_t count = std::min(room.size(), bytes.size() - used);
    std::memcpy(room.data(), bytes.data() + used, count);
    used += count;
    sink_->arrived(count);
    if (!*alive) return false;
    if (paused_) return true;
  }
  return true;
}

void SocketStream::read_turn() {
  const Alive alive = alive_;
  if (leftover_used_ < leftover_.size()) {
    // The view stays valid: only read_turn() and close() touch the buffer, and after a close it is not looked at.
    const Bytes bytes = std::exchange(leftover_, {});
    size_t used = std::exchange(leftover_used_, 0);
    if (!deliver(bytes, used)) return;
    if (used < bytes.size()) {
      leftover_.assign(bytes.begin() + static_cast<ptrdiff_t>(used), bytes.end());
      return update_interest();
    }
  }
  std::vector<Fd> fds;
  for (size_t moved = 0; moved < shared_->options.turn_bytes;) {
    const MutableBytes room = sink_->want();
    if (!*alive) return;
    if (room.empty()) {
      paused_ = true;
      return update_interest();
    }
    iovec pieces[kPiecesMax];
    int count = 0;
    const size_t direct = gather(room, pieces, count);
    size_t asked = direct;
    if (direct < kDirectBytes) {
      pieces[count++] = {shared_->lookahead.get(), SocketShared::kLookaheadBytes};
      asked += SocketShared::kLookaheadBytes;
    }
    const ssize_t got = receive(pieces, count, fds);
    if (got <= 0) {
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
      if (got < 0 && errno == EMFILE) {
        return end({Code::kOverloaded, "descriptors sent by the peer were lost: too many open files"});
      }
      return end({Code::kPeerLost, got == 0 ? "closed by the peer" : std::strerror(errno)});
    }
    moved += static_cast<size_t>(got);
    if (!fds.empty()) {
      sink_->arrived_fds(std::exchange(fds, {}));
      if (!*alive) return;
    }
    const size_t placed = std::min(static_cast<size_t>(got), direct);
    sink_->arrived(placed);
    if (!*alive) return;
    const ByteView rest(shared_->lookahead.get(), static_cast<size_t>(got) - placed);
    size_t used = 0;
    if (!rest.empty() && !paused_ && !deliver(rest, used)) return;
    if (used < rest.size()) {
      leftover_.assign(rest.begin() + static_cast<ptrdiff_t>(used), rest.end());
      return update_interest();
    }
    if (paused_ || static_cast<size_t>(got) < asked) return;  // epoll says when there is more
  }
}

// The sink's places for one read; returns their bytes and leaves an iovec free.
size_t SocketStream::gather(MutableBytes first, iovec* pieces, int& count) {
  size_t total = std::min(first.size(), kReadMax);
  pieces[count++] = {first.data(), total};
  if (total < first.size() || total >= kDirectBytes) return total;
  MutableBytes more[kPiecesMax - 2];
  const size_t given = sink_->want_more(more);
  for (size_t i = 0; i < given && total < kReadMax; ++i) {
    const size_t part = std::min(more[i].size(), kReadMax - total);
    pieces[count++] = {more[i].data(), part};
    total += part;
  }
  return total;
}

ssize_t SocketStream::receive(iovec* pieces, int count, std::vector<Fd>& fds) {
  if (!local_) return readv(fd_.get(), pieces, count);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsMax)];
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = static_cast<size_t>(count);
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0) return got;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t bytes = header->cmsg_len - CMSG_LEN(0);
    for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + at, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  if (message.msg_flags & MSG_CTRUNC) {
    fds.clear();
    errno = EMFILE;
    return -1;
  }
  return got;
}

// In a turn of the reactor: the last thing this stream does.
void SocketStream::end(Error cause) {
  const Alive alive = alive_;
  if (watch_ != 0) reactor_.unwatch(std::exchange(watch_, 0));
  fd_.reset();
  if (write_over_ && !write_error_.message.empty()) cause = write_error_;
  write_over_ = true;
  write_error_ = cause;
  pending_ = 0;
  for (Piece& piece : std::exchange(queue_, {})) {
    if (piece.sent) completed_.emplace_back(std::move(piece.sent), std::unexpected(cause));
  }
  run_completed();
  if (!*alive || sink_ == nullptr) return;
  std::exchange(sink_, nullptr)->closed(std::move(cause));
}

std::string SocketStream::local_address() const {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (!fd_ || getsockname(fd_.get(), address.raw(), &address.size) != 0) return "";
  return address.text();
}

std::string SocketStream::peer_address() const {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (!fd_ || getpeername(fd_.get(), address.raw(), &address.size) != 0) return "";
  return address.text();
}

}  // namespace moontide::io
