#include "store/node.h"

#include "store/retention.h"

namespace moontide::store {
namespace {

constexpr size_t kInventoryPage = 512;

}  // namespace

Node::Node(io::Reactor& reactor, io::Network& network, engine::Engine& engine, NodeOptions options)
    : reactor_(reactor),
      engine_(engine),
      options_(std::move(options)),
      id_(InstanceId::make(reactor.random())),
      secret_{reactor.random().next(), reactor.random().next()},
      dialer_(reactor, network, options_.master, options_.connect_timeout_ns,
              [this](std::unique_ptr<io::Stream> stream) { connected(std::move(stream)); }),
      keep_alive_(reactor) {}

Result<std::unique_ptr<Node>> Node::create(io::Reactor& reactor, io::Network& network, engine::Engine& engine,
                                           std::shared_ptr<memory::Arena> arena, NodeOptions options) {
  std::unique_ptr<Node> node(new Node(reactor, network, engine, std::move(options)));
  TRY(node->region_,
      engine.add_region(arena->data(), arena->size(), memory::kReadable, wire::pool_region_name(node->id_), arena));
  node->storage_ = std::make_unique<Storage>(
      engine, arena, node->secret_, node->options_,
      [raw = node.get()](std::vector<Generation> generations) { raw->retired(std::move(generations)); },
      [raw = node.get()](const wire::RepairedItem& item) { raw->repaired(item); });
  if (node->options_.hot_bytes > 0) {
    TRY(node->hot_cache_, HotCache::create(engine, node->id_, node->storage_->segment(), node->options_));
    node->serve_hot_cache();
  }
  auto serve = [&](uint16_t type, void (*handle)(Storage&, const engine::LinkRef&, rpc::Incoming, rpc::Responder)) {
    engine.serve(type, [raw = node.get(), alive = std::weak_ptr(node->alive_), handle](
                           const engine::LinkRef& link, rpc::Incoming request, rpc::Responder responder) {
      if (alive.expired()) return responder.refuse({Code::kUnavailable, "the node has left"});
      handle(*raw->storage_, link, std::move(request), std::move(responder));
    });
  };
  serve(wire::kStorePull,
        [](Storage& storage, const engine::LinkRef& link, rpc::Incoming request, rpc::Responder responder) {
          storage.serve(link, std::move(request), std::move(responder));
        });
  serve(wire::kViewOpen, [](Storage& storage, const engine::LinkRef& link, rpc::Incoming request,
                            rpc::Responder responder) { storage.views().open(link, request, std::move(responder)); });
  serve(wire::kViewClose, [](Storage& storage, const engine::LinkRef& link, rpc::Incoming request,
                             rpc::Responder responder) { storage.views().close(link, request, std::move(responder)); });
  node->dialer_.dial();
  return node;
}

void Node::serve_hot_cache() {
  auto serve = [this](uint16_t type,
                      void (*handle)(HotCache&, const engine::LinkRef&, const rpc::Incoming&, rpc::Responder)) {
    engine_.serve(type, [this, alive = std::weak_ptr(alive_), handle](
                            const engine::LinkRef& link, const rpc::Incoming& request, rpc::Responder responder) {
      if (alive.expired()) return responder.refuse({Code::kUnavailable, "the node has left"});
      handle(*hot_cache_, link, request, std::move(responder));
    });
  };
  serve(wire::kHotReads, [](HotCache& cache, const engine::LinkRef&, const rpc::Incoming& request,
                            rpc::Responder responder) { cache.serve(request, std::move(responder)); });
  serve(wire::kHotViewOpen, [](HotCache& cache, const engine::LinkRef& link, const rpc::Incoming& request,
                               rpc::Responder responder) { cache.views().open(link, request, std::move(responder)); });
  serve(wire::kHotViewClose,
        [](HotCache& cache, const engine::LinkRef& link, const rpc::Incoming& request, rpc::Responder responder) {
          cache.views().close(link, request, std::move(responder));
        });
}

Node::~Node() {
  alive_.reset();
  channel_.reset();
  hot_cache_.reset();
  storage_.reset();
  if (region_) {
    // the registry keeps the arena until nothing uses the region
    [[maybe_unused]] auto removed = engine_.remove_region(region_->id, {});
  }
}

// ---- the session

void Node::connected(std::unique_ptr<io::Stream> stream) {
  ++session_;
  channel_ = std::make_unique<rpc::Channel>(reactor_, std::move(stream));
  channel_->start({.request = {},
                   .notice =
                       [this](rpc::Incoming notice) {
                         if (notice.type == wire::kNodeOrder) ordered(notice.payload);
                       },
                   .closed = [this](Error cause) { drop_session(cause); }});
  wire::NodeHello hello{.protocol = {},
                        .node = id_,
                        .capacity_bytes = storage_->segment().extents().size(),
                        .address = engine_.address(),
                        .term = term_,
                        .reign = reign_,
                        .secret_low = secret_[0],
                        .secret_high = secret_[1]};
  ask(wire::kNodeHello, wire::encode(hello), [this](const Bytes& payload) {
    auto welcome = wire::decode_prefix<wire::NodeWelcome>(payload);
    if (!welcome) return drop_session(welcome.error());
    welcomed(*welcome);
  });
}

void Node::welcomed(const wire::NodeWelcome& welcome) {
  bool same_reign = welcome.term == term_ && welcome.reign == reign_;
  if (welcome.term <= term_ && !same_reign) {
    return drop_session({Code::kStale, "a master of term " + std::to_string(welcome.term) + ", this node has seen " +
                                           std::to_string(term_)});
  }
  protocol_ = welcome.protocol;
  term_ = welcome.term;
  reign_ = welcome.reign;
  storage_->close_gate(term_);
  send_inventory({});
}

void Node::send_inventory(Generation after) {
  wire::Inventory page = storage_->inventory_after(after, kInventoryPage);
  if (page.items.empty()) {
    return ask(wire::kInventoryEnd, {}, [this](const Bytes& payload) {
      auto end = wire::decode<wire::InventoryEndReply>(payload);
      if (!end) return drop_session(end.error());
      ready(end->floor);
    });
  }
  Generation last = page.items.back().generation;
  ask(wire::kInventory, wire::encode(page), [this, last](const Bytes&) { send_inventory(last); });
}

void Node::ready(Generation floor) {
  joined_ = true;
  dialer_.succeeded();
  storage_->open_gate(floor);
  told_held_ = false;
  if (storage_->segment().held_bytes() > 0) retired({});
  keep_alive();
}

void Node::keep_alive() {
  tell_hot_facts();
  keep_alive_.start(options_.keep_alive_ns, [this] {
    if (!channel_) return;
    ask(wire::kKeepAlive, {}, [this](const Bytes&) { keep_alive(); });
  });
}

void Node::tell_hot_facts() {
  if (hot_cache_ && channel_ && protocol_ >= wire::kProtocolHotCache) {
    channel_->notify(wire::kHotFacts, wire::encode(hot_cache_->facts()));
  }
}

void Node::ordered(const Bytes& payload) {
  auto order = wire::decode<wire::NodeOrder>(payload);
  if (!order) return drop_session(order.error());
  if (!joined_ || order->term != term_) return drop_session({Code::kStale, "an order of another term"});
  const auto& kept = order->kept.value;
  bool valid = kept.empty() || kept.size() == order->confirm.size();
  for (const wire::Kept& one : kept) valid = valid && catalog::retention_valid(from_wire(one));
  if (!valid) return drop_session({Code::kInvalid, "an order that does not say how long entries are kept"});
  storage_->obey(*order);
}

void Node::retired(std::vector<Generation> generations) {
  if (!channel_ || !joined_) return;
  wire::Retired message{std::move(generations)};
  // Also a zero, where it was more before.
  const uint64_t held = storage_->segment().held_bytes();
  if (protocol_ >= wire::kProtocolViews && (held > 0 || told_held_)) message.held_bytes.value = {held};
  told_held_ = held > 0;
  channel_->notify(wire::kRetired, wire::encode(message));
}

void Node::repaired(const wire::RepairedItem& item) {
  if (channel_ && joined_) channel_->notify(wire::kRepaired, wire::encode(wire::Repaired{{item}}));
}

void Node::drop_session(const Error& cause) {
  if (!channel_) return;
  last_error_ = cause.text();
  ++session_;
  joined_ = false;
  keep_alive_.stop();
  channel_->close();
  reactor_.post([channel = std::shared_ptr<rpc::Channel>(std::move(channel_))] {});  // it may be the caller
  dialer_.dial();
}

void Node::ask(uint16_t type, Bytes payload, std::move_only_function<void(const Bytes&)> answer) {
  channel_->call(type, std::move(payload), options_.request_timeout_ns,
                 [this, alive = std::weak_ptr(alive_), session = session_,
                  answer = std::move(answer)](Result<rpc::Reply> reply) mutable {
                   if (alive.expired() || session != session_) return;
                   if (!reply) return drop_session(reply.error());
                   answer(reply->payload);
                 });
}

}  // namespace moontide::store
