// Pins and times to live: what stays, what goes, and that both are known again after a restart.
#include <doctest/doctest.h>

#include "unit/catalog_fixture.h"
#include "unit/store_support.h"

namespace moontide::catalog {
namespace {

constexpr Retention kHardPin{.pin = Pin::kHard};
constexpr Retention kSoftPin{.pin = Pin::kSoft};
constexpr Retention kTwoSeconds{.ttl_ns = 2 * kSecond};

// Objects of 1 KiB until nothing more fits or `count` are there; as many as were put.
int fill(Pool& pool, int count, const std::string& prefix = "fill") {
  for (int i = 0; i < count; ++i) {
    PutGrant grant = pool.start(kAlice, prefix + std::to_string(i), 960);
    for (int tries = 0; grant.code == Code::kNoSpace && tries < 3; ++tries) {
      pool.ack_all();
      grant = pool.start(kAlice, prefix + std::to_string(i), 960);
    }
    if (grant.code != Code::kOk) return i;
    REQUIRE(pool.end(kAlice, prefix + std::to_string(i), grant.generation) == Code::kOk);
    pool.ack_all();
    pool.sound();
  }
  return count;
}

}  // namespace

TEST_CASE("retention: a hard pin is never evicted, a soft one last, by every policy") {
  for (std::string_view policy : policy_names()) {
    CAPTURE(policy);
    Pool pool({}, policy);
    pool.add_node(kNodeA, 32 * kKiB);
    pool.put("hard", 960, kHardPin);
    pool.put("soft", 960, kSoftPin);
    CHECK(fill(pool, 100) == 100);
    CHECK(pool.exists("hard"));
    CHECK(pool.exists("soft"));
    CHECK(pool.catalog.stats().hard_pinned_bytes == 1024);
    // where only pinned ones are left, the soft ones go
    CHECK(pool.keep("hard", kHardPin) == Code::kOk);
    const size_t before = pool.keys().size();
    for (const std::string& key : pool.keys()) {
      if (key != "hard") CHECK(pool.keep(key, kSoftPin) == Code::kOk);
    }
    PutGrant large = pool.start(kAlice, "large", 8 * kKiB);
    pool.ack_all();
    if (large.code == Code::kNoSpace) large = pool.start(kAlice, "large", 8 * kKiB);
    CHECK(large.code == Code::kOk);
    CHECK(pool.keys().size() <= before - 5);
    CHECK(pool.exists("hard"));
    // and an object that is let go is like any other
    CHECK(pool.keep("hard", {}) == Code::kOk);
    CHECK(pool.catalog.stats().hard_pinned_bytes == 0);
    if (policy != "lru") continue;  // others may find it worth more than what is new
    CHECK(fill(pool, 100, "more") == 100);
    CHECK_FALSE(pool.exists("hard"));
  }
}

TEST_CASE("retention: a pool full of hard pins takes nothing more and gives nothing up for it") {
  Pool pool;
  pool.add_node(kNodeA, 8 * kKiB);
  for (int i = 0; i < 7; ++i) pool.put("hard" + std::to_string(i), 960, kHardPin);
  pool.put("small", 400);
  CHECK(pool.start(kAlice, "k", 1000).code == Code::kNoSpace);
  pool.tick(kSecond);
  CHECK(pool.keys().size() == 8);
  CHECK(pool.exists("small"));  // its room would not be enough
  CHECK(pool.keep("hard3", {}) == Code::kOk);
  CHECK(pool.start(kAlice, "k", 1000).code == Code::kNoSpace);
  pool.ack_all();
  CHECK(pool.start(kAlice, "k", 1000).code == Code::kOk);
}

TEST_CASE("retention: watermarks count from the hard pins on") {
  Pool pool;
  pool.add_node(kNodeA, 100 * kKiB);
  for (int i = 0; i < 92; ++i) pool.put("hard" + std::to_string(i), 960, kHardPin);
  CHECK(fill(pool, 7) == 7);  // 99 of 100 are used: 8 that are free to move, of which 7 are
  pool.tick(kSecond);
  CHECK(pool.keys("fill").size() >= 6);
}

TEST_CASE("retention: after its ttl an object is out of sight at once, and its key is free") {
  Pool pool;
  pool.add_node(kNodeA, 8 * kKiB);
  pool.put("k", 100, {.pin = Pin::kHard, .ttl_ns = 2 * kSecond});
  pool.now_ns += kSecond / 2;
  CHECK(pool.locate("k").lease_ns == Limits{}.lease_ns);
  pool.now_ns += kSecond;
  CHECK(pool.locate("k").lease_ns == kSecond / 2);  // no lease lasts longer than the object
  pool.now_ns += kSecond / 2;
  CHECK(pool.locate("k").code == Code::kNotFound);
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.keys().empty());
  CHECK(pool.keep("k", kHardPin) == Code::kNotFound);
  CHECK(pool.remove("k") == Code::kNotFound);
  CHECK(pool.catalog.stats().expired == 1);
  pool.put("again", 100, kTwoSeconds);
  pool.now_ns += 2 * kSecond;
  pool.put("again", 100);  // nobody looked meanwhile
  pool.ack_all();
  CHECK(pool.exists("again"));
  pool.tick(10 * kSecond);
  CHECK(pool.exists("again"));
}

TEST_CASE("retention: objects past their ttl leave by the tick, a bounded number at a time") {
  Pool pool({.expiries_per_tick = 3});
  pool.add_node(kNodeA, 32 * kKiB);
  for (int i = 0; i < 8; ++i) pool.put("k" + std::to_string(i), 100, kTwoSeconds);
  pool.put("stays", 100);
  pool.tick(2 * kSecond - 1);
  CHECK(pool.keys().size() == 9);
  for (int left : {6, 3, 1, 1}) {
    pool.tick(1);
    CHECK(pool.catalog.stats().committed == static_cast<uint64_t>(left));
    CHECK(pool.keys() == std::vector<std::string>{"stays"});
  }
  CHECK(pool.catalog.stats().expired == 8);
}

TEST_CASE("retention: keep starts the time anew, ends it, or begins one") {
  Pool pool;
  pool.add_node(kNodeA, 8 * kKiB);
  pool.put("k", 100, kTwoSeconds);
  pool.tick(kSecond);
  CHECK(pool.keep("k", kTwoSeconds) == Code::kOk);
  pool.tick(3 * kSecond / 2);
  CHECK(pool.exists("k"));
  CHECK(pool.keep("k", {}) == Code::kOk);
  pool.tick(100 * kSecond);
  CHECK(pool.exists("k"));
  CHECK(pool.keep("k", {.ttl_ns = 1}) == Code::kOk);
  pool.tick(1);
  CHECK_FALSE(pool.exists("k"));
  pool.start(kAlice, "open", 100);
  CHECK(pool.keep("open", kHardPin) == Code::kNotFound);
  CHECK(pool.keep("", kHardPin) == Code::kInvalid);
  CHECK(pool.keep("k", {.ttl_ns = -1}) == Code::kInvalid);
  CHECK(pool.keep("k", {.ttl_ns = kMaxTtlNs + 1}) == Code::kInvalid);
  CHECK(pool.keep("k", {.pin = static_cast<Pin>(3)}) == Code::kInvalid);
}

TEST_CASE("retention: soft pins stay although more of them lie at the cold end than one step looks at") {
  Pool pool({.scan_per_step = 4}, "lru");
  pool.add_node(kNodeA, 32 * kKiB);
  for (int i = 0; i < 10; ++i) pool.put("soft" + std::to_string(i), 960, kSoftPin);
  CHECK(fill(pool, 100) == 100);
  CHECK(pool.keys("soft").size() == 10);
}

TEST_CASE("retention: an object whose node is away cannot be pinned") {
  Pool pool;
  pool.add_node(kNodeA, 8 * kKiB);
  pool.put("k", 100);
  pool.catalog.node_away(kNodeA);
  CHECK(pool.keep("k", kHardPin) == Code::kUnavailable);
  CHECK(pool.catalog.stats().hard_pinned_bytes == 0);
}

TEST_CASE("retention: the newest commits are told first, and times that only drifted not again") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant old = pool.put("old", 100, {.ttl_ns = 60 * kSecond});
  PutGrant young = pool.put("young", 100);
  auto order = pool.catalog.take_orders(1).at(0);
  REQUIRE(order.confirm.size() == 1);
  CHECK(order.confirm[0].generation == young.generation);
  CHECK(pool.catalog.take_orders(9).at(0).confirm.at(0).generation == old.generation);
  pool.join(kNodeA, 64 * kKiB, 1);
  auto entry = [&](const std::string& key, const PutGrant& grant, const Retention& retention) {
    return InventoryEntry{key, grant.generation, 100, 0, 7, true, retention};
  };
  pool.inventory(kNodeA, {entry("old", old, {.ttl_ns = 59 * kSecond + kSecond / 2}), entry("young", young, {})});
  pool.ready(kNodeA);
  CHECK(pool.catalog.take_orders(9).empty());
}

TEST_CASE("retention: a node is told, and told again where it does not know") {
  Pool pool;
  pool.add_node(kNodeA, 8 * kKiB);
  PutGrant k = pool.put("k", 100, {.pin = Pin::kSoft, .ttl_ns = 10 * kSecond});
  pool.now_ns += kSecond;
  pool.catalog.tick(pool.now_ns);
  auto told = pool.catalog.take_orders(10).at(0).confirm.at(0);
  CHECK(told.retention == Retention{Pin::kSoft, 9 * kSecond});
  CHECK(pool.keep("k", kHardPin) == Code::kOk);
  CHECK(pool.catalog.take_orders(10).at(0).confirm.at(0).retention == kHardPin);
  // that order was lost: the node comes back with what it was told before
  pool.join(kNodeA, 8 * kKiB, 1);
  pool.inventory(kNodeA, {{.key = "k",
                           .generation = k.generation,
                           .length = 100,
                           .offset = 0,
                           .crc = 7,
                           .confirmed = true,
                           .retention = {Pin::kSoft, 8 * kSecond}}});
  pool.ready(kNodeA);
  CHECK(pool.catalog.take_orders(10).at(0).confirm.at(0).retention == kHardPin);
  // a master that starts anew takes the node's word
  pool.catalog.start_term(2);
  pool.now_ns += 100 * kSecond;
  pool.join(kNodeA, 8 * kKiB, 1);
  pool.inventory(kNodeA, {{.key = "k",
                           .generation = k.generation,
                           .length = 100,
                           .offset = 0,
                           .crc = 7,
                           .confirmed = true,
                           .retention = {Pin::kHard, kSecond}}});
  pool.ready(kNodeA);
  CHECK(pool.exists("k"));
  CHECK(pool.catalog.stats().hard_pinned_bytes > 0);
  pool.tick(kSecond);
  CHECK_FALSE(pool.exists("k"));
}

}  // namespace moontide::catalog

namespace moontide::store::test {
namespace {

Code keep(Cluster& cluster, Client& client, const std::string& key, const catalog::Retention& retention) {
  auto answer = cluster.codes([&](Client::CodesDone done) { client.keep({key}, retention, 0, std::move(done)); });
  REQUIRE(answer);
  return answer->at(0);
}

Code put(Cluster& cluster, Client& client, const std::string& key, const catalog::Retention& retention, Commit commit) {
  std::vector<PutItem> items(1);
  items[0].key = key;
  items[0].value = Bytes(100'000);
  items[0].retention = retention;
  auto results = cluster.finish(client.put(std::move(items), commit, {}));
  return results[0] ? Code::kOk : results[0].error().code;
}

}  // namespace

TEST_CASE("retention: pins and times outlive the master, however the puts were committed") {
  for (Commit commit : {Commit::kSync, Commit::kAsync}) {
    Cluster cluster;
    Client& client = cluster.simple();
    REQUIRE(put(cluster, client, "hard", {.pin = catalog::Pin::kHard}, commit) == Code::kOk);
    REQUIRE(put(cluster, client, "later", {}, commit) == Code::kOk);
    REQUIRE(put(cluster, client, "short", {.pin = catalog::Pin::kHard, .ttl_ns = 2 * kSecond}, commit) == Code::kOk);
    REQUIRE(cluster.until([&] { return client.commits().pending() == 0; }));
    CHECK(keep(cluster, client, "later", {.pin = catalog::Pin::kHard, .ttl_ns = 3600 * kSecond}) == Code::kOk);
    CHECK(keep(cluster, client, "none", {.pin = catalog::Pin::kHard}) == Code::kNotFound);
    uint32_t before = cluster.master->term();
    cluster.start_master();
    Node& node = *cluster.nodes[0].node;
    REQUIRE(cluster.until([&] { return node.joined() && node.term() > before; }));
    for (int i = 0; i < 80; ++i) {
      REQUIRE(put(cluster, client, "fill" + std::to_string(i), {}, Commit::kSync) == Code::kOk);
    }
    CHECK(cluster.master->catalog().stats().evicted > 0);
    CHECK(cluster.exists(client, "hard"));
    CHECK(cluster.exists(client, "later"));
    CHECK(cluster.until([&] { return cluster.master->catalog().stats().expired == 1; }));
    CHECK_FALSE(cluster.exists(client, "short"));
    CHECK(cluster.master->catalog().check_invariants().has_value());
  }
}

}  // namespace moontide::store::test
