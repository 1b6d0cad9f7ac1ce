// Random histories of clients, nodes, lost messages and restarts against small models: of each node (what lies in its
// memory) and of each key (which generations may still be seen). Every step is followed by a recount of the catalog.
#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "base/random.h"
#include "unit/catalog_fixture.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

struct Stored {
  std::string key;
  uint64_t length = 0;
  uint64_t offset = 0;
  bool confirmed = false;
};

// What store/node has to do, in its simplest form.
struct ModelNode {
  uint64_t capacity = 0;
  bool connected = false;  // joined, inventory complete
  bool known = false;      // to the current catalog
  uint32_t term = 0;
  Generation floor;
  std::map<Generation, Stored> entries;
  std::set<Generation> refused;
  std::deque<NodeOrder> inbox;
  std::map<Generation, RepairItem> repairs;  // ordered, not called off

  uint64_t used() const {
    uint64_t sum = 0;
    for (auto& [generation, stored] : entries) sum += entry_footprint(stored.length);
    return sum;
  }
  bool ticket_valid(Generation generation) const {
    return generation.term == term && generation >= floor && !refused.contains(generation);
  }
  void obey(const NodeOrder& order) {
    floor = std::max(floor, order.floor);
    for (auto& item : order.confirm) {
      if (auto it = entries.find(item.generation); it != entries.end()) it->second.confirmed = true;
    }
    for (auto& item : order.retire) {
      entries.erase(item.generation);
      refused.insert(item.generation);
      repairs.erase(item.generation);
    }
    for (auto& item : order.repair) repairs.emplace(item.generation, item);
    refused.erase(refused.begin(), refused.lower_bound(floor));
  }
};

enum class PutState { kStarted, kPulled, kFailed, kDone };

// One granted place of a put.
struct ModelPlace {
  NodeId node;
  uint64_t offset = 0;
  PutState state = PutState::kStarted;  // kPulled: its client knows
};

struct ModelPut {
  ClientId client;
  std::string key;
  PutGrant grant;
  std::vector<ModelPlace> places;
  PutState state = PutState::kStarted;

  bool any(PutState wanted) const {
    return std::ranges::any_of(places, [&](const ModelPlace& place) { return place.state == wanted; });
  }
  // What its client says: every place that landed.
  PutPlaced placed() const {
    PutPlaced said{.key = key, .generation = grant.generation, .at = {}, .retention = {}, .further = {}};
    for (const ModelPlace& place : places) {
      if (place.state != PutState::kPulled) continue;
      if (said.at.node.empty()) {
        said.at = {place.node, place.offset, 0};
      } else {
        said.further.push_back({place.node, place.offset, 0});
      }
    }
    return said;
  }
};

struct ModelKey {
  Generation newest_seen;    // by a reader or by an answered put: older ones must not show any more
  Generation removed_below;  // generations that a finished remove ended
};

struct Options {
  bool master_restarts = false;  // excludes nodes that are given up but alive, see docs/design/pool.md
  bool given_up_but_alive = false;
};

class World {
 public:
  World(uint64_t seed, Options options)
      : random_(seed),
        options_(options),
        catalog_({.put_timeout_ns = 20 * kSecond,
                  .lease_ns = 2 * kSecond,
                  .max_objects = 120,
                  .max_endings = 64,
                  .evictions_per_step = 5,
                  .scan_per_step = 20}) {
    catalog_.start_term(1);
    for (int i = 0; i < 3; ++i) add_node();
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      now_ns_ += static_cast<int64_t>(random_.below(kSecond / 2));
      step();
      sound();
    }
    heal();
  }
  uint64_t digest() const { return digest_; }
  uint64_t repairs() const { return repairs_; }

 private:
  void step() {
    switch (random_.below(22)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return start_puts();
      case 4:
      case 5:
      case 6:
        return pull();
      case 7:
      case 8:
      case 9:
        return end_put();
      case 10:
        return revoke();
      case 11:
      case 12:
        return locate();
      case 13:
        return remove();
      case 14:
        return compare_views();
      case 15:
        return hand_out();
      case 16:
      case 17:
        return deliver();
      case 18:
        return catalog_.tick(now_ns_);
      case 19:
      case 20:
        return repair();
      default:
        return random_.below(4) == 0 ? disturb() : hand_out();
    }
  }

  void disturb() {
    auto& [id, node] = pick_node();
    switch (random_.below(7)) {
      case 6:
        catalog_.drain(id, random_.below(2) == 0);
        return;
      case 0:
        return disconnect(id, node);
      case 1:
      case 2:
        return join(id, node);
      case 3:
        return restart_node(id);
      case 4:
        if (options_.given_up_but_alive && !node.connected) {
          lose(id);
          node.known = false;
        }
        return;
      default:
        if (options_.master_restarts) restart_master();
    }
  }

  // ---- nodes

  std::pair<const NodeId, ModelNode>& pick_node() {
    auto it = nodes_.begin();
    std::advance(it, random_.below(nodes_.size()));
    return *it;
  }

  void add_node() {
    NodeId id{100 + random_.below(100), ++node_count_};
    ModelNode& node = nodes_[id];
    node.capacity = (20 + random_.below(20)) * entry_footprint(500);
    join(id, node);
  }

  void disconnect(const NodeId& id, ModelNode& node) {
    node.connected = false;
    node.inbox.clear();
    catalog_.node_away(id);
  }

  void join(const NodeId& id, ModelNode& node) {
    disconnect(id, node);
    REQUIRE(catalog_.node_join(id, {.capacity_bytes = node.capacity, .address = "", .reported_term = node.term}));
    if (node.term != catalog_.term()) node.refused.clear();
    node.repairs.clear();
    node.term = catalog_.term();
    std::vector<InventoryEntry> page;
    for (auto& [generation, stored] : node.entries) {
      page.push_back({stored.key, generation, stored.length, stored.offset, 0, stored.confirmed});
      if (random_.below(3) != 0) continue;
      report(id, page);
      if (random_.below(20) == 0) return catalog_.node_away(id);  // the connection breaks in the middle
    }
    report(id, page);
    auto floor = catalog_.node_ready(id);
    REQUIRE(floor.has_value());
    node.floor = *floor;
    node.connected = node.known = true;
    no_leaks(id, node);
  }

  void report(const NodeId& id, std::vector<InventoryEntry>& page) {
    auto result = catalog_.node_inventory(id, page, now_ns_);
    REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error().text()));
    sound();
    page.clear();
  }

  void restart_node(NodeId id) {  // a copy: it may be the key of what is erased
    nodes_.erase(id);
    catalog_.node_away(id);
    if (random_.below(2) == 0)
      lose(id);
    else
      dead_.push_back(id);
    for (ModelPut& put : puts_) {
      for (ModelPlace& place : put.places) {
        if (place.node == id) place.state = PutState::kFailed;
      }
      if (!put.any(PutState::kStarted) && !put.any(PutState::kPulled)) put.state = PutState::kFailed;
    }
    add_node();
  }

  // An object that has a place on a node which is there outlives the loss of another.
  void lose(const NodeId& id) {
    std::vector<std::string> safe;
    for (int i = 0; i < 60; ++i) {
      std::string key = "key/" + std::to_string(i);
      const Place place = catalog_.locate({&key, 1}, now_ns_)[0];
      if (place.code != Code::kOk) continue;
      bool elsewhere = place.node != id;
      for (const ReplicaAt& at : place.further) elsewhere = elsewhere || at.node != id;
      if (elsewhere) safe.push_back(key);
    }
    catalog_.node_lost(id);
    sound();
    for (const std::string& key : safe) CHECK_MESSAGE(catalog_.exists({&key, 1})[0], key << " had another replica");
  }

  void restart_master() {
    // Two restarts within the time that a node needs to come back and to drop what was superseded without it: the one
    // case that is documented as not covered (a master that remembers nothing cannot know).
    for (auto& [id, node] : nodes_) {
      if (!node.known) return;
      for (auto& [generation, stored] : node.entries) {
        const ModelKey& key = keys_[stored.key];
        bool superseded = generation < key.newest_seen || generation <= key.removed_below;
        if (superseded && generation.term < catalog_.term()) return;
      }
    }
    catalog_.start_term(catalog_.term() + 1);
    for (auto& [id, node] : nodes_) {
      node.connected = node.known = false;
      node.inbox.clear();
    }
    dead_.clear();
    unsettled_removes_.clear();
    unsettled_ends_.clear();
    not_before_.clear();
  }

  // ---- retires

  void hand_out() {
    for (NodeOrder& order : catalog_.take_orders(1 + random_.below(5))) {
      REQUIRE(nodes_.contains(order.node));
      REQUIRE(nodes_[order.node].connected);
      nodes_[order.node].inbox.push_back(std::move(order));
    }
  }

  void deliver() {
    auto& [id, node] = pick_node();
    if (node.inbox.empty()) return;
    NodeOrder order = std::move(node.inbox.front());
    node.inbox.pop_front();
    node.obey(order);
    if (random_.below(15) == 0) return disconnect(id, node);  // the acknowledgement is lost
    std::vector<Generation> generations;
    for (auto& item : order.retire) generations.push_back(item.generation);
    catalog_.retire_acked(id, generations);
    settle();
  }

  // A node pulls from another, where that still has it.
  void repair() {
    auto& [id, node] = pick_node();
    if (node.repairs.empty()) return;
    const RepairItem item = node.repairs.extract(node.repairs.begin()).mapped();
    RepairedItem result{.generation = item.generation, .code = Code::kUnavailable};
    const uint64_t footprint = entry_footprint(item.length);
    if (node.connected) REQUIRE(node.used() + footprint <= node.capacity);
    auto source = nodes_.find(item.source);
    const bool fits = node.used() + footprint <= node.capacity;
    if (fits && source != nodes_.end() && source->second.entries.contains(item.generation) && random_.below(5) != 0) {
      const Stored& stored = source->second.entries[item.generation];
      CHECK(stored.key == item.key);
      CHECK(stored.offset == item.offset);
      result = {item.generation, Code::kOk, random_.below(node.capacity - footprint + 1) / 64 * 64, 0};
      node.entries[item.generation] = {item.key, item.length, result.offset, false};
      ++repairs_;
    }
    if (random_.below(10) == 0) return disconnect(id, node);  // before the master hears of it
    if (node.connected) catalog_.repaired(id, {&result, 1}, now_ns_);
  }

  // Answers that waited for acknowledgements.
  void settle() {
    std::erase_if(unsettled_removes_, [&](auto& remove) {
      if (!catalog_.settled(remove.first)) return false;
      keys_[remove.first].removed_below = std::max(keys_[remove.first].removed_below, remove.second);
      return true;
    });
    std::erase_if(unsettled_ends_, [&](auto& end) {
      if (!catalog_.settled(end.first)) return false;
      saw(end.first, end.second);
      return true;
    });
  }

  // ---- clients

  std::string pick_key() { return "key/" + std::to_string(random_.below(60)); }

  void start_puts() {
    ClientId client{1 + random_.below(3), 0};
    std::vector<PutRequest> requests;
    for (uint64_t i = 0; i <= random_.below(4); ++i) requests.push_back({pick_key(), random_.below(2000), ++token_});
    Placement placement{.replicas = 1 + random_.below(3), .prefer = {}, .avoid = {}};
    if (random_.below(3) == 0) placement.prefer.push_back(pick_node().first);
    if (random_.below(4) == 0) placement.avoid.push_back(pick_node().first);
    auto grants = catalog_.put_start(client, requests, now_ns_, placement);
    for (size_t i = 0; i < grants.size(); ++i) {
      note(static_cast<uint64_t>(grants[i].code));
      if (grants[i].code != Code::kOk) continue;
      note(grants[i].generation.sequence);
      ModelPut& put = puts_.emplace_back(ModelPut{client, requests[i].key, grants[i], {{grants[i].node}}});
      for (const NodeId& node : grants[i].further) put.places.push_back({node});
      CHECK(put.places.size() <= placement.replicas);
      for (const ModelPlace& place : put.places) {
        REQUIRE(nodes_[place.node].connected);
        CHECK(std::ranges::find(placement.avoid, place.node) == placement.avoid.end());
      }
    }
    while (puts_.size() > 200) puts_.pop_front();
  }

  ModelPut* pick_put(PutState state) {
    std::vector<ModelPut*> candidates;
    for (ModelPut& put : puts_) {
      if (put.state == state) candidates.push_back(&put);
    }
    return candidates.empty() ? nullptr : candidates[random_.below(candidates.size())];
  }

  void pull() {
    // Also a node that its client did not wait for, when the put is done or given up.
    ModelPut* put = pick_put(random_.below(4) == 0 ? PutState::kDone : PutState::kStarted);
    if (put == nullptr || !put->any(PutState::kStarted)) return;
    for (ModelPlace& place : put->places) {
      if (place.state == PutState::kStarted && (random_.below(2) == 0 || put->places.size() == 1)) land(*put, place);
    }
    if (put->state != PutState::kStarted) return;
    if (put->any(PutState::kPulled) && (!put->any(PutState::kStarted) || random_.below(4) == 0)) {
      put->state = PutState::kPulled;
    } else if (!put->any(PutState::kStarted)) {
      put->state = PutState::kFailed;
    }
  }

  void land(ModelPut& put, ModelPlace& place) {
    ModelNode& node = nodes_[place.node];
    place.state = PutState::kFailed;
    if (!node.ticket_valid(put.grant.generation)) return;
    // The accounting law: where the catalog granted a place, the node has it.
    REQUIRE(node.used() + entry_footprint(put.grant.length) <= node.capacity);
    place.offset = random_.below(node.capacity - entry_footprint(put.grant.length) + 1) / 64 * 64;
    node.entries[put.grant.generation] = {put.key, put.grant.length, place.offset, false};
    if (put.state == PutState::kStarted) place.state = PutState::kPulled;
  }

  void end_put() {
    ModelPut* put = pick_put(random_.below(5) == 0 ? PutState::kDone : PutState::kPulled);
    if (put == nullptr) return;
    PutPlaced placed = put->placed();
    ended_.insert(put->grant.generation);
    Code code = catalog_.put_end(put->client, {&placed, 1}, now_ns_)[0];
    note(static_cast<uint64_t>(code));
    REQUIRE((code == Code::kOk || code == Code::kStale));
    if (code == Code::kStale) {
      put->state = PutState::kFailed;
      return;
    }
    REQUIRE(put->state != PutState::kFailed);
    put->state = PutState::kDone;
    unsettled_ends_.emplace_back(put->key, put->grant.generation);
    settle();
  }

  void revoke() {
    ModelPut* put = pick_put(random_.below(2) == 0 ? PutState::kStarted : PutState::kPulled);
    if (put == nullptr) return;
    PutRef ref{put->key, put->grant.generation};
    Code code = catalog_.put_revoke(put->client, {&ref, 1})[0];
    if (code == Code::kAlreadyExists) return;  // adopted by a new master meanwhile
    put->state = PutState::kFailed;
    PutPlaced placed = put->placed();
    CHECK(catalog_.put_end(put->client, {&placed, 1}, now_ns_)[0] == Code::kStale);
  }

  void saw(const std::string& key, Generation generation) {
    ModelKey& model = keys_[key];
    CHECK_MESSAGE(generation >= model.newest_seen,
                  key << " went back to " << generation.text() << " from " << model.newest_seen.text());
    CHECK_MESSAGE(generation > model.removed_below, key << " came back from " << model.removed_below.text());
    auto barrier = not_before_.find(key);
    if (barrier != not_before_.end()) CHECK(generation > barrier->second);
    model.newest_seen = std::max(model.newest_seen, generation);
  }

  void locate() {
    std::string key = pick_key();
    Place place = catalog_.locate({&key, 1}, now_ns_)[0];
    note(static_cast<uint64_t>(place.code) + place.generation.sequence);
    if (place.code != Code::kOk) return;
    saw(key, place.generation);
    CHECK_MESSAGE(ended_.contains(place.generation), key << " shows a put that its client never ended");
    std::vector<ReplicaAt> places = place.further;
    places.push_back({place.node, place.offset});
    for (const ReplicaAt& at : places) {
      auto node = nodes_.find(at.node);
      if (node == nodes_.end() || !node->second.connected) continue;  // a reader's proof fails there
      auto stored = node->second.entries.find(place.generation);
      REQUIRE(stored != node->second.entries.end());
      CHECK(stored->second.key == key);
      CHECK(stored->second.length == place.length);
      CHECK(stored->second.offset == at.offset);
    }
  }

  void remove() {
    std::string key = pick_key();
    Generation newest_before = highest_granted(key);
    note(static_cast<uint64_t>(catalog_.remove({&key, 1})[0]));
    CHECK_FALSE(catalog_.exists({&key, 1})[0]);
    not_before_[key] = newest_before;  // from now on in this reign; over restarts once it is settled
    unsettled_removes_.emplace_back(key, newest_before);
    std::erase_if(unsettled_ends_, [&](auto& end) { return end.first == key; });  // put, then removed: nothing to see
    settle();
  }

  Generation highest_granted(const std::string& key) const {
    Generation highest;
    for (auto& put : puts_) {
      if (put.key == key) highest = std::max(highest, put.grant.generation);
    }
    for (auto& [id, node] : nodes_) {
      for (auto& [generation, stored] : node.entries) {
        if (stored.key == key) highest = std::max(highest, generation);
      }
    }
    return highest;
  }

  void compare_views() {
    std::vector<std::string> listed;
    std::string after;
    do {
      ListPage page = catalog_.list("key/", after, 7);
      for (auto& item : page.items) listed.push_back(item.key);
      after = page.resume_after;
    } while (!after.empty());
    std::set<std::string> in_list(listed.begin(), listed.end());
    CHECK(in_list.size() == listed.size());
    for (int i = 0; i < 60; ++i) {
      std::string key = "key/" + std::to_string(i);
      CHECK(catalog_.exists({&key, 1})[0] == in_list.contains(key));
    }
  }

  // ---- checks

  void sound() {
    auto result = catalog_.check_invariants();
    REQUIRE_MESSAGE(result.has_value(), (result ? "" : result.error().text()));
    for (auto& [id, node] : nodes_) {
      if (node.connected) no_leaks(id, node);
    }
  }

  // The catalog counts every entry that lies on a node it works with.
  void no_leaks(const NodeId& id, const ModelNode& node) {
    const Node* kept = catalog_.node(id);
    REQUIRE(kept != nullptr);
    for (auto& [generation, stored] : node.entries) {
      REQUIRE((kept->replica(generation) != nullptr || kept->retiring.contains(generation)));
    }
  }

  // Everyone comes back; what is removed then gives back every byte.
  void heal() {
    for (const NodeId& id : dead_) catalog_.node_lost(id);
    for (auto& [id, node] : nodes_) {
      while (!node.connected) join(id, node);
    }
    drain();
    for (int i = 0; i < 60; ++i) {
      std::string key = "key/" + std::to_string(i);
      catalog_.remove({&key, 1});
    }
    drain();
    Stats stats = catalog_.stats();
    CHECK(stats.committed_bytes + stats.unfinished_bytes + stats.retiring_bytes == 0);
    for (auto& [id, node] : nodes_) CHECK(node.entries.empty());
  }

  void drain() {
    for (;;) {
      auto orders = catalog_.take_orders(100);
      for (auto& [id, node] : nodes_) {
        while (!node.inbox.empty()) {
          orders.push_back(std::move(node.inbox.front()));
          node.inbox.pop_front();
        }
      }
      if (orders.empty()) return;
      for (auto& order : orders) {
        nodes_[order.node].obey(order);
        for (auto& item : order.retire) catalog_.retire_acked(order.node, {&item.generation, 1});
      }
      sound();
    }
  }

  void note(uint64_t value) { digest_ = (digest_ ^ value) * 0x9e3779b97f4a7c15 + (digest_ >> 29); }

  SeededRandom random_;
  Options options_;
  Catalog catalog_;
  int64_t now_ns_ = kSecond;
  uint64_t token_ = 0;
  uint64_t node_count_ = 0;
  uint64_t digest_ = 0;
  uint64_t repairs_ = 0;
  std::map<NodeId, ModelNode> nodes_;
  std::vector<NodeId> dead_;  // gone, not given up yet
  std::deque<ModelPut> puts_;
  std::set<Generation> ended_;  // by its client, whatever the answer was
  std::map<std::string, ModelKey> keys_;
  std::map<std::string, Generation> not_before_;
  std::vector<std::pair<std::string, Generation>> unsettled_removes_;
  std::vector<std::pair<std::string, Generation>> unsettled_ends_;
};

}  // namespace

TEST_CASE("catalog model: clients, nodes that break and return, lost acknowledgements") {
  uint64_t repairs = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    World world(seed, {});
    world.run(1500);
    repairs += world.repairs();
  }
  CHECK(repairs > 40);
}

TEST_CASE("catalog model: masters that restart") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    World(seed, {.master_restarts = true}).run(1500);
  }
}

TEST_CASE("catalog model: nodes that are given up and return") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    World(seed, {.given_up_but_alive = true}).run(1500);
  }
}

TEST_CASE("catalog model: the same calls give the same answers") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    World first(seed, {.master_restarts = true}), second(seed, {.master_restarts = true});
    first.run(1000);
    second.run(1000);
    CHECK(first.digest() == second.digest());
  }
}
