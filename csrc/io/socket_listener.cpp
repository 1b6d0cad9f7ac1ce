#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "io/socket.h"
#include "io/socket_address.h"
#include "io/socket_stream.h"

namespace moontide::io {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr int64_t kAcceptPauseNs = 50 * kMillisecond;

class SocketListener final : public Listener, private FdHandler {
 public:
  SocketListener(EpollReactor& reactor, std::shared_ptr<SocketShared> shared, Fd fd, SocketAddress address,
                 Network::Accepted accepted)
      : reactor_(reactor),
        shared_(std::move(shared)),
        fd_(std::move(fd)),
        address_(address),
        accepted_(std::move(accepted)),
        back_off_(reactor) {}
  ~SocketListener() override {
    *alive_ = false;
    reactor_.unwatch(watch_);
  }

  Result<> open() {
    TRY(watch_, reactor_.watch(fd_.get(), EPOLLIN, *this));
    return {};
  }
  std::string address() const override { return address_.text(); }

 private:
  void ready(uint32_t) override {
    const std::shared_ptr<bool> alive = alive_;
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      Fd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!fd) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) return pause();
        if (errno == EAGAIN || errno == EWOULDBLOCK) return;
        continue;  // that connection failed before it was accepted; the next may be fine
      }
      if (*live_ >= shared_->options.accepted_max) {
        ++shared_->counters.refused;
        continue;
      }
      ++*live_;
      // Moved out for the call: the callback may destroy this listener, and itself with it.
      Network::Accepted accepted = std::move(accepted_);
      accepted(std::make_unique<SocketStream>(reactor_, shared_, std::move(fd), address_.local(), live_));
      if (!*alive) return;
      accepted_ = std::move(accepted);
    }
  }

  // The connection that cannot be accepted stays in the backlog and would be reported again at once.
  void pause() {
    ++shared_->counters.accept_pauses;
    reactor_.modify(watch_, 0);
    back_off_.start(kAcceptPauseNs, [this] { reactor_.modify(watch_, EPOLLIN); });
  }

  EpollReactor& reactor_;
  std::shared_ptr<SocketShared> shared_;
  Fd fd_;
  SocketAddress address_;
  Network::Accepted accepted_;
  Timer back_off_;
  WatchId watch_ = 0;
  std::shared_ptr<size_t> live_ = std::make_shared<size_t>(0);
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

Result<> set_buffers(int fd, const SocketOptions& options) {
  const int send = options.send_buffer_bytes;
  const int receive = options.receive_buffer_bytes;
  if ((send > 0 && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send, sizeof send) != 0) ||
      (receive > 0 && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive, sizeof receive) != 0)) {
    return fail(Code::kUnavailable, std::string("socket buffer size: ") + std::strerror(errno));
  }
  return {};
}

// Law 6: what everybody on the network can reach needs more than good will.
Result<SocketAddress> admit(const std::string& text, const SocketOptions& options) {
  TRY(SocketAddress address, parse_socket_address(text));
  if (address.local() || address.loopback || options.off_loopback) return address;
  return fail(Code::kDenied, "address '" + text +
                                 "' is not on loopback: that needs a cluster secret (secret_file), or insecure_listen "
                                 "= true, by which anybody who reaches the port reads and writes what is registered");
}

Result<Fd> open_socket(const SocketAddress& address, const SocketOptions& options) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fail(Code::kUnavailable, std::string("cannot make a socket: ") + std::strerror(errno));
  TRY_VOID(set_buffers(fd.get(), options));
  return fd;
}

}  // namespace

Result<std::unique_ptr<Listener>> SocketNetwork::listen(const std::string& text, Accepted accepted) {
  TRY(SocketAddress address, admit(text, shared_->options));
  TRY(Fd fd, open_socket(address, shared_->options));
  if (!address.local()) {
    // On Linux this lets a port be reused while old connections linger, never by two live listeners.
    const int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  }
  if (bind(fd.get(), address.raw(), address.size) != 0 || ::listen(fd.get(), shared_->options.backlog) != 0) {
    return fail(Code::kUnavailable, "cannot listen on " + text + ": " + std::strerror(errno));
  }
  getsockname(fd.get(), address.raw(), &address.size);
  auto listener = std::make_unique<SocketListener>(reactor_, shared_, std::move(fd), address, std::move(accepted));
  TRY_VOID(listener->open());
  return std::unique_ptr<Listener>(std::move(listener));
}

// One connection in progress.
class SocketNetwork::Connect final : private FdHandler {
 public:
  Connect(SocketNetwork& network, uint64_t id, std::string from, std::string text, Connected connected)
      : id(id),
        from(std::move(from)),
        text(std::move(text)),
        connected(std::move(connected)),
        network_(network),
        timeout_(network.reactor_),
        again_(network.reactor_) {}
  ~Connect() { network_.reactor_.unwatch(watch_); }

  const uint64_t id;
  const std::string from;
  const std::string text;
  Connected connected;

  // Outcomes are reported in a later turn.
  void begin(int64_t timeout_ns) {
    timeout_.start(timeout_ns, [this, timeout_ns] {
      refuse(Code::kTimedOut, "no answer within " + std::to_string(timeout_ns / kMillisecond) + " ms");
    });
    auto address = admit(text, network_.shared_->options);
    if (!address) return later(address.error());
    address_ = *address;
    attempt();
  }

 private:
  void attempt() {
    auto fd = open_socket(address_, network_.shared_->options);
    if (!fd) return later(fd.error());
    fd_ = std::move(*fd);
    if (auto bound = leave_by_from(); !bound) return later(bound.error());
    if (::connect(fd_.get(), address_.raw(), address_.size) != 0 && errno != EINPROGRESS) {
      // A local listener with a full backlog: there is no event for "has room again".
      if (errno == EAGAIN) return again_.start(5 * kMillisecond, [this] { attempt(); });
      return later({Code::kUnavailable, "cannot connect to " + text + ": " + std::strerror(errno)});
    }
    auto watch = network_.reactor_.watch(fd_.get(), EPOLLOUT, *this);
    if (!watch) return later(watch.error());
    watch_ = *watch;
  }

  Result<> leave_by_from() {
    if (from.empty() || address_.local()) return {};
    TRY(SocketAddress source, parse_socket_address(from));
    source.drop_port();
    const int on = 1;
    setsockopt(fd_.get(), SOL_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(fd_.get(), source.raw(), source.size) != 0) {
      return fail(Code::kUnavailable, "cannot connect from " + from + ": " + std::strerror(errno));
    }
    return {};
  }

  void ready(uint32_t) override {
    int cause = 0;
    socklen_t size = sizeof cause;
    getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &cause, &size);
    if (cause != 0) return refuse(Code::kUnavailable, std::strerror(cause));
    if (connected_to_itself()) return refuse(Code::kUnavailable, std::strerror(ECONNREFUSED));
    network_.reactor_.unwatch(std::exchange(watch_, 0));
    network_.finish_connect(id, std::make_unique<SocketStream>(network_.reactor_, network_.shared_, std::move(fd_),
                                                               address_.local(), nullptr));
  }

  // Tcp to a port of the ephemeral range where nobody listens may meet its own source port.
  bool connected_to_itself() const {
    if (address_.local()) return false;
    SocketAddress own;
    own.size = sizeof own.storage;
    return getsockname(fd_.get(), own.raw(), &own.size) == 0 && own.text() == address_.text();
  }

  void refuse(Code code, const std::string& why) {
    network_.finish_connect(id, fail(code, "cannot connect to " + text + ": " + why));
  }
  void later(Error error) {
    again_.start(0, [this, error = std::move(error)]() mutable {
      network_.finish_connect(id, std::unexpected(std::move(error)));
    });
  }

  SocketNetwork& network_;
  SocketAddress address_;
  Fd fd_;
  WatchId watch_ = 0;
  Timer timeout_;
  Timer again_;
};

SocketNetwork::SocketNetwork(EpollReactor& reactor, SocketOptions options)
    : reactor_(reactor), shared_(std::make_shared<SocketShared>()) {
  shared_->options = options;
}

SocketNetwork::~SocketNetwork() = default;

void SocketNetwork::connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                                 Connected connected) {
  const uint64_t id = next_id_++;
  auto& connect = connecting_[id] = std::make_unique<Connect>(*this, id, from, address, std::move(connected));
  connect->begin(timeout_ns);
}

void SocketNetwork::finish_connect(uint64_t id, Result<std::unique_ptr<Stream>> outcome) {
  auto node = connecting_.extract(id);
  Connected connected = std::move(node.mapped()->connected);
  node.mapped().reset();
  connected(std::move(outcome));
}

}  // namespace moontide::io
