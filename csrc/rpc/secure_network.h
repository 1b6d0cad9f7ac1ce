// A network on which both ends of every connection prove that they have the cluster secret before either sees another
// byte of it, inside TLS where that is configured. Above it nothing changes: a stream that it hands out is an
// authenticated one.
//
// Without a secret it passes everything through. Local sockets are challenged like others: any user of the host, and of
// any container in the same network namespace, can reach them. They are not encrypted: what they carry stays on the
// host, and descriptors travel with it.
//
// Thread: the reactor's. Listeners may outlive the network, not the reactor. Destroying the network drops connects in
// progress without calling back.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "io/network.h"
#include "io/tls.h"
#include "rpc/challenge.h"

namespace moontide::rpc {

struct SecurityCounters {
  uint64_t authenticated = 0;  // connections, in either direction
  uint64_t refused = 0;        // likewise; not those that the peer closed before it said anything
  std::string last_refusal;    // "127.0.0.1:1234: the cluster secrets differ"
};

// What the networks of one process share.
struct Security {
  std::optional<ClusterSecret> secret;
  std::shared_ptr<io::TlsCredentials> tls;  // only with a secret
  int64_t timeout_ns = 2 * kSecond;         // for a peer that came in to prove itself
  size_t waiting_max = 1024;                // per listener: peers that have not; the oldest makes room
  SecurityCounters counters;

  void refuse(const std::string& peer, const std::string& why) {
    ++counters.refused;
    counters.last_refusal = peer + ": " + why;
  }
};

class SecureNetwork final : public io::Network {
 public:
  // `purpose`: what connections of this network carry; both ends must mean the same. `inner` outlives this.
  SecureNetwork(io::Reactor& reactor, io::Network& inner, std::string purpose, std::shared_ptr<Security> security);
  ~SecureNetwork() override;

  // As the inner network's. `accepted` gets streams that have passed; it starts them within the call.
  Result<std::unique_ptr<io::Listener>> listen(const std::string& address, Accepted accepted) override;
  // As the inner network's, and DENIED: the secrets differ, or only one side has one. `connected` starts the stream
  // within the call.
  void connect(const std::string& address, int64_t timeout_ns, Connected connected) override {
    connect_from({}, address, timeout_ns, std::move(connected));
  }
  void connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                    Connected connected) override;
  Result<io::NewLeave> give_leave(const io::PeerCredentials& holder, io::Task over) override;

 private:
  class Visitor;

  io::Reactor& reactor_;
  io::Network& inner_;
  const std::string purpose_;
  std::shared_ptr<Security> security_;
  std::map<uint64_t, std::shared_ptr<Visitor>> visitors_;
  uint64_t next_visitor_ = 1;
};

}  // namespace moontide::rpc
