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
  stats.unfinished = open_puts_.size();
  stats.committed = objects_.size() - open_puts_.size();
  stats.replicas_short = missing_;
  stats.nodes = nodes_.size();
  for (auto& [id, node] : nodes_) {
    if (node.state == NodeState::kReady) ++stats.nodes_ready;
    stats.capacity_bytes += node.capacity_bytes;
    stats.unfinished_bytes += node.unfinished_bytes;
    stats.committed_bytes += node.committed_bytes;
    stats.retiring_bytes += node.retiring_bytes;
    stats.replicas += node.committed_count();
    stats.retiring += node.retiring.size();
    stats.hard_pinned_bytes += node.hard_bytes;
    stats.held_bytes += node.held_bytes;
    stats.nodes_draining += node.draining ? 1 : 0;
  }
  return stats;
}

Result<> Catalog::check_invariants() const {
  size_t on_nodes = 0, open = 0, retiring = 0, beside_live = 0, replicas = 0, timed = 0, leaving = 0, lacking = 0,
         repairing = 0;
  uint64_t missing = 0;
  std::unordered_map<uint64_t, uint32_t> retiring_keys;
  for (auto& [id, node] : nodes_) {
    if (id != node.id) return broken("node under another id");
    TRY_VOID(check_node(node));
    on_nodes += node.replicas.size();
    retiring += node.retiring.size();
    for (auto& [generation, entry] : node.retiring) {
      if (entry.beside_live) {
        ++beside_live;
      } else {
        ++retiring_keys[entry.key_hash];
      }
    }
  }
  std::string_view before;
  for (const Object& object : objects_.ordered()) {
    if (object.key() <= before) return broken("objects out of order");
    before = object.key();
    TRY_VOID(check_object(object));
    replicas += object.replicas().count;
    if (!object.committed()) ++open;
    if (object.expires_ns != kNever) ++timed;
    if (object.missing > 0) ++lacking;
    missing += object.missing;
    for (const Replica* replica : object.replicas()) repairing += replica->repair;
    for (size_t i = 0; object.further != nullptr && i < object.further->leaving.size(); ++i) {
      const Node* node = nodes_.find(object.further->leaving[i]);
      const auto it = node == nullptr ? decltype(node->retiring.begin()){} : node->retiring.find(object.generation);
      if (node != nullptr && it != node->retiring.end() && it->second.beside_live) ++leaving;
    }
  }
  if (replicas != replica_count_ || replicas != on_nodes) return broken(unequal("replicas", replica_count_, on_nodes));
  if (repairing != repairing_) return broken(unequal("repairs", repairing_, repairing));
  if (leaving != beside_live) return broken(unequal("retiring beside the living", beside_live, leaving));
  if (missing != missing_ || lacking != short_.size()) return broken(unequal("missing replicas", missing_, missing));
  if (open != open_puts_.size()) return broken(unequal("open puts", open_puts_.size(), open));
  if (!std::ranges::is_sorted(open_puts_, {}, &OpenPut::deadline_ns)) return broken("open puts out of order");
  if (retiring != retiring_count_) return broken(unequal("retiring", retiring_count_, retiring));
  if (retiring_keys != retiring_keys_) return broken("retiring keys disagree");
  if (timed != expiries_.size()) return broken(unequal("expiries", expiries_.size(), timed));
  if (last_ops_.size() > limits_.max_endings) return broken("too many remembered endings");
  return {};
}

Result<> Catalog::check_object(const Object& object) const {
  const std::string generation = "generation " + object.generation.text();
  if (objects_.find(object.key()) != &object || object.key_hash() != hash64(as_bytes(object.key())))
    return broken("object under another key");
  if (object.generation.term > term_) return broken(generation + " of a later term");
  if (!object.committed() && (object.open->object != &object || &*object.open->self != object.open))
    return broken("open put of " + generation);
  if (object.expires_ns != kNever && (!object.committed() || !expiries_.contains(expiry_of(object)))) {
    return broken("expiry of " + generation);
  }
  if (object.pin != Pin::kNone && !object.committed()) return broken("pinned before it was committed");
  std::vector<const Node*> nodes;
  for (const Replica* replica : object.replicas()) {
    if (replica->object != &object || replica->key_hash != object.key_hash())
      return broken("replica of another object");
    if (std::ranges::find(nodes, replica->node) != nodes.end())
      return broken("two replicas on one node: " + generation);
    nodes.push_back(replica->node);
    if (replica->node->replica(object.generation) != replica) return broken("replica not on its node");
    if (replica->repair != (!replica->placed && object.committed())) return broken("repair of " + generation);
    if (replica->placed && !object.committed()) return broken("placed before it was committed: " + generation);
  }
  const size_t placed = object.placed_count();
  if (nodes.empty() || (object.committed() && placed == 0)) return broken("nowhere: " + generation);
  const size_t staying = staying_count(object);
  const size_t missing = object.committed() && staying < object.wanted ? object.wanted - staying : 0;
  if (missing != object.missing && !ever_drained_)
    return broken(unequal("missing of " + generation, object.missing, missing));
  if (short_.contains(short_of(object)) != (object.missing > 0))
    return broken("list of what is missing: " + generation);
  return {};
}

Result<> Catalog::check_node(const Node& node) const {
  uint64_t unfinished = 0, committed = 0, retiring = 0, in_policy = 0, hard_bytes = 0, hard = 0, soft = 0;
  size_t unplaced = 0, repairs = 0, unconfirmed = 0;
  for (size_t cursor = 0; const Replica* replica = node.replicas.next(cursor);) {
    const Object* object = replica->object;
    const Generation generation = object->generation;
    if (replica->node != &node || node.replica(generation) != replica) return broken("replica on another node");
    if (node.retiring.contains(generation)) return broken("generation " + generation.text() + " lives and retires");
    if (evictable(*replica) != (replica->slot != kNoSlot))
      return broken("policy misses generation " + generation.text());
    if (node.tickets.contains(generation) != (!object->committed() && !object->open->writer.empty())) {
      return broken("ticket of generation " + generation.text());
    }
    if (replica->unconfirmed && !replica->placed) return broken("confirms what is not placed");
    if (replica->repair != node.repairs.contains(generation)) return broken("repairs of " + generation.text());
    unplaced += !replica->placed;
    repairs += replica->repair;
    unconfirmed += replica->unconfirmed;
    (replica->placed ? committed : unfinished) += object->footprint();
    if (replica->placed && object->pin == Pin::kSoft) ++soft;
    if (replica->placed && object->pin == Pin::kHard) ++hard, hard_bytes += object->footprint();
  }
  for (auto& [generation, entry] : node.retiring) retiring += entry.footprint;
  for (const Generation& generation : std::set(node.to_confirm.begin(), node.to_confirm.end())) {
    const Replica* replica = node.replica(generation);
    if (replica != nullptr && replica->unconfirmed) --unconfirmed;
  }
  if (unconfirmed != 0) return broken("a confirmation is not in the queue");
  if (unplaced != node.unfinished_count) return broken(unequal("not placed", node.unfinished_count, unplaced));
  if (repairs != node.repairs.size()) return broken(unequal("repairs on a node", node.repairs.size(), repairs));
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
  if (in_policy != node.soft_count) return broken(unequal("replicas in the policy of soft pins", in_policy, soft));
  all = node.policy->pick(SIZE_MAX, now_ns_, count) && all;
  if (!all || in_policy != node.evictable_count()) {
    return broken(unequal("replicas in the policy", in_policy, node.evictable_count()));
  }
  if (node.state != NodeState::kReady && !node.to_retire.empty()) return broken("retires queued before ready");
  return {};
}

}  // namespace moontide::catalog
