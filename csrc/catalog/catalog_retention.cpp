// How long objects stay: pins, times to live, eviction.
#include "catalog/catalog.h"

namespace moontide::catalog {
namespace {

uint64_t percent_of(uint64_t whole, uint64_t percent) { return whole / 100 * percent + whole % 100 * percent / 100; }

// A watermark: so many percent of what is not pinned hard, on top of that.
uint64_t above(uint64_t pinned, uint64_t whole, uint64_t percent) {
  return pinned + percent_of(whole - std::min(pinned, whole), percent);
}

// The nodes that have the object can be told something.
bool all_ready(Object& object) {
  return std::ranges::all_of(object.replicas(),
                             [](const Replica* one) { return !one->placed || one->node->state == NodeState::kReady; });
}

}  // namespace

// ---- pins and times to live

void Catalog::keep_so(Object& object, const Retention& retention) {
  if (object.pin == retention.pin) return retain(object, retention);
  for (Replica* replica : object.replicas()) {
    if (replica->slot != kNoSlot) policy_of(*replica)->erased(*replica);
  }
  retain(object, retention);
  use(object);
}

void Catalog::count_pin(const Replica& replica) {
  Node& node = *replica.node;
  if (replica.object->pin == Pin::kSoft) ++node.soft_count;
  if (replica.object->pin == Pin::kHard) {
    ++node.hard_count;
    node.hard_bytes += replica.object->footprint();
  }
}

void Catalog::discount_pin(const Replica& replica) {
  Node& node = *replica.node;
  if (replica.object->pin == Pin::kSoft) --node.soft_count;
  if (replica.object->pin == Pin::kHard) {
    --node.hard_count;
    node.hard_bytes -= replica.object->footprint();
  }
}

void Catalog::retain(Object& object, const Retention& retention) {
  unretain(object);
  object.pin = retention.pin;
  for (const Replica* replica : object.replicas()) {
    if (replica->placed) count_pin(*replica);
  }
  if (retention.ttl_ns == 0) return;
  object.expires_ns = now_ns_ + retention.ttl_ns;
  expiries_.emplace(expiry_of(object), &object);
}

void Catalog::unretain(Object& object) {
  for (const Replica* replica : object.replicas()) {
    if (replica->placed) discount_pin(*replica);
  }
  object.pin = Pin::kNone;
  if (object.expires_ns != kNever) expiries_.erase(expiry_of(object));
  object.expires_ns = kNever;
}

Retention Catalog::retention_of(const Object& object) const {
  if (object.expires_ns == kNever) return {object.pin, 0};
  return {object.pin, std::max<int64_t>(object.expires_ns - now_ns_, 1)};
}

std::vector<Code> Catalog::keep(std::span<const std::string> keys, const Retention& retention, int64_t now_ns) {
  advance(now_ns);
  std::vector<Code> codes;
  codes.reserve(keys.size());
  for (const std::string& key : keys) {
    Object* object = objects_.find(key);
    if (!key_valid(key) || !retention_valid(retention)) {
      codes.push_back(Code::kInvalid);
    } else if (object == nullptr || !visible(*object)) {
      codes.push_back(Code::kNotFound);
    } else if (!all_ready(*object)) {
      codes.push_back(Code::kUnavailable);  // a node could not be told
    } else {
      keep_so(*object, retention);
      for (Replica* replica : object->replicas()) {
        if (replica->placed) replica->node->confirm(*replica);
      }
      codes.push_back(Code::kOk);
    }
  }
  return codes;
}

void Catalog::expire() {
  for (size_t i = 0; i < limits_.expiries_per_tick && !expiries_.empty(); ++i) {
    Object& object = *expiries_.begin()->second;
    if (!expired(object)) break;
    ++counters_.expired;
    retire(object, Ending::kExpired);
  }
}

// ---- eviction

void Catalog::make_room(uint64_t footprint, const Placement& placement) {
  Node* node = nodes_.cheapest_to_clear(footprint, placement);
  if (node == nullptr) return;
  uint64_t coming = node->free_bytes() + node->retiring_bytes;
  if (coming < footprint) evict(*node, {.bytes = footprint - coming, .all_or_nothing = true});
}

void Catalog::evict_ahead() {
  for (auto& [id, node] : nodes_) {
    if (node.state == NodeState::kReady) evict_ahead(node);
  }
  size_t pinned = 0;
  for (const auto& [id, node] : nodes_) pinned += node.hard_count;
  size_t high = above(pinned, limits_.max_objects, limits_.high_percent);
  size_t low = above(pinned, limits_.max_objects, limits_.low_percent);
  if (replica_count_ > high) above_count_ = true;
  if (replica_count_ <= low) above_count_ = false;
  if (!above_count_) return;
  Node* node = nodes_.most_objects();
  if (node != nullptr) evict(*node, {.count = replica_count_ - low, .keep = 1});
}

void Catalog::evict_ahead(Node& node) {
  uint64_t low = above(node.unevictable_bytes(), node.capacity_bytes, limits_.low_percent);
  uint64_t high = above(node.unevictable_bytes(), node.capacity_bytes, limits_.high_percent);
  if (node.lasting_bytes() > high) node.above_watermark = true;
  if (node.lasting_bytes() <= low) node.above_watermark = false;
  // A lone object may fill a segment: nobody waits for its space yet.
  if (node.above_watermark) evict(node, {.bytes = node.lasting_bytes() - low, .keep = 1});
}

bool Catalog::has_spare_room(const Node& node, uint64_t footprint) const {
  const uint64_t low = above(node.unevictable_bytes(), node.capacity_bytes, limits_.low_percent);
  return node.lasting_bytes() + footprint <= low && entries() < above(0, limits_.max_objects, limits_.low_percent);
}

void Catalog::evict(Node& node, const EvictionGoal& goal) {
  if (node.evictable_count() <= goal.keep) return;
  size_t most = std::min(limits_.evictions_per_step, node.evictable_count() - goal.keep);
  std::vector<Replica*> victims;
  uint64_t freed = 0;
  auto unmet = [&] { return (freed < goal.bytes || victims.size() < goal.count) && victims.size() < most; };
  auto offer = [&](Evictable& entry) {
    Replica& replica = static_cast<Replica&>(entry);
    if (replica.object->lease_until_ns > now_ns_) return Verdict::kKeep;
    victims.push_back(&replica);
    freed += replica.object->footprint();
    return unmet() ? Verdict::kTake : Verdict::kTakeLast;
  };
  bool offered_all = node.policy->pick(limits_.scan_per_step, now_ns_, offer);
  if (offered_all && unmet()) offered_all = node.soft_policy->pick(limits_.scan_per_step, now_ns_, offer);
  if (goal.all_or_nothing && offered_all && freed < goal.bytes) return;
  for (Replica* victim : victims) {
    ++counters_.evicted;
    if (victim->object->wanted > 1) --victim->object->wanted;  // it is not made again somewhere else
    give_up(*victim, Ending::kEvicted);
  }
}

}  // namespace moontide::catalog
