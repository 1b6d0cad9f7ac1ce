// Streams within one reactor: "inproc:name". Embedded mode uses them, so that one process runs the same code paths as
// several.
//
// Thread: the reactor's. Streams and listeners may outlive the network, not the reactor.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "io/network.h"

namespace moontide::io {

class InprocListener;

class InprocNetwork final : public Network {
 public:
  explicit InprocNetwork(Reactor& reactor);

  Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted) override;
  void connect(const std::string& address, int64_t timeout_ns, Connected connected) override;

  static bool names(const std::string& address) { return address.starts_with("inproc:"); }
  using Listeners = std::map<std::string, InprocListener*>;

 private:
  Reactor& reactor_;
  std::shared_ptr<Listeners> listeners_;
};

// "inproc:" addresses go to one network, all others to another; both outlive it.
class RoutedNetwork final : public Network {
 public:
  RoutedNetwork(Network& inproc, Network& others) : inproc_(inproc), others_(others) {}

  Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted) override {
    return route(address).listen(address, std::move(accepted));
  }
  void connect(const std::string& address, int64_t timeout_ns, Connected connected) override {
    route(address).connect(address, timeout_ns, std::move(connected));
  }
  void connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                    Connected connected) override {
    route(address).connect_from(from, address, timeout_ns, std::move(connected));
  }
  Result<NewLeave> give_leave(const PeerCredentials& holder, Task over) override;

 private:
  Network& route(const std::string& address) { return InprocNetwork::names(address) ? inproc_ : others_; }
  Network& inproc_;
  Network& others_;
};

}  // namespace moontide::io
