// Draining: what lies on a node goes to others, so that it may be stopped without anybody noticing.
//
// A replica on a node that is drained does not count for what its object wants. So repairs make up for it elsewhere, by
// the rules of repairs: from any place, where there is room without eviction. Once as many as are wanted lie elsewhere,
// or at least one where no further node could have another, the replica here retires. What nobody has room for stays,
// and can be read.
#include "catalog/catalog.h"

namespace moontide::catalog {

Code Catalog::drain(const NodeId& id, bool on) {
  Node* node = nodes_.find(id);
  if (node == nullptr) return Code::kNotFound;
  if (on && !node->draining) drop_repairs(*node);
  node->draining = on;
  node->drained_to = 0;
  ever_drained_ = ever_drained_ || on;
  return Code::kOk;
}

size_t Catalog::staying_count(const Object& object) {
  const auto replicas = object.replicas();
  return std::ranges::count_if(replicas, [](const Replica* one) { return one->placed && !one->node->draining; });
}

// A replica of which its node does not know yet that it was committed would be nothing to a master that starts anew.
bool Catalog::known_elsewhere(const Object& object) {
  const auto replicas = object.replicas();
  return std::ranges::any_of(replicas, [&](const Replica* one) {
    return one->placed && !one->node->draining && one->node->state == NodeState::kReady && !one->unconfirmed;
  });
}

// Another node than those that have it, whether or not it has room now.
bool Catalog::somebody_could_have(const Object& object) const {
  return std::ranges::any_of(nodes_, [&](const auto& entry) {
    const Node& node = entry.second;
    return !node.draining && node.capacity_bytes >= object.footprint() && node.replica(object.generation) == nullptr &&
           !is_avoided(object, node);
  });
}

void Catalog::drain_some() {
  for (auto& [id, node] : nodes_) {
    if (node.draining) drain_some(node);
  }
}

// The next objects of the node, over and over: some come back, or have to wait for room.
void Catalog::drain_some(Node& node) {
  for (size_t looked = 0; looked < limits_.drained_per_tick; ++looked) {
    Replica* replica = node.replicas.next(node.drained_to);
    if (replica == nullptr) {
      node.drained_to = 0;
      return;
    }
    Object& object = *replica->object;
    if (!object.committed() || !replica->placed) continue;
    recount(object);
    if ((object.missing > 0 && somebody_could_have(object)) || !known_elsewhere(object)) continue;
    give_up(*replica);
    ++counters_.drained;
  }
}

}  // namespace moontide::catalog
