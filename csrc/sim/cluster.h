// A whole pool in one thread under virtual time: one master, some nodes, some clients, each a process on a machine of
// its own, and everything that may go wrong with them. Whoever drives it decides what happens; what follows from that
// is decided by the seed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/client_machine.h"
#include "sim/event_follower.h"
#include "sim/machine.h"
#include "store/master.h"
#include "store/node.h"

namespace moontide::sim {

struct ClusterOptions {
  uint64_t seed = 1;
  Paths paths = Paths::kBoth;
  size_t nodes = 2;
  size_t clients = 3;
  uint64_t node_bytes = 512u << 10;
  uint64_t hot_bytes = 0;  // node0 keeps a hot cache of this size, which all clients read; 0: nobody does
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  Universe& universe() { return universe_; }
  io::SimWorld& world() { return universe_.world; }

  // "master", "node0" …, "client0" …
  const std::vector<std::string>& hosts() const { return hosts_; }
  // The process that lives on the host, or died there last. NOT_FOUND.
  Result<io::SimProcess*> process(const std::string& host);
  Result<> crash(const std::string& host, bool dark);
  // A new process takes the place of a crashed one. INVALID while the old one lives.
  Result<> restart(const std::string& host);

  // Null while the process is dead.
  ClientMachine* client(size_t index);
  std::vector<Outcome> take_outcomes();

  // Has a living client ask that the objects of a node go to others, or no more.
  void drain(size_t node, bool on);

  // What must hold at any time: the catalog agrees with itself, every replica that it shows is on its node, entries do
  // not overlap, lie where the allocator has them and hold the bytes of a put of their key, a ready node holds no more
  // than the catalog counts, no buffer was touched after its operation was quiet, and who follows the master's events
  // has the objects that it has. The entries of a hot cache hold the bytes of a put, and do not overlap.
  Result<> audit();
  // What must hold in addition when faults are over and nothing was asked for a while: nobody waits for anything, and
  // the bytes of catalog, inventory and allocator are the same.
  Result<> audit_at_rest();
  // All nodes have joined the master, as far as both know.
  bool assembled() const;
  // Who has joined whom and what lies where, for people.
  std::string describe() const;
  // What happened so far, by name; of processes that died too.
  std::map<std::string, uint64_t> counters() const;

 private:
  struct MasterMachine {
    std::unique_ptr<Machine> machine;
    std::unique_ptr<store::Master> master;
  };
  struct NodeMachine {
    std::unique_ptr<Machine> machine;
    std::unique_ptr<engine::Engine> engine;
    std::shared_ptr<memory::Arena> arena;
    std::unique_ptr<store::Node> node;
  };
  Result<> start_master();
  Result<> start_node(size_t index);
  Result<> start_client(size_t index);
  Result<> audit_node(const NodeMachine& node) const;
  static Result<> audit_hot_cache(const NodeMachine& run, bool at_rest);
  static Result<> audit_replicas(const NodeMachine& run, const catalog::Node& known);
  const catalog::Node* in_catalog(const NodeMachine& node) const;

  const ClusterOptions options_;
  Universe universe_;
  std::vector<std::string> hosts_;
  std::vector<Outcome> outcomes_;
  EventFollower follower_;
  // Current ones last; earlier ones stay, since others may still look at their memory.
  std::vector<MasterMachine> masters_;
  std::vector<std::vector<NodeMachine>> nodes_;
  std::vector<std::vector<std::unique_ptr<ClientMachine>>> clients_;
};

}  // namespace moontide::sim
