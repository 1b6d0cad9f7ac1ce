// The eviction policies by themselves: order, bounded steps, and random histories against naive models.
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "base/random.h"
#include "catalog/eviction/ghosts.h"
#include "catalog/eviction/policy.h"
#include "catalog/eviction/tiny_lfu.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

// A store of named entries around one policy.
class Store {
 public:
  explicit Store(std::string_view policy) : policy_(policy_maker(policy)()) {}
  ~Store() {
    for (auto& [id, entry] : entries_) policy_->erased(*entry);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Entries of one request, in order; each is the parent of the next one.
  void use(const std::vector<int>& ids, int64_t seconds = 0) {
    const Evictable* parent = nullptr;
    for (int id : ids) {
      auto& entry = entries_[id];
      if (entry == nullptr) {
        entry = std::make_unique<Evictable>();
        entry->key_hash = static_cast<uint64_t>(id + 1) * 0xD6E8FEB86659FD93u;
      }
      policy_->used(*entry, {.now_ns = seconds * kSecondNs, .parent = parent});
      parent = entry.get();
    }
  }
  void erase(int id) {
    policy_->erased(*entries_.at(id));
    CHECK(entries_.at(id)->slot == kNoSlot);
    entries_.erase(id);
  }
  // What the policy offers when all is taken but what is kept.
  std::vector<int> order(int64_t seconds = 0, size_t scan = SIZE_MAX, const std::set<int>& kept = {}) {
    std::vector<int> ids;
    all_offered_ = policy_->pick(scan, seconds * kSecondNs, [&](Evictable& entry) {
      int id = id_of(entry);
      ids.push_back(id);
      return kept.contains(id) ? Verdict::kKeep : Verdict::kTake;
    });
    return ids;
  }
  bool all_offered() const { return all_offered_; }
  int evict(int64_t seconds = 0) {
    int victim = -1;
    CHECK_FALSE(policy_->pick(SIZE_MAX, seconds * kSecondNs, [&](Evictable& entry) {
      victim = id_of(entry);
      return Verdict::kTakeLast;
    }));
    erase(victim);
    return victim;
  }
  bool has(int id) const { return entries_.contains(id); }
  std::set<int> ids() const {
    std::set<int> ids;
    for (auto& [id, entry] : entries_) ids.insert(id);
    return ids;
  }

 private:
  int id_of(const Evictable& entry) const {
    return static_cast<int>(entry.key_hash * 0xCFEE444D8B59A89Bu) - 1;  // the inverse of the factor above
  }

  std::map<int, std::unique_ptr<Evictable>> entries_;
  std::unique_ptr<EvictionPolicy> policy_;
  bool all_offered_ = false;
};

using Ids = std::vector<int>;

}  // namespace

TEST_CASE("policies have names") {
  CHECK(std::ranges::count(policy_names(), kDefaultPolicy) == 1);
  for (std::string_view name : policy_names()) CHECK(policy_maker(name)() != nullptr);
  CHECK_FALSE(policy_maker("fifo"));
}

TEST_CASE("lru: the coldest first, of a request the last") {
  Store store("lru");
  store.use({1});
  store.use({2});
  store.use({3});
  store.use({1});
  CHECK(store.order() == Ids{2, 3, 1});
  store.use({10, 11, 12});
  CHECK(store.order() == Ids{2, 3, 1, 12, 11, 10});
  store.use({10, 11});
  CHECK(store.order() == Ids{2, 3, 1, 12, 11, 10});
  store.use({2, 12});
  CHECK(store.order() == Ids{3, 1, 11, 10, 12, 2});
}

TEST_CASE("s3fifo: who is used once leaves through the small queue, and comes back into the main one") {
  Store store("s3fifo");
  for (int id = 0; id < 20; ++id) store.use({id});
  store.use({4});
  CHECK(store.evict() == 0);
  CHECK(store.evict() == 1);
  CHECK(store.evict() == 2);
  CHECK(store.evict() == 3);
  CHECK(store.evict() == 5);  // 4 was used again: it moved
  store.use({0});             // a ghost: straight into the main queue
  for (int id = 6; id < 18; ++id) CHECK(store.evict() == id);
  CHECK(store.has(0));
  CHECK(store.has(4));
}

TEST_CASE("tinylfu: a newcomer does not push out what is used more") {
  Store store("tinylfu");
  for (int round = 0; round < 3; ++round) {
    for (int id = 0; id < 20; ++id) store.use({id});
  }
  int pushed_out = 0;
  for (int id = 100; id < 140; ++id) {
    store.use({id});
    if (store.evict() < 100) ++pushed_out;
  }
  CHECK(pushed_out <= 1);  // the window takes the place of one
}

TEST_CASE("the sketch counts, and fades") {
  UseSketch sketch;
  sketch.reserve(64);
  for (int i = 0; i < 5; ++i) sketch.count(77);
  CHECK(sketch.uses(77) >= 5);
  for (int i = 0; i < 40; ++i) sketch.count(78);
  CHECK(sketch.uses(78) == 15);
  for (uint64_t i = 0; i < 595; ++i) sketch.count(1'000'000 + i * 0x9E3779B97F4A7C15u);
  CHECK(sketch.uses(78) < 15);
}

TEST_CASE("ghosts are remembered, once, with their note") {
  Ghosts ghosts;
  CHECK_FALSE(ghosts.take(5).has_value());
  ghosts.reserve(1000);
  SeededRandom random(1);
  std::deque<uint64_t> keys;
  for (uint32_t i = 1; i <= 5000; ++i) {
    keys.push_back(random.next());
    ghosts.insert(keys.back(), i, static_cast<uint8_t>(i));
    if (keys.size() > 1000) keys.pop_front();
  }
  uint32_t stamp = 4001;
  for (uint64_t key : keys) {
    auto ghost = ghosts.take(key);
    REQUIRE(ghost.has_value());
    CHECK(ghost->stamp == stamp);
    CHECK(static_cast<uint8_t>(ghost->note) == static_cast<uint8_t>(stamp));
    ++stamp;
    CHECK_FALSE(ghosts.take(key).has_value());
  }
}

TEST_CASE("prefix: leaves go before the prefixes that they need") {
  Store store("prefix");
  store.use({1, 2, 3});
  store.use({1, 2, 4, 5});
  Ids order = store.order();
  CHECK(order.size() == 5);
  auto place = [&](int id) { return std::ranges::find(order, id) - order.begin(); };
  CHECK(place(3) < place(2));
  CHECK(place(5) < place(4));
  CHECK(place(4) < place(2));
  CHECK(place(2) < place(1));
  CHECK(store.all_offered());

  // Nothing above one that is kept is offered; the rest is.
  CHECK(store.order(0, SIZE_MAX, {5}).size() == 2);
  CHECK(store.all_offered());
  // A pick that took all changed nothing.
  CHECK(store.order() == order);
  // One by one it is the same.
  for (int id : order) CHECK(store.evict() == id);
}

TEST_CASE("prefix: a prefix that is removed before its children leaves no trace but them") {
  Store store("prefix");
  store.use({1, 2, 3, 4});
  store.erase(2);
  store.erase(1);
  CHECK(store.order() == Ids{4, 3});
  store.use({1, 2, 3}, 1);  // 3 keeps the parent that it had; 2 is a leaf of its own
  CHECK(store.order(1).size() == 4);
  store.erase(3);
  store.erase(4);
  CHECK(store.order(1) == Ids{2, 1});
}

TEST_CASE("prefix: learns that turns come back after minutes and tails do not, also of requests told in two calls") {
  for (int calls : {1, 2}) {
    CAPTURE(calls);
    Store store("prefix");
    // Conversations of four turns, a minute apart: each turn ends in a block of its own, which the next one rewrites.
    int next = 0;
    for (int conversation = 0; conversation < 60; ++conversation) {
      Ids prompt;
      for (int turn = 0; turn < 4; ++turn) {
        prompt.push_back(next++);
        prompt.push_back(next++);
        Ids request = prompt;
        request.push_back(next++);
        for (int call = 0; call < calls; ++call) store.use(request, 240 * conversation + 60 * turn);
      }
    }
    int64_t now = 240 * 60;
    int first = next;
    Ids due = {first, first + 1, first + 2, first + 3, first + 4};  // a conversation whose next turn is due soon
    for (int call = 0; call < calls; ++call) store.use(due, now);
    store.use({first + 10, first + 11}, now + 50);  // something that has just come
    store.use({first + 20, first + 21}, now + 51);
    Ids order = store.order(now + 52);
    auto place = [&](int id) { return std::ranges::find(order, id) - order.begin(); };
    CHECK(place(first + 11) < place(first + 3));
    CHECK(place(first + 4) < place(first + 3));
    CHECK(place(0) < place(first + 3));
  }
}

TEST_CASE("steps are bounded") {
  for (std::string_view name : policy_names()) {
    CAPTURE(name);
    Store store(name);
    for (int id = 0; id < 1000; ++id) store.use({id});
    CHECK(store.order(0, 0).empty());
    CHECK_FALSE(store.all_offered());
    CHECK(store.order(0, 50).size() <= 50);
    CHECK_FALSE(store.all_offered());
    std::set<int> all = store.ids();
    CHECK(store.order(0, 5000, all).size() == 1000);  // all of them kept: each is asked about once
    CHECK(store.all_offered());
  }
}

TEST_CASE("random histories: whoever takes all gets all, each once, leaves first") {
  for (std::string_view name : policy_names()) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      CAPTURE(name);
      CAPTURE(seed);
      SeededRandom random(seed);
      Store store(name);
      std::map<int, int> parents;  // as the policy was told when the entry was stored
      std::deque<int> lru;         // coldest first, for requests of one entry
      int64_t now = 0;
      for (int step = 0; step < 300; ++step) {
        now += static_cast<int64_t>(random.below(20));
        Ids path;
        // Paths of a fixed tree, in which node n hangs below n / 3.
        for (int node = static_cast<int>(random.below(80)) + 1; node > 0; node /= 3) path.insert(path.begin(), node);
        if (name == "lru" && random.below(2) == 0) path = {path.back()};
        for (size_t i = 0; i < path.size(); ++i) {
          if (!store.has(path[i])) parents[path[i]] = i == 0 ? 0 : path[i - 1];
        }
        store.use(path, now);
        for (size_t i = 0; i < path.size(); ++i) {
          std::erase(lru, path[i]);
          lru.insert(i == 0 ? lru.end() : std::ranges::find(lru, path[i - 1]), path[i]);
        }
        int chance = static_cast<int>(random.below(4));
        if (chance == 0) {
          std::set<int> ids = store.ids();
          int id = *std::next(ids.begin(), static_cast<int64_t>(random.below(ids.size())));
          store.erase(id);
          std::erase(lru, id);
          for (auto& [child, parent] : parents) {
            if (parent == id) parent = 0;  // it does not hold a later entry of that name
          }
        } else if (chance == 1) {
          int id = store.evict(now);
          if (name == "lru") CHECK(id == lru.front());
          std::erase(lru, id);
        }
        std::set<int> gone;
        Ids order = store.order(now);
        for (int id : order) {
          CHECK(gone.insert(id).second);
          if (name != "prefix") continue;
          for (auto& [child, parent] : parents) {
            if (parent == id && store.has(child)) CHECK(gone.contains(child));
          }
        }
        CHECK(gone == store.ids());
        CHECK(store.all_offered());
        if (name == "lru") CHECK(std::ranges::equal(order, lru));
      }
    }
  }
}
