// What one process has of a pool: always a client, optionally a node that lends memory, and where no master is named,
// the master itself, reached within the process. The same code as with a master elsewhere.
//
// Thread: the reactor's.
#pragma once

#include <memory>
#include <string>

#include "store/client.h"
#include "store/master.h"
#include "store/node.h"

namespace moontide::store {

struct MemberOptions {
  std::string master{};        // empty: this process is the pool, nobody else joins it
  uint64_t lend_bytes = 0;     // 0: no node here
  bool private_arena = false;  // memory that other processes cannot map: for the simulation
  MasterOptions master_options{};
  NodeOptions node_options{};
  ClientOptions client_options{};
};

class Member {
 public:
  // `network` knows "inproc:" addresses. NO_SPACE: the memory is not to be had.
  static Result<std::unique_ptr<Member>> create(io::Reactor& reactor, io::Network& network, engine::Engine& engine,
                                                MemberOptions options);
  ~Member();

  Client& client() { return *client_; }
  Node* node() { return node_.get(); }
  Master* master() { return master_.get(); }

 private:
  Member() = default;
  std::unique_ptr<Master> master_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<Client> client_;
};

}  // namespace moontide::store
