// Objects with several replicas, one rule per case.
#include <set>

#include "unit/catalog_fixture.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

constexpr NodeId kNodeC{12, 0};

struct ThreeNodes : Pool {
  explicit ThreeNodes(uint64_t capacity = 64 * kKiB, Limits limits = {}) : Pool(limits) {
    for (const NodeId& id : {kNodeA, kNodeB, kNodeC}) add_node(id, capacity);
  }
  size_t places(const std::string& key) {
    const Place place = locate(key);
    return place.code == Code::kOk ? 1 + place.further.size() : 0;
  }
  uint64_t used(const NodeId& id) const { return catalog.node(id)->used_bytes(); }
};

InventoryEntry entry(const std::string& key, Generation generation, bool confirmed, uint64_t offset = 0) {
  return {.key = key, .generation = generation, .length = 100, .offset = offset, .crc = 9, .confirmed = confirmed};
}

}  // namespace

TEST_CASE("catalog: replicas are granted on as many nodes, and all places that landed are told") {
  ThreeNodes pool;
  const PutGrant grant = pool.start(kAlice, "k", 100, 0, {.replicas = 3});
  REQUIRE(grant.code == Code::kOk);
  REQUIRE(grant.further.size() == 2);
  CHECK(std::set<NodeId>{grant.node, grant.further[0], grant.further[1]}.size() == 3);
  CHECK(pool.catalog.stats().unfinished == 1);
  CHECK(pool.catalog.stats().unfinished_bytes == 3 * entry_footprint(100));
  CHECK(pool.end_at(kAlice, "k", grant.generation, {{grant.node, 64, 7}, {grant.further[0], 128, 7}}) == Code::kOk);
  const Place place = pool.locate("k");
  CHECK(place.offset == 64);
  REQUIRE(place.further.size() == 1);
  CHECK(place.further[0].node == grant.further[0]);
  CHECK(place.further[0].offset == 128);
  CHECK(pool.catalog.stats().committed == 1);
  CHECK(pool.catalog.stats().replicas == 2);
  CHECK(pool.catalog.stats().replicas_short == 1);
  CHECK(pool.ordered(grant.further[1]) == std::vector{grant.generation});  // its ticket is over
  CHECK(pool.catalog.settled("k"));                                        // and nobody waits for that
  pool.sound();
}

TEST_CASE("catalog: nodes that are preferred come first, those to be avoided never") {
  ThreeNodes pool;
  const PutGrant first = pool.start(kAlice, "a", 100, 0, {.replicas = 2, .prefer = {kNodeC, kNodeB}});
  CHECK(first.node == kNodeC);
  CHECK(first.further == std::vector{kNodeB});
  const PutGrant second =
      pool.start(kAlice, "b", 100, 0, {.replicas = 3, .prefer = {kNodeB}, .avoid = {kNodeA, kNodeB}});
  CHECK(second.node == kNodeC);
  CHECK(second.further.empty());
  CHECK(pool.start(kAlice, "c", 100, 0, {.avoid = {kNodeA, kNodeB, kNodeC}}).code == Code::kUnavailable);
  CHECK(pool.start(kAlice, "d", 100, 0, {.replicas = 0}).code == Code::kInvalid);
  CHECK(pool.start(kAlice, "d", 100, 0, {.replicas = kMaxReplicas + 1}).code == Code::kInvalid);
  CHECK(pool.start(kAlice, "d", 100, 0, {.prefer = std::vector<NodeId>(65)}).code == Code::kInvalid);
}

TEST_CASE("catalog: where few nodes have room an object has fewer replicas, and that is counted") {
  ThreeNodes pool(kKiB);
  pool.put_on("full", 800, {.prefer = {kNodeA}});
  pool.put_on("k", 500, {.replicas = 3});
  CHECK(pool.places("k") == 2);
  CHECK(pool.catalog.stats().replicas_short == 1);
  CHECK(pool.remove("k") == Code::kOk);
  CHECK(pool.catalog.stats().replicas_short == 0);
}

TEST_CASE("catalog: a put is over when no node that its end names has it, and places of other bytes do not count") {
  ThreeNodes pool;
  const PutGrant grant = pool.start(kAlice, "k", 100, 0, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  CHECK(pool.end_at(kAlice, "k", grant.generation, {{kNodeC, 0, 7}}) == Code::kStale);
  CHECK(pool.end_at(kAlice, "k", grant.generation, {{kNodeA, 63, 7}}) == Code::kInvalid);
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.end_at(kAlice, "k", grant.generation, {{kNodeA, 0, 7}, {kNodeB, 0, 8}}) == Code::kOk);
  CHECK(pool.places("k") == 1);
  CHECK(pool.ordered(kNodeB) == std::vector{grant.generation});
}

TEST_CASE("catalog: eviction takes a replica from its node, the object goes with the last one") {
  ThreeNodes pool(4 * kKiB, {.lease_ns = 0});
  pool.put_on("k", 1000, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  auto retiring = [&] { return !pool.catalog.node(kNodeA)->retiring.empty(); };
  for (int i = 0; i < 8 && !retiring(); ++i) {
    const std::string key = "a" + std::to_string(i);
    const PutGrant grant = pool.start(kAlice, key, 1000, 0, {.avoid = {kNodeB, kNodeC}});
    if (grant.code == Code::kOk) CHECK(pool.end(kAlice, key, grant.generation) == Code::kOk);
  }
  REQUIRE(retiring());
  CHECK(pool.exists("k"));  // though its entry on the other node is still there
  CHECK(pool.places("k") == 1);
  CHECK(pool.locate("k").node == kNodeB);
  CHECK(pool.catalog.stats().replicas_short == 0);  // nobody makes room only to fill it again
  pool.sound();
}

TEST_CASE("catalog: a remove retires all replicas and is settled when the last node has let go") {
  ThreeNodes pool;
  const PutGrant grant = pool.put_on("k", 100, {.replicas = 3});
  CHECK(pool.remove("k") == Code::kOk);
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.catalog.stats().retiring == 3);
  for (const NodeId& id : {kNodeA, kNodeB, kNodeC}) {
    CHECK_FALSE(pool.catalog.settled("k"));
    pool.ack(id, {grant.generation});
    pool.sound();
  }
  CHECK(pool.catalog.settled("k"));
  CHECK(pool.catalog.stats().retiring_bytes == 0);
}

TEST_CASE("catalog: a replica that was retired alone counts as an older entry once its object has ended") {
  ThreeNodes pool;
  const PutGrant grant = pool.start(kAlice, "k", 100, 0, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  REQUIRE(pool.end_at(kAlice, "k", grant.generation, {{kNodeA, 0, 7}}) == Code::kOk);
  CHECK(pool.exists("k"));
  CHECK(pool.remove("k") == Code::kOk);
  pool.ack(kNodeA, {grant.generation});
  CHECK_FALSE(pool.catalog.settled("k"));  // the other node may have pulled it, a new master might hear of it
  const PutGrant next = pool.put("k", 100);
  CHECK_FALSE(pool.exists("k"));
  pool.ack(kNodeB, {grant.generation});
  CHECK(pool.catalog.settled("k"));
  CHECK(pool.locate("k").generation == next.generation);
}

TEST_CASE("catalog: an object outlives the loss of a node while another has it") {
  ThreeNodes pool;
  pool.put_on("two", 100, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  pool.put_on("one", 100, {.prefer = {kNodeA}});
  const PutGrant open = pool.start(kAlice, "open", 100, 0, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  pool.catalog.node_lost(kNodeA);
  pool.sound();
  CHECK(pool.places("two") == 1);
  CHECK(pool.catalog.stats().replicas_short == 1);
  CHECK_FALSE(pool.exists("one"));
  CHECK(pool.catalog.stats().objects_lost == 1);
  CHECK(pool.end_at(kAlice, "open", open.generation, {{kNodeA, 0, 7}, {kNodeB, 0, 7}}) == Code::kOk);
  CHECK(pool.places("open") == 1);
  pool.catalog.node_lost(kNodeB);
  CHECK(pool.keys().empty());
  CHECK(pool.catalog.stats().replicas_short == 0);
}

TEST_CASE("catalog: a node that was given up brings its replica back") {
  ThreeNodes pool;
  const PutGrant grant = pool.put_on("k", 100, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  pool.catalog.node_lost(kNodeA);
  pool.join(kNodeA, 64 * kKiB, 1);
  InventoryEntry back = entry("k", grant.generation, true);
  back.crc = 7;
  pool.inventory(kNodeA, {back});
  pool.ready(kNodeA);
  CHECK(pool.places("k") == 2);
  CHECK(pool.catalog.stats().replicas_short == 0);
  CHECK(pool.catalog.stats().adopted == 1);
}

TEST_CASE("catalog: places on nodes that are away are told last") {
  ThreeNodes pool;
  pool.put_on("k", 100, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  CHECK(pool.locate("k").node == kNodeA);
  pool.catalog.node_away(kNodeA);
  CHECK(pool.locate("k").node == kNodeB);
  CHECK(pool.places("k") == 2);
}

TEST_CASE("catalog: a new master makes one object of the replicas that nodes report") {
  Pool pool;
  pool.catalog.start_term(5);
  pool.join(kNodeA, 64 * kKiB, 4);
  pool.join(kNodeB, 64 * kKiB, 4);
  pool.inventory(kNodeA, {entry("k", {4, 7}, true, 0)});
  pool.inventory(kNodeB, {entry("k", {4, 7}, true, 192)});
  pool.ready(kNodeA);
  pool.ready(kNodeB);
  CHECK(pool.catalog.stats().committed == 1);
  const Place place = pool.locate("k");
  REQUIRE(place.further.size() == 1);
  CHECK(place.further[0].offset == 192);
  CHECK(pool.catalog.stats().retiring == 0);
}

TEST_CASE("catalog: beside a confirmed replica one that nobody confirmed is let go of, whoever reports first") {
  for (bool confirmed_first : {true, false}) {
    CAPTURE(confirmed_first);
    Pool pool;
    pool.catalog.start_term(5);
    pool.join(kNodeA, 64 * kKiB, 4);
    pool.join(kNodeB, 64 * kKiB, 4);
    if (confirmed_first) pool.inventory(kNodeA, {entry("k", {4, 7}, true)});
    pool.inventory(kNodeB, {entry("k", {4, 7}, false)});
    if (!confirmed_first) pool.inventory(kNodeA, {entry("k", {4, 7}, true)});
    pool.sound();
    pool.ready(kNodeA);
    pool.ready(kNodeB);
    CHECK(pool.exists("k"));
    CHECK(pool.locate("k").node == kNodeA);
    CHECK(pool.locate("k").further.empty());
    CHECK(pool.ordered(kNodeB) == std::vector{Generation{4, 7}});
    CHECK(pool.end(kAlice, "k", {4, 7}) == Code::kOk);  // it is there
  }
}

TEST_CASE("catalog: of replicas that nobody confirmed those count that their client names") {
  Pool pool;
  pool.catalog.start_term(5);
  for (const NodeId& id : {kNodeA, kNodeB, kNodeC}) {
    pool.join(id, 64 * kKiB, 4);
    pool.inventory(id, {entry("k", {4, 7}, false)});
    pool.ready(id);
  }
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.end_at(kAlice, "k", {4, 7}, {{kNodeB, 0, 9}, {kNodeC, 0, 9}}) == Code::kOk);
  CHECK(pool.locate("k").further.size() == 1);
  CHECK(pool.ordered(kNodeA) == std::vector{Generation{4, 7}});
}

TEST_CASE("catalog: an entry that only another node of the put may have does not become its object") {
  Pool pool;
  pool.catalog.start_term(5);
  pool.join(kNodeB, 64 * kKiB, 4);
  pool.inventory(kNodeB, {entry("k", {4, 7}, false)});
  pool.ready(kNodeB);
  CHECK(pool.end_at(kAlice, "k", {4, 7}, {{kNodeA, 0, 9}}) == Code::kStale);
  CHECK_FALSE(pool.exists("k"));
}

TEST_CASE("catalog: a pin holds every replica, and is not given while a node could not be told") {
  ThreeNodes pool;
  pool.put_on("k", 100, {.replicas = 2, .prefer = {kNodeA, kNodeB}}, {.pin = Pin::kHard});
  CHECK(pool.catalog.stats().hard_pinned_bytes == 2 * entry_footprint(100));
  CHECK(pool.keep("k", {.pin = Pin::kSoft}) == Code::kOk);
  CHECK(pool.catalog.stats().hard_pinned_bytes == 0);
  pool.sound();
  pool.catalog.node_away(kNodeB);
  CHECK(pool.keep("k", {.pin = Pin::kHard}) == Code::kUnavailable);
}

namespace {

// What the catalog wants pulled by whom now.
std::vector<std::pair<NodeId, RepairItem>> repairs(Pool& pool) {
  std::vector<std::pair<NodeId, RepairItem>> found;
  for (const NodeOrder& order : pool.catalog.take_orders(1000)) {
    for (const RepairItem& item : order.repair) found.emplace_back(order.node, item);
  }
  return found;
}

void report(Pool& pool, const NodeId& node, Generation generation, Code code = Code::kOk, uint32_t crc = 7) {
  RepairedItem item{.generation = generation, .code = code, .offset = 256, .crc = crc};
  pool.catalog.repaired(node, {&item, 1}, pool.now_ns);
  pool.sound();
}

// On A and B, and A is lost.
struct OneIsLost : ThreeNodes {
  PutGrant grant = put_on("k", 100, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  explicit OneIsLost(uint64_t capacity = 64 * kKiB) : ThreeNodes(capacity) {
    CHECK(repairs(*this).empty());
    catalog.node_lost(kNodeA);
  }
};

}  // namespace

TEST_CASE("catalog: a replica that is missing is pulled by a node that has none from one that has it") {
  OneIsLost pool;
  pool.tick(0);
  const auto ordered = repairs(pool);
  REQUIRE(ordered.size() == 1);
  CHECK(ordered[0].first == kNodeC);
  CHECK(ordered[0].second.key == "k");
  CHECK(ordered[0].second.generation == pool.grant.generation);
  CHECK(ordered[0].second.source == kNodeB);
  CHECK(ordered[0].second.offset == 64);
  CHECK(pool.catalog.stats().unfinished_bytes == entry_footprint(100));
  pool.tick(kSecond);
  CHECK(repairs(pool).empty());  // it is under way
  CHECK(pool.places("k") == 1);
  report(pool, kNodeC, pool.grant.generation);
  CHECK(pool.places("k") == 2);
  CHECK(pool.catalog.stats().replicas_short == 0);
  CHECK(pool.catalog.stats().repairs == 1);
  const auto orders = pool.catalog.take_orders(10);
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].confirm.size() == 1);  // until then a new master would not take it
}

TEST_CASE("catalog: a repair that lands after the object was removed is retired") {
  OneIsLost pool;
  pool.tick(0);
  REQUIRE(repairs(pool).size() == 1);
  CHECK(pool.remove("k") == Code::kOk);
  report(pool, kNodeC, pool.grant.generation);
  CHECK_FALSE(pool.exists("k"));
  pool.ack(kNodeB, {pool.grant.generation});
  CHECK_FALSE(pool.catalog.settled("k"));
  CHECK(pool.ordered(kNodeC) == std::vector{pool.grant.generation});
  pool.ack(kNodeC, {pool.grant.generation});
  CHECK(pool.catalog.settled("k"));
  CHECK(pool.catalog.stats().repairs == 0);
}

TEST_CASE("catalog: a repair that failed, or brought other bytes, is tried again after a pause") {
  OneIsLost pool;
  for (uint32_t crc : {7u, 8u}) {
    pool.tick(6 * kSecond);
    REQUIRE(repairs(pool).size() == 1);
    report(pool, kNodeC, pool.grant.generation, crc == 7 ? Code::kUnavailable : Code::kOk, crc);
    CHECK(pool.places("k") == 1);
    pool.tick(kSecond);
    CHECK(repairs(pool).empty());
    pool.ack(kNodeC, {pool.grant.generation});
  }
  CHECK(pool.catalog.stats().repairs_failed == 2);
  CHECK(pool.catalog.stats().unfinished_bytes == 0);
}

TEST_CASE("catalog: a repair may fail after the node whose replica it stands for came back") {
  OneIsLost pool;
  pool.tick(0);
  REQUIRE(repairs(pool).size() == 1);
  pool.join(kNodeA, 64 * kKiB, 1);
  InventoryEntry back = entry("k", pool.grant.generation, true);
  back.crc = 7;
  pool.inventory(kNodeA, {back});
  pool.ready(kNodeA);
  CHECK(pool.places("k") == 2);
  report(pool, kNodeC, pool.grant.generation, Code::kUnavailable);
  CHECK(pool.places("k") == 2);
  CHECK(pool.catalog.stats().repairs_failed == 1);
}

TEST_CASE("catalog: an object remembers only nodes on which it is still on its way out") {
  ThreeNodes pool;
  const PutGrant grant = pool.put_on("k", 100, {.replicas = 2, .prefer = {kNodeA, kNodeB}});
  for (int round = 1; round <= 50; ++round) {
    pool.catalog.node_lost(kNodeA);
    pool.join(kNodeA, 64 * kKiB, static_cast<uint32_t>(1));
    InventoryEntry other = entry("k", grant.generation, true);
    other.crc = 8;  // not its bytes: let go of
    pool.inventory(kNodeA, {other});
    pool.ready(kNodeA);
    CHECK(pool.ordered(kNodeA) == std::vector{grant.generation});
    pool.ack(kNodeA, {grant.generation});
    pool.sound();
  }
  CHECK(pool.places("k") == 1);
}

TEST_CASE("catalog: a repair ends with its node, and with the last node that has the object") {
  OneIsLost pool;
  pool.tick(0);
  REQUIRE(repairs(pool).size() == 1);
  pool.catalog.node_away(kNodeC);
  pool.sound();
  CHECK(pool.catalog.stats().unfinished_bytes == 0);
  CHECK(pool.exists("k"));
  pool.join(kNodeC, 64 * kKiB, 1);
  pool.ready(kNodeC);
  CHECK(pool.ordered(kNodeC) == std::vector{pool.grant.generation});
  pool.ack(kNodeC, {pool.grant.generation});
  pool.tick(0);
  REQUIRE(repairs(pool).size() == 1);
  pool.catalog.node_lost(kNodeB);
  pool.sound();
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.ordered(kNodeC) == std::vector{pool.grant.generation});
}

TEST_CASE("catalog: a repair evicts nothing and goes to no node that its put avoids") {
  OneIsLost full(2 * kKiB);
  full.put_on("fills", 1800, {.prefer = {kNodeC}});
  full.tick(0);
  CHECK(repairs(full).empty());
  CHECK(full.remove("fills") == Code::kOk);
  full.ack_all();
  full.tick(0);
  CHECK(repairs(full).size() == 1);

  ThreeNodes pool;
  pool.put_on("k", 100, {.replicas = 2, .prefer = {kNodeA}, .avoid = {kNodeC}});
  pool.catalog.node_lost(kNodeA);
  pool.tick(0);
  CHECK(repairs(pool).empty());
}

TEST_CASE("catalog: one replica costs an object no more than before there were several") {
  CHECK(sizeof(Replica) <= 64);
  CHECK(sizeof(Object) <= 136);
}
