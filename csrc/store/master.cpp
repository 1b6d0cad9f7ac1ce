#include "store/master.h"

#include <algorithm>

#include "wire/challenge_messages.h"

namespace moontide::store {

Master::Master(io::Reactor& reactor, MasterOptions options)
    : reactor_(reactor),
      options_(std::move(options)),
      reign_(InstanceId::make(reactor.random())),
      catalog_(options_.catalog, catalog::policy_maker(options_.eviction)),
      tick_(reactor) {
  // two per cent more than what was granted: clocks differ
  earlier_leases_until_ns_ = reactor.now_ns() + options_.earlier_lease_ns + options_.earlier_lease_ns / 50;
  if (options_.events_max > 0) catalog_.note_events(options_.events_max);
  catalog_.start_term(options_.elector_term + 1);
  term_started_ns_ = reactor.now_ns();
}

Result<std::unique_ptr<Master>> Master::create(io::Reactor& reactor, io::Network& network, MasterOptions options) {
  if (!catalog::policy_maker(options.eviction)) return fail(Code::kInvalid, "no eviction policy " + options.eviction);
  std::unique_ptr<Master> master(new Master(reactor, std::move(options)));
  Master* raw = master.get();
  TRY(master->listener_, network.listen(master->options_.listen,
                                        [raw](std::unique_ptr<io::Stream> stream) { raw->accept(std::move(stream)); }));
  master->address_ = master->listener_->address();
  master->tick();
  return master;
}

Master::~Master() {
  alive_.reset();
  listener_.reset();
  waiting_.clear();
  sessions_.clear();
}

// Everything is forgotten and comes back by the nodes' inventories.
void Master::new_term(uint32_t term) {
  catalog_.start_term(term);
  term_started_ns_ = reactor_.now_ns();
  // leases of the term that ends, and of the master that a node knew instead of this one
  int64_t lease_ns = std::max(options_.catalog.lease_ns, options_.earlier_lease_ns);
  earlier_leases_until_ns_ = reactor_.now_ns() + lease_ns + lease_ns / 50;
  std::vector<uint64_t> to_close;
  for (auto& [number, session] : sessions_) {
    if (!session.node.empty()) to_close.push_back(number);
  }
  nodes_.clear();
  for (uint64_t number : to_close) close_session(number);
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    waiting.responder.refuse({Code::kUnavailable, "a new term began, ask again"});
  }
}

// ---- sessions

void Master::accept(std::unique_ptr<io::Stream> stream) {
  if (sessions_.size() >= options_.sessions_max) {
    ++refused_sessions_;
    return;  // closes it
  }
  if (strangers_.size() >= options_.strangers_max) {
    ++refused_sessions_;
    close_session(*strangers_.begin());
  }
  uint64_t number = next_session_++;
  strangers_.insert(number);
  Session& session = sessions_[number];
  session.number = number;
  session.last_heard_ns = reactor_.now_ns();
  session.channel = std::make_unique<rpc::Channel>(reactor_, std::move(stream), rpc::kStrangerLimits);
  session.channel->start({.request =
                              [this, number](rpc::Incoming incoming, rpc::Responder responder) {
                                request(number, std::move(incoming), std::move(responder));
                              },
                          .notice = [this, number](rpc::Incoming incoming) { notice(number, incoming); },
                          .closed = [this, number](Error) { close_session(number); }});
}

Master::Session* Master::session(uint64_t number) {
  auto it = sessions_.find(number);
  return it == sessions_.end() ? nullptr : &it->second;
}

void Master::request(uint64_t number, rpc::Incoming request, rpc::Responder responder) {
  Session* from = session(number);
  if (from == nullptr) return responder.refuse({Code::kClosed, "the session is over"});
  from->last_heard_ns = reactor_.now_ns();
  if (strangers_.contains(number)) {
    if (request.type != wire::kNodeHello && request.type != wire::kClientHello) {
      // answering costs this side more than asking costs a stranger: one question that is no hello is enough
      ++refused_sessions_;
      responder.refuse(request.type == wire::kChallengeHello ? Error{Code::kDenied, wire::kNoSecretHere}
                                                             : Error{Code::kInvalid, "say hello first"});
      return close_session(number);
    }
    strangers_.erase(number);
    from->channel->limit({});
  }
  switch (request.type) {
    case wire::kKeepAlive:
      return responder.reply(Bytes{});
    case wire::kPoolStats:
      return responder.reply(stats());
    case wire::kHotCaches:
      return hot_caches(responder);
    case wire::kNodeHello:
    case wire::kInventory:
    case wire::kInventoryEnd:
      return node_request(*from, request, responder);
    default:
      return client_request(*from, request, responder);
  }
}

void Master::notice(uint64_t number, const rpc::Incoming& notice) {
  Session* from = session(number);
  if (from == nullptr) return;
  from->last_heard_ns = reactor_.now_ns();
  if (notice.type == wire::kRetired && !from->node.empty()) return retired(*from, notice.payload);
  if (notice.type == wire::kRepaired && !from->node.empty()) return repaired(*from, notice.payload);
  if (notice.type == wire::kHotFacts && !from->node.empty()) return hot_facts(*from, notice.payload);
  if (notice.type == wire::kTouch && !from->client.empty()) {
    if (auto touched = wire::decode<wire::Keys>(notice.payload)) catalog_.touch(touched->keys);
  }
}

void Master::close_session(uint64_t number) {
  auto found = sessions_.extract(number);
  if (found.empty()) return;
  strangers_.erase(number);
  Session& over = found.mapped();
  over.channel->close();
  reactor_.post([channel = std::shared_ptr<rpc::Channel>(std::move(over.channel))] {});  // it may be the caller
  const auto is_same = [&](const auto& item) { return item.second.client == over.client; };
  if (!over.client.empty() && std::ranges::none_of(sessions_, is_same)) catalog_.client_away(over.client);
  auto facts = nodes_.find(over.node);
  if (facts == nodes_.end() || facts->second.session != number) return;
  facts->second.session = 0;
  facts->second.away_since_ns = reactor_.now_ns();
  catalog_.node_away(over.node);
}

void Master::tick() {
  int64_t now = reactor_.now_ns();
  catalog_.tick(now);
  std::vector<uint64_t> silent;
  for (auto& [number, session] : sessions_) {
    if (now - session.last_heard_ns > options_.session_timeout_ns) silent.push_back(number);
  }
  for (uint64_t number : silent) close_session(number);
  // Not before every lease on its objects is over: a reader may reach it though the master does not.
  int64_t grace_ns = std::max(options_.node_grace_ns, options_.catalog.lease_ns + options_.catalog.lease_ns / 50);
  std::vector<InstanceId> given_up;
  for (auto& [id, facts] : nodes_) {
    if (facts.session == 0 && now - facts.away_since_ns > grace_ns) given_up.push_back(id);
  }
  for (const InstanceId& id : given_up) node_gone(id);
  settle();
  send_orders_soon();
  tick_.start(options_.tick_ns, [this] { tick(); });
}

wire::PoolStatsReply Master::stats() const {
  catalog::Stats stats = catalog_.stats();
  wire::PoolStatsReply reply;
  auto add = [&](const char* name, uint64_t value) { reply.counts.push_back({name, value}); };
  add("term", catalog_.term());
  add("sessions", sessions_.size());
  add("sessions_refused", refused_sessions_);
  add("answers_waiting", waiting_.size());
  add("nodes", stats.nodes);
  add("nodes_ready", stats.nodes_ready);
  add("nodes_draining", stats.nodes_draining);
  add("capacity_bytes", stats.capacity_bytes);
  add("unfinished_bytes", stats.unfinished_bytes);
  add("committed_bytes", stats.committed_bytes);
  add("retiring_bytes", stats.retiring_bytes);
  add("held_bytes", stats.held_bytes);
  add("objects_unfinished", stats.unfinished);
  add("objects", stats.committed);
  add("objects_retiring", stats.retiring);
  add("replicas", stats.replicas);
  add("replicas_short", stats.replicas_short);
  add("hard_pinned_bytes", stats.hard_pinned_bytes);
  add("located", stats.located);
  add("missed", stats.missed);
  add("evicted", stats.evicted);
  add("removed", stats.removed);
  add("expired", stats.expired);
  add("puts_granted", stats.puts_granted);
  add("puts_committed", stats.puts_committed);
  add("puts_expired", stats.puts_expired);
  add("puts_stale", stats.puts_stale);
  add("puts_no_space", stats.puts_no_space);
  add("adopted", stats.adopted);
  add("objects_lost", stats.objects_lost);
  add("repairs", stats.repairs);
  add("repairs_failed", stats.repairs_failed);
  add("drained", stats.drained);
  add_hot_stats(reply);
  return reply;
}

}  // namespace moontide::store
