// A node of a pool: lends one arena and keeps a session with the master.
//
// Joining: hello → welcome (term, reign) → the inventory, piece by piece → its end, answered with the floor below which
// tickets are over. Between welcome and that answer no ticket is taken and nothing becomes an entry. From the welcome
// on, tickets of older terms are refused. A node that is alone goes on serving readers and the tickets of its term.
//
// Thread: the reactor's. One node per engine.
#pragma once

#include <memory>
#include <string>

#include "rpc/channel.h"
#include "store/dialer.h"
#include "store/hot_cache.h"
#include "store/storage.h"

namespace moontide::store {

class Node {
 public:
  // The arena is registered for reading by peers; nobody but this node writes to it. `engine` and `network` outlive the
  // node. Fails as Engine::add_region.
  static Result<std::unique_ptr<Node>> create(io::Reactor& reactor, io::Network& network, engine::Engine& engine,
                                              std::shared_ptr<memory::Arena> arena, NodeOptions options);
  // Leaves; the arena goes when the last copy from it has ended.
  ~Node();

  const InstanceId& id() const { return id_; }
  bool joined() const { return joined_; }
  uint32_t term() const { return term_; }
  // Why the last session ended; for people.
  const std::string& last_error() const { return last_error_; }
  const Storage& storage() const { return *storage_; }
  // Null: it keeps none.
  const HotCache* hot_cache() const { return hot_cache_.get(); }

 private:
  Node(io::Reactor& reactor, io::Network& network, engine::Engine& engine, NodeOptions options);

  void connected(std::unique_ptr<io::Stream> stream);
  void welcomed(const wire::NodeWelcome& welcome);
  void send_inventory(Generation after);
  void ready(Generation floor);
  void ordered(const Bytes& payload);
  void retired(std::vector<Generation> generations);
  void repaired(const wire::RepairedItem& item);
  void keep_alive();
  void tell_hot_facts();
  void serve_hot_cache();
  void drop_session(const Error& cause);
  // A request of the current session; an error ends the session, an answer that comes too late is ignored.
  void ask(uint16_t type, Bytes payload, std::move_only_function<void(const Bytes&)> answer);

  io::Reactor& reactor_;
  engine::Engine& engine_;
  NodeOptions options_;
  InstanceId id_;
  SipKey secret_;
  uint16_t protocol_ = 0;   // of the session
  bool told_held_ = false;  // the master counts bytes that ended entries keep
  uint32_t term_ = 0;
  InstanceId reign_;  // the master whose term that is
  bool joined_ = false;
  memory::RegionRef region_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<HotCache> hot_cache_;
  Dialer dialer_;
  std::unique_ptr<rpc::Channel> channel_;
  uint64_t session_ = 0;
  std::string last_error_;
  io::Timer keep_alive_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
