// Replicas that are missing: nodes are told to pull them from one another.
//
// The bytes of a repair are a replica that is not placed of an object that is committed. It ends as any replica does:
// with its object, or alone when its node says that it failed or leaves, and then the node is told so as of any entry
// that retires. Nobody but the node that pulled knows of the entry before the master hears of it, and a master that
// starts anew lets go of it, since nobody confirmed it.
#include "catalog/catalog.h"

namespace moontide::catalog {

void Catalog::begin_repairs() {
  auto it = short_.upper_bound(Short{repair_after_.first, repair_after_.second});
  const size_t most = std::min(limits_.repairs_per_tick, short_.size());
  for (size_t looked = 0; looked < most && repairing_ < limits_.repairs_max; ++looked) {
    if (it == short_.end()) it = short_.begin();
    if (it == short_.end()) return;
    repair_after_ = {it->first.first, std::string(it->first.second)};
    const Lacking lacking = (it++)->second;  // it may lack nothing any more
    if (lacking.not_before_ns <= now_ns_) begin_repair(*lacking.object);
  }
}

bool Catalog::is_avoided(const Object& object, const Node& node) {
  if (object.further == nullptr) return false;
  return std::ranges::find(object.further->avoid, node.id) != object.further->avoid.end();
}

void Catalog::begin_repair(Object& object) {
  recount(object);
  const auto replicas = object.replicas();
  const auto staying = std::ranges::count_if(replicas, [](const Replica* one) { return !one->node->draining; });
  const bool has_source = std::ranges::any_of(
      replicas, [](const Replica* one) { return one->placed && one->node->state == NodeState::kReady; });
  const bool enough = std::cmp_greater_equal(staying, object.wanted) || replicas.count == kMaxReplicas;
  if (enough || !has_source || expired(object)) return;
  auto may = [&](const Node& node) {
    if (node.replica(object.generation) != nullptr || node.retiring.contains(object.generation)) return false;
    if (is_avoided(object, node)) return false;
    return has_spare_room(node, object.footprint());
  };
  Node* node = nodes_.least_full(object.footprint(), may);
  if (node == nullptr) return;
  add_replica(object, *node).repair = true;
  node->repairs.insert(object.generation);
  node->to_repair.push_back(object.generation);
  ++repairing_;
}

void Catalog::order_repairs(Node& node, NodeOrder& order, size_t max_items) {
  while (!node.to_repair.empty() && order.repair.size() < max_items) {
    const Generation generation = node.to_repair.front();
    node.to_repair.pop_front();
    Replica* wanted = node.replica(generation);
    if (wanted == nullptr || !wanted->repair) continue;
    const Object& object = *wanted->object;
    const auto replicas = object.replicas();
    const auto source = std::ranges::find_if(
        replicas, [](const Replica* one) { return one->placed && one->node->state == NodeState::kReady; });
    if (source == replicas.end()) {
      give_up(*wanted);
      continue;
    }
    order.repair.push_back({.key = std::string(object.key()),
                            .generation = generation,
                            .length = object.length,
                            .crc = object.crc,
                            .source = (*source)->node->id,
                            .offset = (*source)->offset});
  }
}

void Catalog::repaired(const NodeId& id, std::span<const RepairedItem> items, int64_t now_ns) {
  advance(now_ns);
  Node* node = nodes_.find(id);
  if (node == nullptr) return;
  for (const RepairedItem& item : items) {
    Replica* known = node->replica(item.generation);
    if (known == nullptr || !known->repair) continue;  // it ended meanwhile
    Replica& replica = *known;
    Object& object = *replica.object;
    const bool inside = item.offset % kEntryAlignment == 0 && item.offset <= node->capacity_bytes &&
                        object.footprint() <= node->capacity_bytes - item.offset;
    if (item.code != Code::kOk || item.crc != object.crc || !inside) {
      ++counters_.repairs_failed;
      // (it is not short any more where a node came back meanwhile)
      const auto lacking = short_.find(short_of(object));
      if (lacking != short_.end()) lacking->second.not_before_ns = now_ns_ + limits_.repair_pause_ns;
      give_up(replica);
      continue;
    }
    mark_placed(replica, item.offset);
    count_pin(replica);
    use(replica);
    recount(object);
    ++counters_.repairs;
  }
}

void Catalog::drop_repairs(Node& node) {
  node.to_repair.clear();
  while (!node.repairs.empty()) give_up(*node.replica(*node.repairs.begin()));
}

}  // namespace moontide::catalog
