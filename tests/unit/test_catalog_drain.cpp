// Draining a node: everything goes elsewhere, nothing is ever nowhere, and what has no room stays.
#include "unit/catalog_fixture.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

// Nodes that do what they are ordered to: pull, let go.
struct Obedient : Pool {
  using Pool::Pool;
  uint64_t next_offset = 0;

  void obey() {
    for (const NodeOrder& order : catalog.take_orders(1000)) {
      std::vector<Generation> retired;
      for (const RetireItem& item : order.retire) retired.push_back(item.generation);
      catalog.retire_acked(order.node, retired);
      for (const RepairItem& item : order.repair) {
        const RepairedItem done{item.generation, Code::kOk, next_offset += 64, item.crc};
        catalog.repaired(order.node, {&done, 1}, now_ns);
      }
    }
  }
  void run(int ticks) {
    for (int i = 0; i < ticks; ++i) {
      tick(10 * kMillisecond);
      obey();
      sound();
    }
  }
  size_t on(const NodeId& id) const { return catalog.node(id)->replicas.size(); }
};

}  // namespace

TEST_CASE("drain: objects go to the other node, and nothing comes to this one") {
  Obedient pool;
  pool.add_node(kNodeA, 64 * kKiB);
  for (int i = 0; i < 20; ++i) pool.put("k" + std::to_string(i), 100);
  pool.add_node(kNodeB, 64 * kKiB);
  CHECK(pool.catalog.drain({9, 9}, true) == Code::kNotFound);
  REQUIRE(pool.catalog.drain(kNodeA, true) == Code::kOk);
  CHECK(pool.catalog.stats().nodes_draining == 1);
  for (int i = 0; i < 10 && pool.on(kNodeA) > 0; ++i) {
    pool.run(1);
    CHECK(pool.keys().size() == 20);
  }
  CHECK(pool.on(kNodeA) == 0);
  CHECK(pool.on(kNodeB) == 20);
  CHECK(pool.catalog.stats().drained == 20);
  for (int i = 0; i < 5; ++i) CHECK(pool.node_of(pool.put("new" + std::to_string(i), 100).generation) == kNodeB);
}

TEST_CASE("drain: a replica goes only after a node that knows that it was committed has another one") {
  Obedient pool;
  pool.add_node(kNodeA, 64 * kKiB);
  const PutGrant grant = pool.put("k", 100);
  pool.obey();
  pool.add_node(kNodeB, 64 * kKiB);
  pool.catalog.drain(kNodeA, true);
  pool.tick(10 * kMillisecond);
  pool.tick(10 * kMillisecond);
  auto orders = pool.catalog.take_orders(1000);
  REQUIRE(orders.size() == 1);
  REQUIRE(orders[0].repair.size() == 1);
  CHECK(orders[0].node == kNodeB);
  const RepairedItem done{grant.generation, Code::kOk, 64, orders[0].repair[0].crc};
  pool.catalog.repaired(kNodeB, {&done, 1}, pool.now_ns);
  for (int i = 0; i < 5; ++i) pool.tick(10 * kMillisecond);
  CHECK(pool.on(kNodeA) == 1);
  orders = pool.catalog.take_orders(1000);  // "it was committed"
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].confirm.size() == 1);
  pool.tick(10 * kMillisecond);
  pool.tick(10 * kMillisecond);
  CHECK(pool.on(kNodeA) == 0);
  CHECK(pool.exists("k"));
}

TEST_CASE("drain: a lone node keeps what it has, and takes nothing") {
  Obedient pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("k", 100);
  pool.catalog.drain(kNodeA, true);
  pool.run(20);
  CHECK(pool.on(kNodeA) == 1);
  CHECK(pool.exists("k"));
  CHECK(pool.start(kAlice, "other", 100).code == Code::kUnavailable);
  REQUIRE(pool.catalog.drain(kNodeA, false) == Code::kOk);
  CHECK(pool.put("other", 100).code == Code::kOk);
  pool.run(20);
  CHECK(pool.catalog.stats().replicas_short == 0);
}

TEST_CASE("drain: what others have no room for stays, and goes when there is room") {
  Obedient pool;
  pool.add_node(kNodeA, 64 * kKiB);
  for (int i = 0; i < 6; ++i) pool.put("k" + std::to_string(i), 8000);
  pool.add_node(kNodeB, 32 * kKiB);
  pool.catalog.drain(kNodeA, true);
  pool.run(100);
  CHECK(pool.on(kNodeB) == 3);
  CHECK(pool.on(kNodeA) == 3);
  CHECK(pool.keys().size() == 6);
  pool.add_node({12, 0}, 64 * kKiB);
  pool.run(700);  // a repair that failed pauses
  CHECK(pool.on(kNodeA) == 0);
  CHECK(pool.keys().size() == 6);
}

TEST_CASE("drain: replicas elsewhere suffice, and are made up to the number that was asked for") {
  Obedient pool;
  for (uint64_t i = 10; i < 13; ++i) pool.add_node({i, 0}, 64 * kKiB);
  pool.put_on("two", 100, {.replicas = 2, .prefer = {kNodeA, kNodeB}, .avoid = {}});
  pool.catalog.drain(kNodeA, true);
  pool.run(20);
  CHECK(pool.on(kNodeA) == 0);
  CHECK(pool.on(kNodeB) == 1);
  CHECK(pool.on({12, 0}) == 1);
  pool.catalog.drain(kNodeB, true);
  pool.run(20);
  // Two were wanted and no third node is there: one is enough to let this one go.
  CHECK(pool.on(kNodeB) == 0);
  CHECK(pool.on({12, 0}) == 1);
  CHECK(pool.catalog.stats().replicas_short == 1);
  pool.catalog.drain(kNodeA, false);
  pool.run(20);
  CHECK(pool.on(kNodeA) == 1);
  CHECK(pool.catalog.stats().replicas_short == 0);
}

TEST_CASE("drain: canceled in the middle, begun again, lost in the middle") {
  Obedient pool;
  pool.add_node(kNodeA, 1024 * kKiB);
  for (int i = 0; i < 400; ++i) pool.put("k" + std::to_string(i), 100);
  pool.add_node(kNodeB, 1024 * kKiB);
  pool.catalog.drain(kNodeA, true);
  pool.run(3);
  const size_t gone = 400 - pool.on(kNodeA);
  CHECK(gone > 0);
  CHECK(gone < 400);
  pool.catalog.drain(kNodeA, false);
  pool.run(50);
  CHECK(pool.catalog.stats().replicas_short == 0);
  CHECK(pool.keys().size() == 400);
  pool.catalog.drain(kNodeA, true);
  pool.run(5);
  pool.catalog.node_lost(kNodeB);  // where they went
  pool.run(5);
  const size_t left = pool.keys().size();
  CHECK(left == pool.on(kNodeA));
  pool.add_node({12, 0}, 1024 * kKiB);
  pool.run(100);
  CHECK(pool.on(kNodeA) == 0);
  CHECK(pool.keys().size() == left);
  pool.catalog.node_lost(kNodeA);
  CHECK(pool.keys().size() == left);
}

TEST_CASE("drain: removed, pinned and open objects meanwhile") {
  Obedient pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("hard", 100, {.pin = Pin::kHard, .ttl_ns = 0});
  pool.put("gone", 100);
  const PutGrant open = pool.start(kAlice, "open", 100);
  pool.add_node(kNodeB, 64 * kKiB);
  pool.catalog.drain(kNodeA, true);
  pool.tick(10 * kMillisecond);
  pool.remove("gone");
  pool.run(5);
  CHECK(pool.on(kNodeA) == 1);  // the open one
  REQUIRE(pool.end(kAlice, "open", open.generation) == Code::kOk);
  pool.run(10);
  CHECK(pool.on(kNodeA) == 0);
  CHECK(pool.exists("open"));
  CHECK(pool.exists("hard"));
  CHECK(pool.catalog.stats().hard_pinned_bytes == entry_footprint(100));
  CHECK_FALSE(pool.exists("gone"));
}
