// The sending half of a SocketStream, and what the kernel says about the peer.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/socket_stream.h"

namespace moontide::io {
namespace {

constexpr size_t kPiecesPerCall = 257;  // a slice of a transport with its header
// Small writes that wait anyway are gathered into pieces of up to this size.
constexpr size_t kGatherBytes = 64u << 10;
// Up to this size a message waits for others of the same event; copying a longer one costs more than a call.
constexpr size_t kPutOffBytes = 8u << 10;
// getsockopt number of the pidfd of the peer; absent from this glibc, refused by kernels before 6.5.
constexpr int kSoPeerPidfd = 77;

}  // namespace

void SocketStream::write(ByteView bytes) {
  if (write_over_ || bytes.empty()) return;
  const bool waits = put_off_ || (queue_.empty() && bytes.size() <= kPutOffBytes && reactor_.gathers());
  if (waits && !std::exchange(put_off_, true)) reactor_.put_off(*this);
  if (queue_.empty() && !waits) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return write_failed(errno);
    bytes = bytes.subspan(static_cast<size_t>(std::max<ssize_t>(sent, 0)));
    if (bytes.empty()) return;
  } else if (!queue_.empty()) {
    Piece& last = queue_.back();
    // Its memory must not move while flush() is not looking; it never is here.
    if (!last.reference && last.owned.size() + bytes.size() <= kGatherBytes) {
      const size_t sent = last.owned.size() - last.rest.size();
      last.owned.insert(last.owned.end(), bytes.begin(), bytes.end());
      last.rest = ByteView(last.owned).subspan(sent);
      pending_ += bytes.size();
      return;
    }
  }
  Piece piece;
  piece.owned = to_bytes(bytes);
  piece.rest = piece.owned;
  queue_piece(std::move(piece));
  if (put_off_ && pending_ > kGatherBytes) return flush();
  update_interest();
}

void SocketStream::now() {
  put_off_ = false;
  flush();
}

// What waited for the end of the event gets one try: its writer counts on write() having tried. Memory of others is
// not read any more: who closes may mean just that.
void SocketStream::send_last() {
  const bool own = std::ranges::none_of(queue_, [](const Piece& piece) { return piece.reference; });
  size_t asked = 0;
  if (fd_ && !queue_.empty() && own) send_some(asked);
}

void SocketStream::write_references(ByteView head, std::span<const ByteView> parts, Sent sent) {
  if (write_over_) {
    Error cause = write_error_.message.empty() ? Error{Code::kClosed, "the stream was closed"} : write_error_;
    return complete(std::move(sent), std::unexpected(std::move(cause)));
  }
  const bool first = queue_.empty() || put_off_;
  if (!head.empty()) {
    Piece piece;
    piece.owned = to_bytes(head);
    piece.rest = piece.owned;
    queue_piece(std::move(piece));
  }
  for (size_t i = 0; i < std::max<size_t>(parts.size(), 1); ++i) {
    Piece piece;
    if (!parts.empty()) piece.rest = parts[i];
    piece.reference = true;
    if (i + 1 >= parts.size())
      piece.sent = std::exchange(sent, {});  // pieces leave in order: the last one ends them all
    queue_piece(std::move(piece));
  }
  if (first) flush();
}

Result<> SocketStream::write_with_fds(ByteView bytes, const std::vector<int>& fds) {
  if (!local_) return fail(Code::kUnsupported, "descriptors travel over local sockets only");
  if (bytes.empty() || fds.size() > kFdsMax) {
    return fail(Code::kInvalid, std::to_string(fds.size()) + " descriptors with " + std::to_string(bytes.size()) +
                                    " bytes: at most " + std::to_string(kFdsMax) + ", and at least one byte");
  }
  if (write_over_) return {};
  Piece piece;
  for (const int fd : fds) {
    Fd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!copy) return fail(Code::kOverloaded, std::string("cannot duplicate a descriptor: ") + std::strerror(errno));
    piece.fds.push_back(std::move(copy));
  }
  piece.owned = to_bytes(bytes);
  piece.rest = piece.owned;
  const bool first = queue_.empty() || put_off_;
  queue_piece(std::move(piece));
  if (first) flush();
  return {};
}

void SocketStream::queue_piece(Piece piece) {
  pending_ += piece.rest.size();
  queue_.push_back(std::move(piece));
}

// Sends what the socket takes, at most a turn's worth.
void SocketStream::flush() {
  size_t moved = 0;
  while (!queue_.empty() && moved < shared_->options.turn_bytes) {
    size_t asked = 0;
    const ssize_t sent = send_some(asked);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return write_failed(errno);
      break;
    }
    advance(static_cast<size_t>(sent));
    moved += static_cast<size_t>(sent);
    if (static_cast<size_t>(sent) < asked) break;
  }
  update_interest();
}

ssize_t SocketStream::send_some(size_t& asked) {
  iovec pieces[kPiecesPerCall];
  size_t count = 0;
  for (Piece& piece : queue_) {
    if (count == kPiecesPerCall || asked >= shared_->options.turn_bytes) break;
    if (count > 0 && !piece.fds.empty()) break;  // descriptors go with the first byte of a call
    const size_t part = std::min(piece.rest.size(), shared_->options.turn_bytes - asked);
    pieces[count++] = {const_cast<std::byte*>(piece.rest.data()), part};
    asked += part;
  }
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kFdsMax)] = {};
  const std::vector<Fd>& fds = queue_.front().fds;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    for (size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  return sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void SocketStream::advance(size_t count) {
  pending_ -= count;
  while (!queue_.empty()) {
    Piece& piece = queue_.front();
    const size_t part = std::min(count, piece.rest.size());
    piece.rest = piece.rest.subspan(part);
    count -= part;
    if (part > 0) piece.fds.clear();
    if (!piece.rest.empty()) return;
    Sent sent = std::move(piece.sent);
    queue_.pop_front();
    if (sent) complete(std::move(sent), {});
  }
}

// What was queued is lost; reading goes on until the kernel reports the end there, since bytes may have arrived before.
void SocketStream::write_failed(int cause) {
  write_over_ = true;
  write_error_ = {Code::kPeerLost, std::string("sending failed: ") + std::strerror(cause)};
  pending_ = 0;
  // pieces leave in order, so it is memory of the first ones that is not there
  bool missing = cause == EFAULT;
  if (missing) shutdown(fd_.get(), SHUT_RDWR);  // the kernel sees no end of the connection in it
  for (Piece& piece : std::exchange(queue_, {})) {
    if (!piece.sent) continue;
    const Error why =
        std::exchange(missing, false) ? Error{Code::kInvalid, "memory to send from is not there"} : write_error_;
    complete(std::move(piece.sent), std::unexpected(why));
  }
  update_interest();
}

void SocketStream::complete(Sent sent, Result<> outcome) {
  completed_.emplace_back(std::move(sent), std::move(outcome));
  if (completed_.size() > 1) return;
  reactor_.post([this, alive = alive_] {
    if (*alive) run_completed();
  });
}

void SocketStream::run_completed() {
  const Alive alive = alive_;
  auto completed = std::exchange(completed_, {});
  for (auto& [sent, outcome] : completed) {
    sent(std::move(outcome));
    if (!*alive) return;
  }
}

Result<PeerCredentials> SocketStream::credentials() const {
  if (!local_ || !fd_) return fail(Code::kUnsupported, "the kernel names the peer of local sockets only");
  ucred raw{};
  socklen_t size = sizeof raw;
  if (getsockopt(fd_.get(), SOL_SOCKET, SO_PEERCRED, &raw, &size) != 0) {
    return fail(Code::kUnsupported, std::string("SO_PEERCRED: ") + std::strerror(errno));
  }
  PeerCredentials credentials;
  credentials.pid = raw.pid;
  credentials.uid = raw.uid;
  int pidfd = -1;
  size = sizeof pidfd;
  if (getsockopt(fd_.get(), SOL_SOCKET, kSoPeerPidfd, &pidfd, &size) != 0) {
    pidfd = static_cast<int>(syscall(SYS_pidfd_open, raw.pid, 0));
    if (pidfd < 0) return fail(Code::kUnsupported, std::string("pidfd of the peer: ") + std::strerror(errno));
  }
  credentials.pidfd = Fd(pidfd);
  return credentials;
}

}  // namespace moontide::io
