// The master's side of its nodes: joining, orders, acknowledgements, the loss of one.
#include "store/master.h"
#include "store/retention.h"

namespace moontide::store {
namespace {

// Terms grow by one per start of a master: a node that reports more than so many ahead is wrong, or lies to use them
// up.
constexpr uint32_t kTermStepMax = 1u << 16;

constexpr size_t kOrderItems = 1024;

}  // namespace

void Master::node_request(Session& session, rpc::Incoming& request, rpc::Responder& responder) {
  if (request.type == wire::kNodeHello) {
    auto hello = wire::decode_prefix<wire::NodeHello>(request.payload);
    if (!hello) return responder.refuse(hello.error());
    return node_hello(session, *hello, responder);
  }
  if (session.node.empty()) return responder.refuse({Code::kInvalid, "no hello came before the inventory"});
  if (request.type == wire::kInventory) return inventory(session, request.payload, responder);
  inventory_end(session, responder);
}

void Master::node_hello(Session& session, const wire::NodeHello& hello, rpc::Responder& responder) {
  auto [min, max] = hello.protocol;
  if (min > wire::kProtocolMax || max < wire::kProtocolMin) {
    return responder.refuse({Code::kIncompatible, "node speaks protocol " + std::to_string(min) + " to " +
                                                      std::to_string(max) + ", this master " +
                                                      std::to_string(wire::kProtocolMin) + " to " +
                                                      std::to_string(wire::kProtocolMax)});
  }
  if (hello.node.empty() || !session.node.empty() || !session.client.empty()) {
    return responder.refuse({Code::kInvalid, "a node's hello without an id, or a second one"});
  }
  const SipKey secret{hello.secret_low, hello.secret_high};
  auto known = nodes_.find(hello.node);
  if (known != nodes_.end() && known->second.secret != secret) {  // ids are no secrets: every client sees them
    return responder.refuse({Code::kDenied, "another process has this node's id"});
  }
  if (hello.term == UINT32_MAX || (hello.term > catalog_.term() && hello.term - catalog_.term() > kTermStepMax)) {
    return responder.refuse({Code::kInvalid, "term " + std::to_string(hello.term) + " is implausible, this one is " +
                                                 std::to_string(catalog_.term())});
  }
  // Another master reigned in this term or a later one: generations of ours would not be newer than its.
  bool seen_by_another = hello.term == catalog_.term() && hello.reign != reign_;
  if (hello.term > catalog_.term() || seen_by_another) {
    new_term(hello.term + 1);
  }
  auto joined = catalog_.node_join(hello.node, {hello.capacity_bytes, hello.address, hello.term});
  if (!joined) return responder.refuse(joined.error());
  NodeFacts& facts = nodes_[hello.node];
  uint64_t before = std::exchange(facts.session, session.number);
  facts.secret = secret;
  session.node = hello.node;
  session.protocol = std::min(max, wire::kProtocolMax);
  if (before != 0) close_session(before);
  responder.reply(wire::NodeWelcome{session.protocol, catalog_.term(), reign_});
}

void Master::inventory(Session& session, const Bytes& payload, rpc::Responder& responder) {
  auto message = wire::decode<wire::Inventory>(payload);
  if (!message) return responder.refuse(message.error());
  if (!message->kept.value.empty() && message->kept.value.size() != message->items.size()) {
    responder.refuse({Code::kInvalid, "it is not said of every entry how long it is kept"});
    return close_session(session.number);
  }
  std::vector<catalog::InventoryEntry> entries;
  entries.reserve(message->items.size());
  for (wire::InventoryItem& item : message->items) {
    const catalog::Retention retention = retention_at(message->kept, entries.size());
    entries.push_back(
        {std::move(item.key), item.generation, item.length, item.offset, item.crc, item.confirmed, retention});
  }
  if (auto taken = catalog_.node_inventory(session.node, entries, reactor_.now_ns()); !taken) {
    responder.refuse(taken.error());
    return close_session(session.number);
  }
  responder.reply(Bytes{});
}

void Master::inventory_end(Session& session, rpc::Responder& responder) {
  auto floor = catalog_.node_ready(session.node);
  if (!floor) return responder.refuse(floor.error());
  responder.reply(wire::InventoryEndReply{*floor});
  send_orders_soon();
}

void Master::retired(Session& session, const Bytes& payload) {
  auto message = wire::decode<wire::Retired>(payload);
  if (!message) return close_session(session.number);
  catalog_.retire_acked(session.node, message->generations);
  const auto& held = message->held_bytes.value;
  if (held.size() > 1) return close_session(session.number);
  if (!held.empty()) catalog_.node_holds(session.node, held.front());
  settle();
}

void Master::repaired(Session& session, const Bytes& payload) {
  auto message = wire::decode<wire::Repaired>(payload);
  if (!message) return close_session(session.number);
  std::vector<catalog::RepairedItem> items;
  for (const wire::RepairedItem& item : message->items)
    items.push_back({item.generation, item.code, item.offset, item.crc});
  catalog_.repaired(session.node, items, reactor_.now_ns());
  send_orders_soon();
}

void Master::node_gone(const InstanceId& id) {
  nodes_.erase(id);
  catalog_.node_lost(id);
  settle();
}

void Master::send_orders_soon() {
  if (std::exchange(orders_posted_, true)) return;
  reactor_.post([this, alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    orders_posted_ = false;
    send_orders();
  });
}

void Master::add_repairs(const Session& to, const catalog::NodeOrder& order, wire::NodeOrder& message) {
  std::vector<catalog::RepairedItem> impossible;
  for (const catalog::RepairItem& item : order.repair) {
    const catalog::Node* source = catalog_.node(item.source);
    if (to.protocol < wire::kProtocolReplicas || source == nullptr) {
      impossible.push_back({.generation = item.generation, .code = Code::kUnsupported});
      continue;
    }
    message.repair.value.push_back(
        {item.key, item.generation, item.length, item.crc, item.source, source->address, item.offset});
  }
  catalog_.repaired(order.node, impossible, reactor_.now_ns());
}

bool Master::send_orders() {
  bool more = false;
  for (catalog::NodeOrder& order : catalog_.take_orders(kOrderItems)) {
    Session* to = session(nodes_[order.node].session);
    if (to == nullptr) continue;  // away: everything is ordered again when it is back
    wire::NodeOrder message{.term = catalog_.term(), .floor = order.floor, .confirm = {}, .retire = {}};
    for (const catalog::ConfirmItem& item : order.confirm) {
      message.confirm.push_back(item.generation);
      message.kept.value.push_back(to_wire(item.retention));
    }
    message.kept.value = if_any(std::move(message.kept.value));
    message.retire.reserve(order.retire.size());
    for (const catalog::RetireItem& item : order.retire) message.retire.push_back({item.generation, item.key_hash});
    add_repairs(*to, order, message);
    more = more || message.repair.value.size() == kOrderItems || message.confirm.size() == kOrderItems ||
           message.retire.size() == kOrderItems;
    to->channel->notify(wire::kNodeOrder, wire::encode(message));
  }
  if (more) send_orders_soon();
  return more;
}

}  // namespace moontide::store
