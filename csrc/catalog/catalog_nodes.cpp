// Nodes come, report, go and give space back.
#include <cstdlib>
#include <utility>

#include "base/hash.h"
#include "catalog/catalog.h"

namespace moontide::catalog {
namespace {

// Clocks apart: what a node says is left may be a little more or less than what is known here.
bool differs(const Retention& one, const Retention& other) {
  const bool timed = one.ttl_ns != 0;
  return one.pin != other.pin || timed != (other.ttl_ns != 0) || std::abs(one.ttl_ns - other.ttl_ns) > kSecond;
}

}  // namespace

Result<> Catalog::node_join(const NodeId& id, const NodeJoin& join) {
  if (join.reported_term > term_) {
    return fail(Code::kStale, "node " + id.text() + " has seen term " + std::to_string(join.reported_term) +
                                  ", this is term " + std::to_string(term_));
  }
  if (join.capacity_bytes < entry_footprint(0) || join.capacity_bytes > kMaxObjectBytes) {
    return fail(Code::kInvalid, "segment of " + std::to_string(join.capacity_bytes) + " bytes, must be from " +
                                    std::to_string(entry_footprint(0)) + " to " + std::to_string(kMaxObjectBytes));
  }
  Node* node = nodes_.find(id);
  if (node == nullptr) {
    if (nodes_.size() >= limits_.max_nodes) {
      return fail(Code::kOverloaded, "the pool has " + std::to_string(nodes_.size()) + " nodes, its limit");
    }
    node = &nodes_.insert(id);
    node->capacity_bytes = join.capacity_bytes;
    node->policy = make_policy_();
    node->soft_policy = make_policy_();
  } else if (node->capacity_bytes != join.capacity_bytes) {
    return fail(Code::kInvalid, "node " + id.text() + " lent " + std::to_string(node->capacity_bytes) +
                                    " bytes before, now " + std::to_string(join.capacity_bytes));
  }
  node->address = join.address;
  node->state = NodeState::kJoining;
  node->held_bytes = 0;
  drop_repairs(*node);
  ++node->join_round;
  node->to_retire.clear();
  return {};
}

Result<> Catalog::node_inventory(const NodeId& id, std::span<const InventoryEntry> entries, int64_t now_ns) {
  advance(now_ns);
  Node* node = nodes_.find(id);
  if (node == nullptr || node->state != NodeState::kJoining) {
    return fail(Code::kInvalid, "inventory of node " + id.text() + ", which is not joining");
  }
  for (const InventoryEntry& entry : entries) TRY_VOID(take_reported(*node, entry));
  return {};
}

Result<> Catalog::take_reported(Node& node, const InventoryEntry& entry) {
  auto refuse = [&](const char* what) {
    return fail(Code::kInvalid,
                "inventory of node " + node.id.text() + ", generation " + entry.generation.text() + ": " + what);
  };
  if (!key_valid(entry.key)) return refuse("bad key");
  if (entry.generation.empty() || entry.generation.term > term_) return refuse("generation of no term so far");
  if (entry.generation.term == term_ && entry.generation.sequence > sequence_) return refuse("never granted");
  if (entry.length > kMaxObjectBytes || entry.offset % kEntryAlignment != 0 || entry.offset > node.capacity_bytes ||
      entry_footprint(entry.length) > node.capacity_bytes - entry.offset) {
    return refuse("outside the segment");
  }
  if (!retention_valid(entry.retention)) return refuse("bad retention");
  if (node.retiring.contains(entry.generation)) return {};  // ordered again when the inventory is complete
  if (Replica* known = node.replica(entry.generation)) {
    const Object& object = *known->object;
    if (object.key() != entry.key || object.length != entry.length) return refuse("key or length changed");
    take_known(*known, entry);
    return {};
  }
  if (entry_footprint(entry.length) > node.free_bytes()) return refuse("more entries than the segment holds");
  uint64_t key_hash = hash64(as_bytes(entry.key));
  Object* live = objects_.find(entry.key);
  if (live != nullptr && live->generation == entry.generation) {
    adopt_further(node, *live, entry);
    return {};
  }
  bool news = last_ops_.newer(key_hash, entry.generation) && (live == nullptr || live->generation < entry.generation);
  if (!news) {
    add_retiring(node, entry.generation, {.key_hash = key_hash, .footprint = entry_footprint(entry.length)});
    return {};
  }
  if (live != nullptr) retire(*live);
  adopt(node, entry);
  return {};
}

void Catalog::take_known(Replica& replica, const InventoryEntry& entry) {
  Object& object = *replica.object;
  Node& node = *replica.node;
  replica.join_round = node.join_round;
  if (!replica.placed) return;
  if (entry.crc != object.crc && object.placed_count() > 1) return give_up(replica);
  // the node knows better than the client that told the place
  replica.offset = entry.offset;
  object.crc = entry.crc;
  if (!entry.confirmed || differs(entry.retention, retention_of(object))) node.confirm(replica);
}

void Catalog::adopt(Node& node, const InventoryEntry& entry) {
  Object& object = objects_.insert(entry.key);
  object.generation = entry.generation;
  object.length = entry.length;
  object.crc = entry.crc;
  ++counters_.adopted;
  if (!entry.confirmed) open_put(object, ClientId{}, 0);
  Replica& replica = add_replica(object, node);
  replica.offset = entry.offset;
  replica.join_round = node.join_round;
  if (!entry.confirmed) return;
  mark_placed(replica, entry.offset);
  replica.unconfirmed = false;
  retain(object, entry.retention);
  use(object);
  events_.stored(object);
}

void Catalog::adopt_further(Node& node, Object& object, const InventoryEntry& entry) {
  // One that nobody confirmed may have been pulled when its client had given it up; one place by which the object lives
  // is enough to let go of such. And an open put of this reign has only the places that it was granted.
  const bool same = object.length == entry.length && object.replicas().count < kMaxReplicas;
  const bool open = !object.committed() && object.open->writer.empty();
  const bool agrees = object.crc == entry.crc && object.committed() == entry.confirmed;
  const bool confirms = open && entry.confirmed;
  if (!same || (!confirms && !(agrees && (open || object.committed())))) {
    leaves(object, node);
    return add_retiring(
        node, entry.generation,
        {.key_hash = object.key_hash(), .footprint = entry_footprint(entry.length), .beside_live = true});
  }
  ++counters_.adopted;
  Replica& replica = add_replica(object, node);
  replica.offset = entry.offset;
  replica.join_round = node.join_round;
  if (!entry.confirmed) return;
  mark_placed(replica, entry.offset);
  replica.unconfirmed = false;
  if (confirms) {
    object.crc = entry.crc;
    return commit(object, entry.retention);
  }
  count_pin(replica);
  use(replica);
  if (differs(entry.retention, retention_of(object))) node.confirm(replica);
  object.wanted = std::max<uint8_t>(object.wanted, static_cast<uint8_t>(object.placed_count()));
  recount(object);
}

Result<Generation> Catalog::node_ready(const NodeId& id) {
  Node* node = nodes_.find(id);
  if (node == nullptr || node->state != NodeState::kJoining) {
    return fail(Code::kInvalid, "end of the inventory of node " + id.text() + ", which is not joining");
  }
  std::vector<Replica*> gone;
  for (size_t cursor = 0; Replica* replica = node->replicas.next(cursor);) {
    if (replica->placed && replica->join_round != node->join_round) gone.push_back(replica);
  }
  for (Replica* replica : gone) {
    if (replica->object->placed_count() == 1) ++counters_.objects_lost;
    give_up(*replica);
  }
  // Everything unacknowledged again, also what the inventory did not show: a put whose entry is only about to arrive
  // at the node must be refused there before its bytes can be counted as free.
  for (auto& [generation, retiring] : node->retiring) node->to_retire.push_back(generation);
  node->state = NodeState::kReady;
  return ticket_floor(*node);
}

Generation Catalog::ticket_floor(const Node& node) const {
  return node.tickets.empty() ? Generation{term_, sequence_ + 1} : node.tickets.oldest();
}

void Catalog::node_away(const NodeId& id) {
  Node* node = nodes_.find(id);
  if (node == nullptr) return;
  node->state = NodeState::kAway;
  drop_repairs(*node);
  node->to_retire.clear();
}

void Catalog::node_lost(const NodeId& id) {
  Node* node = nodes_.find(id);
  if (node == nullptr) return;
  std::vector<Replica*> gone;
  for (size_t cursor = 0; Replica* replica = node->replicas.next(cursor);) gone.push_back(replica);
  for (Replica* replica : gone) {
    Object& object = *replica->object;
    detach(*replica);
    const bool lives = object.committed() ? object.placed_count() > 0 : object.replicas().count > 0;
    if (lives) {
      recount(object);
    } else {
      lose(object);
    }
  }
  for (auto& [generation, retiring] : node->retiring) end_retiring(retiring);
  nodes_.erase(id);
}

void Catalog::lose(Object& object) {
  // When the node returns after all, a committed object may come back, a failed put may not; what is older than either
  // may not on any node.
  Generation over = object.generation;
  if (object.committed()) {
    ++counters_.objects_lost;
    --over.sequence;
  }
  last_ops_.ended(object.key_hash(), over);
  retire_replicas(object);  // repairs from it may be under way
  end(object, Ending::kLost);
}

std::vector<NodeOrder> Catalog::take_orders(size_t max_items) {
  std::vector<NodeOrder> orders;
  for (auto& [id, node] : nodes_) {
    if (node.state != NodeState::kReady) continue;
    if (node.to_retire.empty() && node.to_confirm.empty() && node.to_repair.empty()) continue;
    NodeOrder order{.node = id, .floor = ticket_floor(node)};
    while (!node.to_confirm.empty() && order.confirm.size() < max_items) {
      Replica* newest = node.replica(node.to_confirm.back());  // whose client is about to be answered
      node.to_confirm.pop_back();
      if (newest == nullptr || !std::exchange(newest->unconfirmed, false)) continue;
      order.confirm.push_back({newest->object->generation, retention_of(*newest->object)});
    }
    order_repairs(node, order, max_items);
    while (!node.to_retire.empty() && order.retire.size() < max_items) {
      Generation generation = node.to_retire.front();
      node.to_retire.pop_front();
      auto it = node.retiring.find(generation);
      if (it != node.retiring.end()) order.retire.push_back({generation, it->second.key_hash});
    }
    if (!order.retire.empty() || !order.confirm.empty() || !order.repair.empty()) orders.push_back(std::move(order));
  }
  return orders;
}

void Catalog::retire_acked(const NodeId& id, std::span<const Generation> generations) {
  Node* node = nodes_.find(id);
  if (node == nullptr) return;
  for (const Generation& generation : generations) {
    auto it = node->retiring.find(generation);
    if (it == node->retiring.end()) continue;
    node->retiring_bytes -= it->second.footprint;
    end_retiring(it->second);
    node->retiring.erase(it);
  }
}

void Catalog::node_holds(const NodeId& id, uint64_t bytes) {
  Node* node = nodes_.find(id);
  if (node == nullptr) return;
  node->held_bytes = 0;
  node->held_bytes = std::min(bytes, node->free_bytes());
}

}  // namespace moontide::catalog
