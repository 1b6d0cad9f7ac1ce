#include "catalog/catalog.h"

#include "base/hash.h"
#include "catalog/batch_lookup.h"

namespace moontide::catalog {

Catalog::Catalog(Limits limits, MakePolicy make_policy)
    : limits_(limits), make_policy_(std::move(make_policy)), last_ops_(limits.max_endings) {}

void Catalog::start_term(uint32_t term) {
  MT_CHECK(term > term_, std::to_string(term) + " after " + std::to_string(term_));
  term_ = term;
  sequence_ = 0;
  objects_.clear();
  nodes_.clear();
  last_ops_.clear();
  open_puts_.clear();
  expiries_.clear();
  retiring_keys_.clear();
  retiring_count_ = 0;
  replica_count_ = 0;
  short_.clear();
  missing_ = 0;
  repairing_ = 0;
  above_count_ = false;
  events_.cleared();
}

// ---- puts

std::vector<PutGrant> Catalog::put_start(const ClientId& client, std::span<const PutRequest> requests, int64_t now_ns,
                                         const Placement& placement) {
  MT_CHECK(!client.empty(), "an entry without a writer is one that came by inventory");
  advance(now_ns);
  std::vector<PutGrant> grants;
  grants.reserve(requests.size());
  ++batch_;
  BatchLookup lookup(objects_, requests, &PutRequest::key);
  for (const PutRequest& request : requests) {
    Object* live = lookup.find(grants.size(), request.key);
    grants.push_back(start_one(client, request, placement, live));
  }
  evict_ahead();
  return grants;
}

PutGrant Catalog::start_one(const ClientId& client, const PutRequest& request, const Placement& placement,
                            Object* live) {
  if (!key_valid(request.key) || !placement_valid(placement)) return {.code = Code::kInvalid};
  if (live != nullptr) {
    if (live->committed() && !expired(*live)) {
      use(*live);  // the client would have written it: it is in use
      return {.code = Code::kAlreadyExists};
    }
    bool in_time = !live->committed() && now_ns_ < live->open->deadline_ns;
    bool repeated = in_time && live->open->writer == client && live->open->token == request.token;
    if (repeated && live->length == request.length) {
      pass(*live);
      return grant(*live);
    }
    if (in_time) return {.code = Code::kAlreadyExists};
    ++(live->committed() ? counters_.expired : counters_.puts_expired);
    retire(*live, Ending::kExpired);
  }
  std::vector<Node*> nodes;
  if (Code code = place(request, placement, nodes); code != Code::kOk) {
    if (code == Code::kNoSpace) ++counters_.puts_no_space;
    return {.code = code};
  }
  Object& object = objects_.insert(request.key);
  object.generation = next_generation();
  object.length = request.length;
  object.wanted = static_cast<uint8_t>(placement.replicas);
  if (object.wanted > 1 && !placement.avoid.empty()) object.avoid(placement.avoid);
  open_put(object, client, request.token);
  for (Node* node : nodes) {
    Replica& replica = add_replica(object, *node);
    node->tickets.insert(object.generation);
    if (Replica* before = last_of_batch(*node); request.follows && before != nullptr)
      replica.follows = before->object->generation;
    pass(replica);
  }
  ++counters_.puts_granted;
  return grant(object);
}

void Catalog::open_put(Object& object, const ClientId& writer, uint64_t token) {
  OpenPut& put = open_puts_.emplace_back(writer, token, now_ns_ + limits_.put_timeout_ns, &object);
  put.self = std::prev(open_puts_.end());
  object.open = &put;
}

void Catalog::close_put(Object& object) { open_puts_.erase(std::exchange(object.open, nullptr)->self); }

PutGrant Catalog::grant(Object& object) const {
  PutGrant grant{.code = Code::kOk,
                 .generation = object.generation,
                 .key_hash = object.key_hash(),
                 .length = object.length,
                 .expires_in_ns = object.open->deadline_ns - now_ns_};
  for (const Replica* replica : object.replicas()) {
    if (grant.node.empty()) {
      grant.node = replica->node->id;
    } else {
      grant.further.push_back(replica->node->id);
    }
  }
  return grant;
}

Code Catalog::place(const PutRequest& request, const Placement& placement, std::vector<Node*>& nodes) {
  if (nodes_.largest_segment(/*ready_only=*/false, placement) == 0) return Code::kUnavailable;
  if (request.length > kMaxObjectBytes) return Code::kTooLarge;
  uint64_t footprint = entry_footprint(request.length);
  if (footprint > nodes_.largest_segment(/*ready_only=*/false, placement)) return Code::kTooLarge;
  if (footprint > nodes_.largest_segment(/*ready_only=*/true, placement)) return Code::kUnavailable;
  if (entries() >= limits_.max_objects) return Code::kNoSpace;  // evict_ahead works on it
  nodes = nodes_.choose(footprint, placement);
  if (nodes.size() > limits_.max_objects - entries()) nodes.resize(limits_.max_objects - entries());
  if (!nodes.empty()) return Code::kOk;
  make_room(footprint, placement);
  return Code::kNoSpace;
}

std::vector<Code> Catalog::put_end(const ClientId& client, std::span<const PutPlaced> placed, int64_t now_ns) {
  advance(now_ns);
  std::vector<Code> codes;
  codes.reserve(placed.size());
  ++batch_;
  BatchLookup lookup(objects_, placed, &PutPlaced::key);
  for (const PutPlaced& one : placed) codes.push_back(end_one(client, one, lookup.find(codes.size(), one.key)));
  return codes;
}

Code Catalog::end_one(const ClientId& client, const PutPlaced& placed, Object* object) {
  if (object == nullptr || object->generation != placed.generation) {
    ++counters_.puts_stale;
    return Code::kStale;
  }
  if (object->committed()) return Code::kOk;
  if (!retention_valid(placed.retention)) return Code::kInvalid;
  if (object->open->writer != client && !object->open->writer.empty()) return Code::kDenied;
  Code code = land(*object, placed.at);
  for (const PlacedAt& at : placed.further) {
    const Code further = land(*object, at);
    if (code != Code::kOk) code = further;
  }
  if (object->placed_count() == 0) {  // no node that it names has it (any more)
    if (code == Code::kStale) ++counters_.puts_stale;
    return code;
  }
  commit(*object, placed.retention);
  ++counters_.puts_committed;
  return Code::kOk;
}

Code Catalog::land(Object& object, const PlacedAt& at) {
  Replica* replica = object.on(at.node);
  if (replica == nullptr) return Code::kStale;
  if (replica->placed) return Code::kOk;
  const bool reported = object.open->writer.empty();  // of an earlier reign: its node told the place
  const uint64_t capacity = replica->node->capacity_bytes;
  if (!reported &&
      (at.offset % kEntryAlignment != 0 || at.offset > capacity || object.footprint() > capacity - at.offset)) {
    return Code::kInvalid;
  }
  if (!reported && object.placed_count() == 0) object.crc = at.crc;
  if (!reported && object.crc != at.crc) return Code::kInvalid;  // the source changed from one pull to the next
  mark_placed(*replica, reported ? replica->offset : at.offset);
  return Code::kOk;
}

void Catalog::commit(Object& object, const Retention& retention) {
  close_put(object);
  for (Replica* replica : object.replicas()) {
    if (!replica->placed) give_up(*replica);
  }
  object.wanted = std::max(object.wanted, static_cast<uint8_t>(object.placed_count()));
  retain(object, retention);
  use(object);
  recount(object);
  events_.stored(object);
}

void Catalog::use(Object& object) {
  if (object.further == nullptr) return use(object.first);
  for (Replica* replica : object.replicas()) {
    if (replica->placed) use(*replica);
  }
}

void Catalog::use(Replica& replica) {
  Node& node = *replica.node;
  EvictionPolicy* policy = policy_of(replica);
  if (policy == nullptr) return pass(replica);
  const Replica* before = nullptr;
  if (!replica.follows.empty()) {
    before = last_of_batch(node);
    if (before != nullptr && before->object->generation != replica.follows) before = nullptr;
    if (before == nullptr && replica.slot == kNoSlot) {  // stored now: it may follow what an earlier batch stored
      before = node.replica(replica.follows);
    }
  }
  // the policy does not know what is pinned otherwise, or open
  if (before != nullptr && (before->object->pin != replica.object->pin || before->slot == kNoSlot)) before = nullptr;
  policy->used(replica, {.now_ns = now_ns_, .bytes = replica.object->footprint(), .parent = before});
  pass(replica);
}

EvictionPolicy* Catalog::policy_of(const Replica& replica) {
  const Pin pin = replica.object->pin;
  if (pin == Pin::kHard) return nullptr;
  return pin == Pin::kSoft ? replica.node->soft_policy.get() : replica.node->policy.get();
}

void Catalog::pass(Object& object) {
  for (Replica* replica : object.replicas()) pass(*replica);
}

void Catalog::pass(Replica& replica) {
  replica.node->last_of_batch = &replica;
  replica.node->batch = batch_;
}

std::vector<Code> Catalog::put_revoke(const ClientId& client, std::span<const PutRef> puts) {
  std::vector<Code> codes;
  codes.reserve(puts.size());
  for (const PutRef& put : puts) {
    Object* object = objects_.find(put.key);
    if (object == nullptr || object->generation != put.generation) {
      codes.push_back(Code::kStale);
    } else if (object->committed()) {
      codes.push_back(Code::kAlreadyExists);
    } else if (object->open->writer != client && !object->open->writer.empty()) {
      codes.push_back(Code::kDenied);
    } else {
      retire(*object);
      codes.push_back(Code::kOk);
    }
  }
  return codes;
}

// ---- readers

bool Catalog::visible(const Object& object) const {
  return object.committed() && !expired(object) && !retiring_keys_.contains(object.key_hash());
}

std::vector<Place> Catalog::locate(std::span<const std::string> keys, int64_t now_ns) {
  advance(now_ns);
  std::vector<Place> places(keys.size());
  ++batch_;
  BatchLookup lookup(objects_, keys, std::identity{});
  for (size_t i = 0; i < keys.size(); ++i) {
    Object* object = lookup.find(i, keys[i]);
    if (object == nullptr || !visible(*object)) {
      ++counters_.missed;
      continue;
    }
    ++counters_.located;
    use(*object);
    // The granter's lease is 2 % longer than what it tells: its clock may run faster than the holder's.
    int64_t lease_ns = std::min(limits_.lease_ns, object->expires_ns - now_ns_);
    object->lease_until_ns = std::max(object->lease_until_ns, now_ns_ + lease_ns + lease_ns / 50);
    places[i] = {.code = Code::kOk,
                 .generation = object->generation,
                 .length = object->length,
                 .crc = object->crc,
                 .lease_ns = lease_ns};
    tell_places(*object, places[i]);
  }
  return places;
}

void Catalog::tell_places(Object& object, Place& place) {
  for (bool ready : {true, false}) {
    for (const Replica* replica : object.replicas()) {
      if (!replica->placed || (replica->node->state == NodeState::kReady) != ready) continue;
      if (place.node.empty()) {
        place.node = replica->node->id;
        place.offset = replica->offset;
      } else {
        place.further.push_back({replica->node->id, replica->offset});
      }
    }
  }
}

std::vector<bool> Catalog::exists(std::span<const std::string> keys) const {
  std::vector<bool> found(keys.size());
  BatchLookup lookup(objects_, keys, std::identity{});
  for (size_t i = 0; i < keys.size(); ++i) {
    const Object* object = lookup.find(i, keys[i]);
    found[i] = object != nullptr && visible(*object);
  }
  return found;
}

void Catalog::touch(std::span<const std::string> keys) {
  ++batch_;
  for (const std::string& key : keys) {
    Object* object = objects_.find(key);
    if (object != nullptr && object->committed()) use(*object);
  }
}

std::vector<Code> Catalog::remove(std::span<const std::string> keys) {
  std::vector<Code> codes;
  codes.reserve(keys.size());
  BatchLookup lookup(objects_, keys, std::identity{});
  for (const std::string& key : keys) {
    Object* object = lookup.find(codes.size(), key);
    if (!key_valid(key)) {
      codes.push_back(Code::kInvalid);
      continue;
    }
    bool found = object != nullptr && !expired(*object);
    codes.push_back(found ? Code::kOk : Code::kNotFound);
    if (object != nullptr) {
      ++(found ? counters_.removed : counters_.expired);
      retire(*object, found ? Ending::kRemoved : Ending::kExpired);
    }
    // Also of an unknown key: a node that has not joined this term yet may bring an entry of it.
    last_ops_.ended(hash64(as_bytes(key)), next_generation());
  }
  return codes;
}

bool Catalog::settled(std::string_view key) const { return !retiring_keys_.contains(hash64(as_bytes(key))); }

ListPage Catalog::list(std::string_view prefix, std::string_view start_after, size_t limit) const {
  ListPage page;
  size_t visits = 4 * limit;
  const KeyOrder& order = objects_.ordered();
  auto it = start_after < prefix ? order.from(prefix) : order.after(start_after);
  std::string_view last;
  for (; it != order.end() && it->key().starts_with(prefix); ++it) {
    if (page.items.size() == limit || visits-- == 0) {
      page.resume_after = last;
      break;
    }
    const Object& object = *it;
    last = object.key();
    if (!visible(object)) continue;
    const auto replicas = object.replicas();
    const auto placed = std::ranges::find_if(replicas, [](const Replica* one) { return one->placed; });
    page.items.push_back({std::string(last), object.length, object.generation, (*placed)->node->id});
  }
  return page;
}

// ---- the way out

void Catalog::tick(int64_t now_ns) {
  advance(now_ns);
  for (size_t i = 0; i < limits_.expiries_per_tick && !open_puts_.empty(); ++i) {
    const OpenPut& put = open_puts_.front();
    if (put.deadline_ns > now_ns_) break;
    ++counters_.puts_expired;
    retire(*put.object);
  }
  expire();
  evict_ahead();
  drain_some();
  begin_repairs();
}

}  // namespace moontide::catalog
