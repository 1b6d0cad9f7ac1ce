// The master of a pool: sessions of clients and nodes around the catalog. It decides and remembers; no byte of an
// object passes it.
//
// Thread: the reactor's. Nothing in it blocks; every table is bounded (MasterOptions).
#pragma once

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/siphash.h"
#include "catalog/catalog.h"
#include "rpc/channel.h"
#include "store/options.h"
#include "store/ticket.h"
#include "wire/hot_messages.h"

namespace moontide::store {

class Master {
 public:
  // Listens at options.listen; errors as Network::listen.
  static Result<std::unique_ptr<Master>> create(io::Reactor& reactor, io::Network& network, MasterOptions options);
  ~Master();

  const std::string& address() const { return address_; }
  uint32_t term() const { return catalog_.term(); }
  const catalog::Catalog& catalog() const { return catalog_; }
  // What happened to objects, in order; where options.events_max says that it is noted. See catalog::EventLog.
  std::vector<catalog::Event> take_events(size_t max) { return catalog_.take_events(max); }
  void tell_events_anew() { catalog_.tell_events_anew(); }
  size_t sessions() const { return sessions_.size(); }
  // Name → value, as kPoolStats answers.
  wire::PoolStatsReply stats() const;
  // What the node said last of its hot cache; null: it keeps none, or is away.
  const wire::HotFacts* hot_facts_of(const InstanceId& node) const;

 private:
  struct Session {
    uint64_t number = 0;
    std::unique_ptr<rpc::Channel> channel;
    InstanceId client;  // set by its hello
    InstanceId node;    // set by its hello
    uint16_t protocol = wire::kProtocolMin;
    int64_t last_heard_ns = 0;
    std::optional<wire::HotFacts> hot;  // of a node that keeps a hot cache
  };
  struct NodeFacts {
    SipKey secret{};
    uint64_t session = 0;  // 0: away
    int64_t away_since_ns = 0;
  };
  // An answer that is not true before older entries of its keys are gone from their nodes.
  struct Waiting {
    rpc::Responder responder;
    wire::Codes reply;
    std::vector<std::pair<size_t, std::string>> unsettled;  // index into the reply, key
    int64_t deadline_ns = 0;
  };

  Master(io::Reactor& reactor, MasterOptions options);
  void new_term(uint32_t term);

  void accept(std::unique_ptr<io::Stream> stream);
  void request(uint64_t number, rpc::Incoming request, rpc::Responder responder);
  void notice(uint64_t number, const rpc::Incoming& notice);
  void close_session(uint64_t number);
  Session* session(uint64_t number);

  // master_nodes.cpp
  void node_request(Session& session, rpc::Incoming& request, rpc::Responder& responder);
  void node_hello(Session& session, const wire::NodeHello& hello, rpc::Responder& responder);
  void inventory(Session& session, const Bytes& payload, rpc::Responder& responder);
  void inventory_end(Session& session, rpc::Responder& responder);
  void retired(Session& session, const Bytes& payload);
  void repaired(Session& session, const Bytes& payload);
  void node_gone(const InstanceId& id);
  void send_orders_soon();
  bool send_orders();  // true: there may be more to order
  void add_repairs(const Session& to, const catalog::NodeOrder& order, wire::NodeOrder& message);

  // master_hot.cpp
  static void hot_facts(Session& session, const Bytes& payload);
  void hot_caches(rpc::Responder& responder) const;
  void add_hot_stats(wire::PoolStatsReply& reply) const;

  // master_clients.cpp
  void client_request(Session& session, rpc::Incoming& request, rpc::Responder& responder);
  void client_hello(Session& session, const wire::ClientHello& hello, rpc::Responder& responder);
  void put_start(Session& session, wire::PutStart message, rpc::Responder& responder);
  void put_end(Session& session, wire::PutEnd message, rpc::Responder& responder);
  void locate(const Session& session, const wire::Keys& message, rpc::Responder& responder);
  void list(const wire::ListRequest& message, rpc::Responder& responder);
  void put_revoke(const Session& session, wire::PutRevoke message, rpc::Responder& responder);
  void remove(const wire::Keys& message, rpc::Responder& responder);
  void keep(const wire::Keep& message, rpc::Responder& responder);
  void drain(const wire::Drain& message, rpc::Responder& responder);
  // Answers now or when every key whose code is in `wait_for` is settled.
  void answer_settled(rpc::Responder& responder, wire::Codes reply, std::span<const std::string_view> keys,
                      std::initializer_list<Code> wait_for);
  void settle();
  uint32_t node_index(std::vector<wire::NodeRef>& nodes, const InstanceId& id) const;

  void tick();

  io::Reactor& reactor_;
  // Leases of an earlier master may be alive.
  bool earlier_leases() const { return reactor_.now_ns() < earlier_leases_until_ns_; }

  const MasterOptions options_;
  const InstanceId reign_;
  int64_t earlier_leases_until_ns_ = 0;
  int64_t term_started_ns_ = 0;
  catalog::Catalog catalog_;
  std::string address_;
  std::unique_ptr<io::Listener> listener_;
  std::map<uint64_t, Session> sessions_;
  std::set<uint64_t> strangers_;  // sessions that have not said hello
  uint64_t next_session_ = 1;
  std::map<InstanceId, NodeFacts> nodes_;
  std::list<Waiting> waiting_;
  bool orders_posted_ = false;
  uint64_t refused_sessions_ = 0;
  io::Timer tick_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
