#include "catalog/catalog.h"

#include "base/hash.h"

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
  deadlines_.clear();
  expiries_.clear();
  retiring_keys_.clear();
  retiring_count_ = 0;
  above_count_ = false;
}

// ---- puts

std::vector<PutGrant> Catalog::put_start(const ClientId& client, std::span<const PutRequest> requests, int64_t now_ns) {
  MT_CHECK(!client.empty(), "an entry without a writer is one that came by inventory");
  advance(now_ns);
  std::vector<PutGrant> grants;
  grants.reserve(requests.size());
  ++batch_;
  for (const PutRequest& request : requests) grants.push_back(start_one(client, request));
  evict_ahead();
  return grants;
}

PutGrant Catalog::start_one(const ClientId& client, const PutRequest& request) {
  if (!key_valid(request.key)) return {.code = Code::kInvalid};
  if (Object* live = objects_.find(request.key)) {
    if (live->committed() && !expired(*live)) {
      use(*live);  // the client would have written it: it is in use
      return {.code = Code::kAlreadyExists};
    }
    bool repeated =
        !live->committed() && live->writer == client && live->token == request.token && live->length == request.length;
    if (repeated && now_ns_ < live->deadline_ns) {
      pass(*live);
      return grant(*live);
    }
    if (!live->committed() && now_ns_ < live->deadline_ns) return {.code = Code::kAlreadyExists};
    ++(live->committed() ? counters_.expired : counters_.puts_expired);
    retire(*live);
  }
  Node* node = nullptr;
  if (Code code = place(request, node); code != Code::kOk) {
    if (code == Code::kNoSpace) ++counters_.puts_no_space;
    return {.code = code};
  }
  Object& object = objects_.insert(request.key);
  object.node = node;
  object.generation = next_generation();
  object.length = request.length;
  object.writer = client;
  object.token = request.token;
  if (Object* before = last_of_batch(*node); request.follows && before != nullptr) object.follows = before->generation;
  pass(object);
  open_put(object);
  node->tickets.insert(object.generation);
  ++counters_.puts_granted;
  return grant(object);
}

void Catalog::open_put(Object& object) {
  Node& node = *object.node;
  object.deadline_ns = now_ns_ + limits_.put_timeout_ns;
  node.objects.emplace(object.generation, &object);
  node.unfinished.insert(object.generation);
  node.unfinished_bytes += object.footprint();
  deadlines_.emplace(deadline_of(object), &object);
}

PutGrant Catalog::grant(const Object& object) const {
  return {.code = Code::kOk,
          .node = object.node->id,
          .generation = object.generation,
          .key_hash = object.key_hash,
          .length = object.length,
          .expires_in_ns = object.deadline_ns - now_ns_};
}

Code Catalog::place(const PutRequest& request, Node*& node) {
  if (nodes_.size() == 0) return Code::kUnavailable;
  if (request.length > kMaxObjectBytes) return Code::kTooLarge;
  uint64_t footprint = entry_footprint(request.length);
  if (footprint > nodes_.largest_segment(/*ready_only=*/false)) return Code::kTooLarge;
  if (footprint > nodes_.largest_segment(/*ready_only=*/true)) return Code::kUnavailable;
  if (entries() >= limits_.max_objects) return Code::kNoSpace;  // evict_ahead works on it
  node = nodes_.least_full(footprint);
  if (node != nullptr) return Code::kOk;
  make_room(footprint);
  return Code::kNoSpace;
}

std::vector<Code> Catalog::put_end(const ClientId& client, std::span<const PutPlaced> placed, int64_t now_ns) {
  advance(now_ns);
  std::vector<Code> codes;
  codes.reserve(placed.size());
  ++batch_;
  for (const PutPlaced& one : placed) codes.push_back(end_one(client, one));
  return codes;
}

Code Catalog::end_one(const ClientId& client, const PutPlaced& placed) {
  Object* object = objects_.find(placed.key);
  if (object == nullptr || object->generation != placed.generation) {
    ++counters_.puts_stale;
    return Code::kStale;
  }
  if (object->committed()) return Code::kOk;
  if (!retention_valid(placed.retention)) return Code::kInvalid;
  if (object->writer.empty()) {  // of an earlier reign: its node told the place
    commit(*object, object->offset, object->crc, placed.retention);
    return Code::kOk;
  }
  if (object->writer != client) return Code::kDenied;
  uint64_t footprint = object->footprint();
  if (placed.offset % kEntryAlignment != 0 || placed.offset > object->node->capacity_bytes ||
      footprint > object->node->capacity_bytes - placed.offset) {
    return Code::kInvalid;
  }
  commit(*object, placed.offset, placed.crc, placed.retention);
  return Code::kOk;
}

void Catalog::commit(Object& object, uint64_t offset, uint32_t crc, const Retention& retention) {
  Node& node = *object.node;
  deadlines_.erase(deadline_of(object));
  node.unfinished.erase(object.generation);
  node.tickets.erase(object.generation);
  node.unfinished_bytes -= object.footprint();
  node.committed_bytes += object.footprint();
  object.state = ObjectState::kCommitted;
  object.offset = offset;
  object.crc = crc;
  object.join_round = node.join_round;
  node.to_confirm.insert(object.generation);
  retain(object, retention);
  use(object);
  ++counters_.puts_committed;
}

void Catalog::use(Object& object) {
  Node& node = *object.node;
  EvictionPolicy* policy = policy_of(object);
  if (policy == nullptr) return pass(object);
  const Object* before = nullptr;
  if (!object.follows.empty()) {
    before = last_of_batch(node);
    if (before != nullptr && before->generation != object.follows) before = nullptr;
    if (before == nullptr && object.slot == kNoSlot) {  // stored now: it may follow what an earlier batch stored
      auto it = node.objects.find(object.follows);
      if (it != node.objects.end()) before = it->second;
    }
  }
  // the policy does not know what is pinned otherwise, or open
  if (before != nullptr && (before->pin != object.pin || before->slot == kNoSlot)) before = nullptr;
  policy->used(object, {.now_ns = now_ns_, .bytes = object.footprint(), .parent = before});
  pass(object);
}

EvictionPolicy* Catalog::policy_of(const Object& object) {
  if (object.pin == Pin::kHard) return nullptr;
  return object.pin == Pin::kSoft ? object.node->soft_policy.get() : object.node->policy.get();
}

void Catalog::pass(Object& object) {
  object.node->last_of_batch = &object;
  object.node->batch = batch_;
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
    } else if (object->writer != client && !object->writer.empty()) {
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
  return object.committed() && !expired(object) && !retiring_keys_.contains(object.key_hash);
}

std::vector<Place> Catalog::locate(std::span<const std::string> keys, int64_t now_ns) {
  advance(now_ns);
  std::vector<Place> places(keys.size());
  ++batch_;
  for (size_t i = 0; i < keys.size(); ++i) {
    Object* object = objects_.find(keys[i]);
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
                 .node = object->node->id,
                 .generation = object->generation,
                 .offset = object->offset,
                 .length = object->length,
                 .crc = object->crc,
                 .lease_ns = lease_ns};
  }
  return places;
}

std::vector<bool> Catalog::exists(std::span<const std::string> keys) const {
  std::vector<bool> found(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const Object* object = objects_.find(keys[i]);
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
  for (const std::string& key : keys) {
    if (!key_valid(key)) {
      codes.push_back(Code::kInvalid);
      continue;
    }
    Object* object = objects_.find(key);
    bool found = object != nullptr && !expired(*object);
    codes.push_back(found ? Code::kOk : Code::kNotFound);
    if (object != nullptr) {
      ++(found ? counters_.removed : counters_.expired);
      retire(*object);
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
  auto it = start_after < prefix ? objects_.from(prefix) : objects_.after(start_after);
  std::string_view last;
  for (; it != objects_.end() && std::string_view(it->first).starts_with(prefix); ++it) {
    if (page.items.size() == limit || visits-- == 0) {
      page.resume_after = last;
      break;
    }
    const Object& object = it->second;
    last = object.key;
    if (!visible(object)) continue;
    page.items.push_back({it->first, object.length, object.generation, object.node->id});
  }
  return page;
}

// ---- the way out

void Catalog::retire(Object& object) {
  Node& node = *object.node;
  last_ops_.ended(object.key_hash, object.generation);
  Generation generation = object.generation;
  Retiring retiring{.key_hash = object.key_hash, .footprint = object.footprint()};
  detach(object);
  add_retiring(node, generation, retiring);
}

void Catalog::detach(Object& object) {
  Node& node = *object.node;
  if (node.last_of_batch == &object) node.last_of_batch = nullptr;
  if (object.committed()) {
    if (EvictionPolicy* policy = policy_of(object)) policy->erased(object);
    unretain(object);
    node.to_confirm.erase(object.generation);
    node.committed_bytes -= object.footprint();
  } else {
    deadlines_.erase(deadline_of(object));
    node.unfinished.erase(object.generation);
    node.tickets.erase(object.generation);
    node.unfinished_bytes -= object.footprint();
  }
  node.objects.erase(object.generation);
  objects_.erase(object);
}

void Catalog::add_retiring(Node& node, Generation generation, const Retiring& retiring) {
  node.retiring.emplace(generation, retiring);
  node.retiring_bytes += retiring.footprint;
  ++retiring_keys_[retiring.key_hash];
  ++retiring_count_;
  // Of a node that is not ready, `node_ready` queues all at once.
  if (node.state == NodeState::kReady) node.to_retire.push_back(generation);
}

void Catalog::end_retiring(const Retiring& retiring) {
  --retiring_count_;
  auto it = retiring_keys_.find(retiring.key_hash);
  if (--it->second == 0) retiring_keys_.erase(it);
}

void Catalog::tick(int64_t now_ns) {
  advance(now_ns);
  for (size_t i = 0; i < limits_.expiries_per_tick && !deadlines_.empty(); ++i) {
    auto& [deadline, object] = *deadlines_.begin();
    if (std::get<0>(deadline) > now_ns_) break;
    ++counters_.puts_expired;
    retire(*object);
  }
  expire();
  evict_ahead();
}

}  // namespace moontide::catalog
