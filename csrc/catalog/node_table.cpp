#include "catalog/node_table.h"

#include <algorithm>
#include <utility>

namespace moontide::catalog {
namespace {

bool avoided(const Node& node, const Placement& placement) {
  return std::ranges::find(placement.avoid, node.id) != placement.avoid.end();
}

}  // namespace

void Node::confirm(Replica& replica) {
  if (std::exchange(replica.unconfirmed, true)) return;
  to_confirm.push_back(replica.object->generation);
  if (to_confirm.size() <= 2 * replicas.size() + 64) return;
  std::erase_if(to_confirm, [this](const Generation& generation) {
    const Replica* one = this->replica(generation);
    return one == nullptr || !one->unconfirmed;
  });
}

// (used_a + footprint) / capacity_a < (used_b + footprint) / capacity_b, exactly.
bool NodeTable::emptier(const Node& a, const Node& b, uint64_t footprint) {
  return static_cast<unsigned __int128>(a.used_bytes() + footprint) * b.capacity_bytes <
         static_cast<unsigned __int128>(b.used_bytes() + footprint) * a.capacity_bytes;
}

Node* NodeTable::find(const NodeId& id) {
  auto it = map_.find(id);
  return it == map_.end() ? nullptr : &it->second;
}

const Node* NodeTable::find(const NodeId& id) const {
  auto it = map_.find(id);
  return it == map_.end() ? nullptr : &it->second;
}

Node& NodeTable::insert(const NodeId& id) {
  auto [it, fresh] = map_.try_emplace(id);
  MT_CHECK(fresh, id.text());
  it->second.id = id;
  return it->second;
}

std::vector<Node*> NodeTable::choose(uint64_t footprint, const Placement& placement) {
  std::vector<Node*> chosen;
  auto may = [&](const Node& node) {
    return std::ranges::find(chosen, &node) == chosen.end() && !avoided(node, placement);
  };
  for (const NodeId& id : placement.prefer) {
    Node* node = find(id);
    if (chosen.size() < placement.replicas && node != nullptr && takes(*node, footprint) && may(*node))
      chosen.push_back(node);
  }
  while (chosen.size() < placement.replicas) {
    Node* node = least_full(footprint, may);
    if (node == nullptr) break;
    chosen.push_back(node);
  }
  return chosen;
}

Node* NodeTable::cheapest_to_clear(uint64_t footprint, const Placement& placement) {
  Node* best = nullptr;
  for (auto& [id, node] : map_) {
    if (node.state != NodeState::kReady || node.draining || avoided(node, placement)) continue;
    if (node.capacity_bytes - node.unfinished_bytes - node.unevictable_bytes() < footprint) continue;
    if (best == nullptr || node.free_bytes() + node.retiring_bytes > best->free_bytes() + best->retiring_bytes) {
      best = &node;
    }
  }
  return best;
}

Node* NodeTable::most_objects() {
  Node* best = nullptr;
  for (auto& [id, node] : map_) {
    if (node.state != NodeState::kReady || node.evictable_count() == 0) continue;
    if (best == nullptr || node.evictable_count() > best->evictable_count()) best = &node;
  }
  return best;
}

uint64_t NodeTable::largest_segment(bool ready_only, const Placement& placement) const {
  uint64_t largest = 0;
  for (auto& [id, node] : map_) {
    if (avoided(node, placement)) continue;
    if (!ready_only || (node.state == NodeState::kReady && !node.draining))
      largest = std::max(largest, node.capacity_bytes);
  }
  return largest;
}

}  // namespace moontide::catalog
