// The network between simulated processes. Addresses are "sim:HOST:PORT"; port 0 lets the fabric choose one. "HOST~1"
// is a further network device of HOST, with delays and cuts of its own.
//
// A connection behaves like tcp: bytes are taken from the writer's memory piece by piece while a window has room, each
// piece travels for a random time, arrives in order, and is read in parts of random size. While a direction is cut
// nothing arrives that way; what was sent arrives once it is healed. A paused receiver still takes connections and
// bytes, as a kernel does for a stopped process.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/network.h"
#include "io/sim.h"

namespace moontide::io {

class SimListener;
class SimStream;
class SimWay;

// The wires of one world and what goes wrong on them. Outlives the networks, streams and listeners on it.
class SimFabric {
 public:
  explicit SimFabric(SimWorld& world) : world_(world) {}

  struct Delays {
    int64_t least_ns = 20 * kMicrosecond;
    int64_t most_ns = 400 * kMicrosecond;
  };
  void set_delays(Delays delays) { delays_ = delays; }
  void set_delays(const std::string& from, const std::string& to, Delays delays) { link_delays_[{from, to}] = delays; }

  void cut(const std::string& from, const std::string& to);
  void heal(const std::string& from, const std::string& to);
  void heal_all();
  bool is_cut(const std::string& from, const std::string& to) const { return cuts_.contains({from, to}); }

  // Of one piece on its way; draws from the world.
  int64_t delay_ns(const std::string& from, const std::string& to);

  SimWorld& world() { return world_; }

 private:
  friend class SimListener;
  friend class SimNetwork;
  friend class SimStream;
  friend class SimWay;
  void retry();

  SimWorld& world_;
  Delays delays_;
  std::map<std::pair<std::string, std::string>, Delays> link_delays_;
  std::map<std::pair<std::string, std::string>, bool> cuts_;
  std::map<std::string, SimListener*> listeners_;  // by address
  std::map<std::string, bool> dark_;               // hosts that died without a word and have not come back
  std::vector<std::weak_ptr<SimWay>> ways_;
  int next_port_ = 1000;
};

// The network as one process sees it. When the process crashes its listeners vanish and its streams break: the peers
// learn of it after a delay, or not before they send something, when the host went dark.
class SimNetwork final : public Network {
 public:
  SimNetwork(SimFabric& fabric, SimProcess& process);
  ~SimNetwork() override;

  Result<std::unique_ptr<Listener>> listen(const std::string& address, Accepted accepted) override;
  void connect(const std::string& address, int64_t timeout_ns, Connected connected) override {
    connect_from({}, address, timeout_ns, std::move(connected));
  }
  void connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                    Connected connected) override;

  // To be set before a crash: the whole machine dies, so that nobody tells the peers.
  void crash_goes_dark(bool dark) { registry_->dark = dark; }

 private:
  friend class SimListener;
  friend class SimStream;
  // What of the process is on the fabric; shared with all of it.
  struct Registry {
    std::map<uint64_t, SimStream*> streams;
    std::map<uint64_t, SimListener*> listeners;
    uint64_t next_id = 1;
    bool dark = false;
  };
  struct Attempt;

  SimFabric& fabric_;
  SimProcess& process_;
  std::shared_ptr<Registry> registry_;
};

}  // namespace moontide::io
