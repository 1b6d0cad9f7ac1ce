#include "catalog/node_table.h"

#include <algorithm>

namespace moontide::catalog {
namespace {

// used_a / capacity_a < used_b / capacity_b, exactly.
bool emptier(uint64_t used_a, uint64_t capacity_a, uint64_t used_b, uint64_t capacity_b) {
  return static_cast<unsigned __int128>(used_a) * capacity_b < static_cast<unsigned __int128>(used_b) * capacity_a;
}

}  // namespace

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

Node* NodeTable::least_full(uint64_t footprint) {
  Node* best = nullptr;
  for (auto& [id, node] : map_) {
    if (node.state != NodeState::kReady || node.free_bytes() < footprint) continue;
    if (best == nullptr || emptier(node.used_bytes() + footprint, node.capacity_bytes, best->used_bytes() + footprint,
                                   best->capacity_bytes)) {
      best = &node;
    }
  }
  return best;
}

Node* NodeTable::cheapest_to_clear(uint64_t footprint) {
  Node* best = nullptr;
  for (auto& [id, node] : map_) {
    if (node.state != NodeState::kReady) continue;
    if (node.capacity_bytes - node.unfinished_bytes - node.hard_bytes < footprint) continue;
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

uint64_t NodeTable::largest_segment(bool ready_only) const {
  uint64_t largest = 0;
  for (auto& [id, node] : map_) {
    if (!ready_only || node.state == NodeState::kReady) largest = std::max(largest, node.capacity_bytes);
  }
  return largest;
}

}  // namespace moontide::catalog
