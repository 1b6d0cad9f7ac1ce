// Sums for metrics, and the recount that tests run after each step.
#include "base/hash.h"
#include "catalog/catalog.h"

namespace moontide::catalog {
namespace {

std::unexpected<Error> broken(const std::string& what) { return fail(Code::kInternal, what); }

std::string unequal(const std::string& what, uint64_t kept, uint64_t counted) {
  return what + ": kept " + std::to_string(kept) + ", counted " + std::to_string(counted);
}

}  // namespace

Stats Catalog::stats() const {
  Stats stats = counters_;
  stats.nodes = nodes_.size();
  for (auto& [id, node] : nodes_) {
    if (node.state == NodeState::kReady) ++stats.nodes_ready;
    stats.capacity_bytes += node.capacity_bytes;
    stats.unfinished_bytes += node.unfinished_bytes;
    stats.committed_bytes += node.committed_bytes;
    stats.retiring_bytes += node.retiring_bytes;
    stats.unfinished += node.unfinished.size();
    stats.committed += node.committed_count();
    stats.retiring += node.retiring.size();
    stats.hard_pinned_bytes += node.hard_bytes;
  }
  return stats;
}

Result<> Catalog::check_invariants() const {
  size_t on_nodes = 0, open = 0, retiring = 0;
  std::unordered_map<uint64_t, uint32_t> retiring_keys;
  for (auto& [id, node] : nodes_) {
    if (id != node.id) return broken("node under another id");
    TRY_VOID(check_node(node));
    on_nodes += node.objects.size();
    open += node.unfinished.size();
    retiring += node.retiring.size();
    for (auto& [generation, entry] : node.retiring) ++retiring_keys[entry.key_hash];
  }
  if (on_nodes != objects_.size()) return broken(unequal("objects", objects_.size(), on_nodes));
  if (open != deadlines_.size()) return broken(unequal("open puts", deadlines_.size(), open));
  if (retiring != retiring_count_) return broken(unequal("retiring", retiring_count_, retiring));
  if (retiring_keys != retiring_keys_) return broken("retiring keys disagree");
  for (auto& [key, object] : objects_) {
    if (object.key != key || object.key_hash != hash64(as_bytes(key))) return broken("object under another key");
    auto it = object.node->objects.find(object.generation);
    if (it == object.node->objects.end() || it->second != &object) return broken("object not on its node");
    if (object.generation.term > term_) return broken("generation " + object.generation.text() + " of a later term");
    if (object.committed() == deadlines_.contains(deadline_of(object))) {
      return broken("deadline of generation " + object.generation.text());
    }
  }
  size_t timed = 0;
  for (auto& [key, object] : objects_) {
    if (object.expires_ns == kNever) continue;
    ++timed;
    if (!object.committed() || !expiries_.contains(expiry_of(object))) return broken("expiry of " + key);
  }
  if (timed != expiries_.size()) return broken(unequal("expiries", expiries_.size(), timed));
  if (last_ops_.size() > limits_.max_endings) return broken("too many remembered endings");
  return {};
}

Result<> Catalog::check_node(const Node& node) const {
  uint64_t unfinished = 0, committed = 0, retiring = 0, in_policy = 0, hard_bytes = 0, hard = 0, soft = 0;
  for (auto& [generation, object] : node.objects) {
    if (object->node != &node || object->generation != generation) return broken("object on another node");
    if (node.retiring.contains(generation)) return broken("generation " + generation.text() + " lives and retires");
    if (object->evictable() != (object->slot != kNoSlot))
      return broken("policy misses generation " + generation.text());
    if (node.tickets.contains(generation) != (!object->committed() && !object->writer.empty())) {
      return broken("ticket of generation " + generation.text());
    }
    if (node.to_confirm.contains(generation) && !object->committed()) return broken("confirms an open put");
    if (object->committed() == node.unfinished.contains(generation)) return broken("open set " + generation.text());
    (object->committed() ? committed : unfinished) += object->footprint();
    if (object->pin == Pin::kSoft) ++soft;
    if (object->pin == Pin::kHard) ++hard, hard_bytes += object->footprint();
    if (object->pin != Pin::kNone && !object->committed()) return broken("pinned before it was committed");
  }
  for (auto& [generation, entry] : node.retiring) retiring += entry.footprint;
  if (unfinished != node.unfinished_bytes) return broken(unequal("unfinished", node.unfinished_bytes, unfinished));
  if (committed != node.committed_bytes) return broken(unequal("committed", node.committed_bytes, committed));
  if (hard_bytes != node.hard_bytes || hard != node.hard_count) return broken(unequal("pins", node.hard_count, hard));
  if (soft != node.soft_count) return broken(unequal("soft pins", node.soft_count, soft));
  if (retiring != node.retiring_bytes) return broken(unequal("retiring", node.retiring_bytes, retiring));
  if (node.used_bytes() > node.capacity_bytes) return broken(unequal("used", node.used_bytes(), node.capacity_bytes));
  auto count = [&](Evictable&) {
    ++in_policy;
    return Verdict::kTake;
  };
  bool all = node.soft_policy->pick(SIZE_MAX, now_ns_, count);
  if (in_policy != node.soft_count) return broken(unequal("objects in the policy of soft pins", in_policy, soft));
  all = node.policy->pick(SIZE_MAX, now_ns_, count) && all;
  if (!all || in_policy != node.evictable_count()) {
    return broken(unequal("objects in the policy", in_policy, node.evictable_count()));
  }
  if (node.state != NodeState::kReady && !node.to_retire.empty()) return broken("retires queued before ready");
  return {};
}

}  // namespace moontide::catalog
