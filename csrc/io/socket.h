// Tcp and abstract local sockets on an epoll reactor.
//
// Thread: the holder of the driver's lock. Streams and listeners may outlive the network that made them, not the
// reactor; destroying the network drops connects in progress without calling back.
#pragma once

#include <map>
#include <memory>

#include "io/epoll_reactor.h"
#include "io/network.h"

namespace moontide::io {

struct SocketOptions {
  int send_buffer_bytes = 0;     // SO_SNDBUF; 0: the kernel tunes it (tcp) or its default (local)
  int receive_buffer_bytes = 0;  // SO_RCVBUF; 0: likewise
  size_t accepted_max = 4096;    // streams alive per listener; further ones are closed at once
  // What one stream moves per turn before the others get theirs: half a MiB a call is what loopback and caches like
  // best, and two of them take a slice of 1 MiB with its header.
  size_t turn_bytes = 528u << 10;
  int backlog = 512;
  // Whether addresses off loopback are listened on and connected to. Whoever sets it has a cluster secret, or was told
  // in so many words to do without.
  bool off_loopback = false;
};

struct SocketCounters {
  uint64_t refused = 0;        // accepted above accepted_max
  uint64_t accept_pauses = 0;  // out of descriptors or memory
};

// What streams of one network share: the place where small reads land before they are handed to the sink.
struct SocketShared {
  static constexpr size_t kLookaheadBytes = 16u << 10;  // what lands here is copied once more
  SocketOptions options;
  SocketCounters counters;
  std::unique_ptr<std::byte[]> lookahead = std::make_unique<std::byte[]>(kLookaheadBytes);
};

class SocketNetwork final : public Network {
 public:
  explicit SocketNetwork(EpollReactor& reactor, SocketOptions options = {});
  ~SocketNetwork() override;

  Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted) override;
  void connect(const std::string& address, int64_t timeout_ns, Connected connected) override {
    connect_from({}, address, timeout_ns, std::move(connected));
  }
  void connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                    Connected connected) override;
  Result<NewLeave> give_leave(const PeerCredentials& holder, Task over) override;

  const SocketCounters& counters() const { return shared_->counters; }
  size_t connecting() const { return connecting_.size(); }

 private:
  class Connect;
  void finish_connect(uint64_t id, Result<std::unique_ptr<Stream>> outcome);

  EpollReactor& reactor_;
  std::shared_ptr<SocketShared> shared_;
  std::map<uint64_t, std::unique_ptr<Connect>> connecting_;
  uint64_t next_id_ = 1;
};

}  // namespace moontide::io
