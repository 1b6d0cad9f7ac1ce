// Where peers wait that came in and have not proved that they have the cluster secret. Bounded in number, time and
// bytes: a stranger costs a descriptor and a kilobyte until the deadline.
//
// Thread: the reactor's.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "rpc/channel.h"
#include "rpc/secure_network.h"
#include "wire/challenge_messages.h"

namespace moontide::rpc {

ChannelLimits challenge_limits();
Bytes make_nonce(Random& random);
// Whether connections by this address leave the process's host, or could.
inline bool encryptable(const std::string& address) { return !address.starts_with("unix:"); }

class Lobby final : public std::enable_shared_from_this<Lobby> {
 public:
  // `encrypted`: with TLS, where it is configured.
  Lobby(io::Reactor& reactor, std::shared_ptr<Security> security, std::string purpose, bool encrypted,
        io::Network::Accepted accepted);
  ~Lobby();

  void receive(std::unique_ptr<io::Stream> stream);
  // Nobody waits any more, and nobody passes.
  void close();

 private:
  class Entrant;
  void pass(uint64_t number, std::unique_ptr<io::Stream> stream);

  io::Reactor& reactor_;
  std::shared_ptr<Security> security_;
  const std::string purpose_;
  const bool encrypted_;
  io::Network::Accepted accepted_;
  std::map<uint64_t, std::shared_ptr<Entrant>> waiting_;
  uint64_t next_ = 1;
  bool closed_ = false;
};

// Keeps the lobby as long as it is listened for.
class LobbyListener final : public io::Listener {
 public:
  LobbyListener(std::unique_ptr<io::Listener> inner, std::shared_ptr<Lobby> lobby)
      : inner_(std::move(inner)), lobby_(std::move(lobby)) {}
  ~LobbyListener() override { lobby_->close(); }
  std::string address() const override { return inner_->address(); }

 private:
  std::unique_ptr<io::Listener> inner_;
  std::shared_ptr<Lobby> lobby_;
};

}  // namespace moontide::rpc
