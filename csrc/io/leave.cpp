#include "io/leave.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "io/socket.h"

namespace moontide::io {
namespace {

class SocketLeave final : public GivenLeave, private FdHandler {
 public:
  SocketLeave(EpollReactor& reactor, Fd socket, Fd pidfd, Task over)
      : reactor_(reactor), socket_(std::move(socket)), pidfd_(std::move(pidfd)), over_(std::move(over)) {}
  ~SocketLeave() override {
    reactor_.unwatch(shut_);
    reactor_.unwatch(death_);
  }

  Result<> watch() {
    TRY(shut_, reactor_.watch(socket_.get(), EPOLLRDHUP, *this));
    TRY(death_, reactor_.watch(pidfd_.get(), EPOLLIN, *this));
    return {};
  }

 private:
  void ready(uint32_t) override {
    reactor_.unwatch(std::exchange(shut_, 0));
    reactor_.unwatch(std::exchange(death_, 0));
    if (over_) std::exchange(over_, {})();  // may destroy this
  }

  EpollReactor& reactor_;
  Fd socket_, pidfd_;
  Task over_;
  WatchId shut_ = 0, death_ = 0;
};

}  // namespace

Result<NewLeave> Network::give_leave(const PeerCredentials&, Task) {
  return fail(Code::kUnsupported, "no other processes on this network");
}

Result<NewLeave> SocketNetwork::give_leave(const PeerCredentials& holder, Task over) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
    return fail(Code::kUnavailable, std::string("socketpair: ") + std::strerror(errno));
  NewLeave leave{nullptr, Fd(ends[1])};
  Fd here(ends[0]), pidfd(fcntl(holder.pidfd.get(), F_DUPFD_CLOEXEC, 0));
  if (!pidfd) return fail(Code::kUnavailable, std::string("pidfd of the peer: ") + std::strerror(errno));
  auto given = std::make_unique<SocketLeave>(reactor_, std::move(here), std::move(pidfd), std::move(over));
  TRY_VOID(given->watch());
  leave.given = std::move(given);
  return leave;
}

HeldLeave::HeldLeave(Fd socket) : socket_(std::move(socket)), owner_pid_(getpid()) {}

HeldLeave::~HeldLeave() {
  if (socket_ && getpid() == owner_pid_) shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace moontide::io
