// The places of objects: how they come, count and go.
#include "catalog/catalog.h"

namespace moontide::catalog {

Replica& Catalog::add_replica(Object& object, Node& node) {
  Replica& replica = object.add_replica();
  replica.node = &node;
  node.replicas.insert(replica);
  ++node.unfinished_count;
  node.unfinished_bytes += object.footprint();
  ++replica_count_;
  return replica;
}

void Catalog::mark_placed(Replica& replica, uint64_t offset) {
  Node& node = *replica.node;
  const Object& object = *replica.object;
  leave_unfinished(replica);
  node.committed_bytes += object.footprint();
  replica.placed = true;
  node.confirm(replica);
  replica.offset = offset;
  replica.join_round = node.join_round;
}

void Catalog::leave_unfinished(Replica& replica) {
  Node& node = *replica.node;
  const Object& object = *replica.object;
  --node.unfinished_count;
  node.unfinished_bytes -= object.footprint();
  if (std::exchange(replica.repair, false)) {
    --repairing_;
    node.repairs.erase(object.generation);
  } else {
    node.tickets.erase(object.generation);
  }
}

void Catalog::detach(Replica& replica) {
  Node& node = *replica.node;
  Object& object = *replica.object;
  if (node.last_of_batch == &replica) node.last_of_batch = nullptr;
  if (replica.placed) {
    if (replica.slot != kNoSlot) policy_of(replica)->erased(replica);
    discount_pin(replica);
    node.committed_bytes -= object.footprint();
  } else {
    leave_unfinished(replica);
  }
  node.replicas.erase(replica);
  --replica_count_;
  object.remove_replica(replica);
}

void Catalog::give_up(Replica& replica, Ending why) {
  Object& object = *replica.object;
  bool lives = false;
  for (const Replica* other : object.replicas()) {
    if (other != &replica && (other->placed || !object.committed())) lives = true;
  }
  if (!lives) return retire(object, why);
  Node& node = *replica.node;
  detach(replica);
  retire_beside(object, node);
  recount(object);
}

void Catalog::leaves(Object& object, const Node& node) {
  if (object.further != nullptr) {
    std::erase_if(object.further->leaving, [&](const NodeId& id) {
      const Node* left = nodes_.find(id);
      return left == nullptr || !left->retiring.contains(object.generation);
    });
  }
  object.leaves(node.id);
}

void Catalog::retire_beside(Object& object, Node& node) {
  leaves(object, node);
  add_retiring(node, object.generation,
               {.key_hash = object.key_hash(), .footprint = object.footprint(), .beside_live = true});
}

void Catalog::retire(Object& object, Ending why) {
  last_ops_.ended(object.key_hash(), object.generation);
  retire_replicas(object);
  end(object, why);
}

void Catalog::retire_replicas(Object& object) {
  for (Replica* replica : object.replicas()) {
    Node& node = *replica->node;
    detach(*replica);
    add_retiring(node, object.generation, {.key_hash = object.key_hash(), .footprint = object.footprint()});
  }
}

void Catalog::end(Object& object, Ending why) {
  if (object.committed()) {
    events_.removed(object, why);
  } else {
    close_put(object);
  }
  if (object.expires_ns != kNever) expiries_.erase(expiry_of(object));
  if (object.missing > 0) {
    short_.erase(short_of(object));
    missing_ -= object.missing;
  }
  // What retired beside it is from now on the older entry of its key.
  for (size_t i = 0; object.further != nullptr && i < object.further->leaving.size(); ++i) {
    Node* node = nodes_.find(object.further->leaving[i]);
    if (node == nullptr) continue;
    auto it = node->retiring.find(object.generation);
    if (it == node->retiring.end() || !it->second.beside_live || it->second.key_hash != object.key_hash()) continue;
    it->second.beside_live = false;
    ++retiring_keys_[object.key_hash()];
  }
  objects_.erase(object);
}

void Catalog::add_retiring(Node& node, Generation generation, const Retiring& retiring) {
  node.retiring.emplace(generation, retiring);
  node.retiring_bytes += retiring.footprint;
  if (!retiring.beside_live) ++retiring_keys_[retiring.key_hash];
  ++retiring_count_;
  // Of a node that is not ready, `node_ready` queues all at once.
  if (node.state == NodeState::kReady) node.to_retire.push_back(generation);
}

void Catalog::end_retiring(const Retiring& retiring) {
  --retiring_count_;
  if (retiring.beside_live) return;
  auto it = retiring_keys_.find(retiring.key_hash);
  if (--it->second == 0) retiring_keys_.erase(it);
}

void Catalog::recount(Object& object) {
  const size_t staying = staying_count(object);
  const auto missing =
      static_cast<uint8_t>(object.committed() && staying < object.wanted ? object.wanted - staying : 0);
  if (missing == object.missing) return;
  missing_ += missing;
  missing_ -= object.missing;
  if (object.missing == 0) short_.emplace(short_of(object), Lacking{&object, 0});
  if (missing == 0) short_.erase(short_of(object));
  object.missing = missing;
}

}  // namespace moontide::catalog
