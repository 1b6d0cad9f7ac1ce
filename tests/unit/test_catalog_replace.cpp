// Objects that take the place of others: who wins, what readers see, what a master that starts anew makes of it.
#include "unit/catalog_fixture.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

constexpr Generation kAny{};

PutGrant replace(Pool& pool, const ClientId& client, const std::string& key, const Generation& what,
                 uint64_t length = 100) {
  PutRequest request{.key = key, .length = length, .token = pool.next_token++, .replaces = what};
  return pool.catalog.put_start(client, {&request, 1}, pool.now_ns)[0];
}

InventoryEntry entry(const std::string& key, const Generation& generation, uint64_t offset, bool confirmed) {
  return {.key = key, .generation = generation, .length = 100, .offset = offset, .crc = 7, .confirmed = confirmed};
}

}  // namespace

TEST_CASE("replace: the old object shows until the new one is committed, then only the new one") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  const PutGrant old = pool.put("k", 100);
  const PutGrant next = replace(pool, kBob, "k", kAny, 200);
  REQUIRE(next.code == Code::kOk);
  CHECK(next.generation > old.generation);
  CHECK(pool.locate("k").generation == old.generation);
  CHECK(pool.keys() == std::vector<std::string>{"k"});
  CHECK(pool.end(kBob, "k", next.generation, 128) == Code::kOk);
  CHECK(pool.end(kBob, "k", next.generation, 128) == Code::kOk);  // asked again
  CHECK_FALSE(pool.exists("k"));                                  // its node has not let go of the old one
  pool.ack_all();
  CHECK(pool.locate("k").generation == next.generation);
  CHECK(pool.locate("k").length == 200);
  CHECK(pool.catalog.stats().committed == 1);
}

TEST_CASE("replace: where there is nothing it is a put, and a version that is not there is none") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  CHECK(replace(pool, kAlice, "k", {1, 2}).code == Code::kStale);
  const PutGrant first = replace(pool, kAlice, "k", kAny);
  REQUIRE(first.code == Code::kOk);
  CHECK_FALSE(first.generation.is_replacement());
  CHECK(replace(pool, kBob, "k", first.generation).code == Code::kStale);  // not committed
  CHECK(replace(pool, kBob, "k", kAny).code == Code::kAlreadyExists);      // under way
  CHECK(pool.end(kAlice, "k", first.generation) == Code::kOk);
  pool.ack_all();
  CHECK(replace(pool, kBob, "k", {1, first.generation.sequence + 2}).code == Code::kStale);
  CHECK(replace(pool, kBob, "k", first.generation).code == Code::kOk);
  CHECK(replace(pool, kAlice, "k", first.generation).code == Code::kAlreadyExists);
}

TEST_CASE("replace: of many that saw one version, one wins") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  const PutGrant old = pool.put("k", 100);
  const PutGrant one = replace(pool, kAlice, "k", old.generation);
  REQUIRE(one.code == Code::kOk);
  pool.tick(60 * kSecond);  // too slow: Bob may
  const PutGrant two = replace(pool, kBob, "k", old.generation);
  REQUIRE(two.code == Code::kOk);
  CHECK(pool.end_at(kAlice, "k", one.generation, {{kNodeA, 128, 7}}) == Code::kStale);
  CHECK(pool.end(kBob, "k", two.generation, 256) == Code::kOk);
  CHECK(replace(pool, kAlice, "k", old.generation).code == Code::kStale);
  pool.ack_all();
  CHECK(pool.locate("k").generation == two.generation);
}

TEST_CASE("replace: one that gives up costs the old object nothing") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  const PutGrant old = pool.put("k", 100);
  const PutGrant next = replace(pool, kBob, "k", kAny);
  CHECK(pool.revoke(kAlice, "k", next.generation) == Code::kDenied);
  CHECK(pool.revoke(kBob, "k", next.generation) == Code::kOk);
  CHECK(pool.locate("k").generation == old.generation);  // though the node has not answered
  CHECK(pool.ordered(kNodeA) == std::vector<Generation>{next.generation});
  CHECK(pool.end_at(kBob, "k", next.generation, {{kNodeA, 128, 7}}) == Code::kStale);
}

TEST_CASE("replace: nobody waits for a client that is gone") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("k", 100);
  const PutGrant next = replace(pool, kBob, "k", kAny);
  const PutGrant plain = pool.start(kBob, "free", 100);
  CHECK(replace(pool, kAlice, "k", kAny).code == Code::kAlreadyExists);
  pool.catalog.client_away(kBob);
  const PutGrant mine = replace(pool, kAlice, "k", kAny);
  CHECK(mine.code == Code::kOk);
  CHECK(pool.start(kAlice, "free", 100).code == Code::kOk);
  // He was not gone for good.
  pool.catalog.client_back(kBob);
  CHECK(pool.end_at(kBob, "k", next.generation, {{kNodeA, 128, 7}}) == Code::kStale);
  CHECK(pool.end_at(kBob, "free", plain.generation, {{kNodeA, 128, 7}}) == Code::kStale);
  CHECK(pool.end(kAlice, "k", mine.generation, 256) == Code::kOk);
}

TEST_CASE("replace: it ends with what it was to replace, and its client begins anew") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("k", 100);
  const PutGrant next = replace(pool, kBob, "k", kAny);
  CHECK(pool.remove("k") == Code::kOk);
  CHECK(pool.end_at(kBob, "k", next.generation, {{kNodeA, 128, 7}}) == Code::kStale);
  pool.ack_all();
  CHECK_FALSE(pool.exists("k"));
  const PutGrant again = replace(pool, kBob, "k", kAny);
  CHECK(pool.end(kBob, "k", again.generation, 128) == Code::kOk);
  CHECK(pool.exists("k"));
}

TEST_CASE("replace: a lost node takes both along, in any order") {
  for (const bool both : {true, false}) {
    Pool pool;
    pool.add_node(kNodeA, 64 * kKiB);
    if (!both) pool.add_node(kNodeB, 64 * kKiB);
    const PutGrant old = pool.put("k", 100);
    const PutGrant next = replace(pool, kBob, "k", kAny);
    REQUIRE(next.code == Code::kOk);
    pool.catalog.node_lost(next.node);
    pool.sound();
    CHECK(pool.exists("k") == (old.node != next.node));
    CHECK(pool.end_at(kBob, "k", next.generation, {{next.node, 128, 7}}) == Code::kStale);
  }
}

TEST_CASE("replace: what a node has of the new object is known to it as committed before anybody sees it") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.add_node(kNodeB, 64 * kKiB);
  const PutGrant old = pool.put("k", 100);
  const NodeId other = old.node == kNodeA ? kNodeB : kNodeA;
  PutRequest request{.key = "k", .length = 100, .token = 77, .replaces = kAny};
  const PutGrant next = pool.catalog.put_start(kBob, {&request, 1}, pool.now_ns, {.prefer = {other}})[0];
  REQUIRE(next.node == other);
  CHECK(pool.end(kBob, "k", next.generation, 128) == Code::kOk);
  pool.ack(old.node, {old.generation});
  CHECK_FALSE(pool.exists("k"));  // the other node may not have heard of the commit
  bool confirmed = false;
  for (const NodeOrder& order : pool.catalog.take_orders(1000)) {
    if (order.node != other) continue;
    confirmed = order.confirm.size() == 1 && order.retire.size() == 1 && order.retire[0].generation == old.generation;
  }
  CHECK(confirmed);
  pool.ack(other, {old.generation});
  CHECK(pool.exists("k"));
}

TEST_CASE("replace: a new master shows the old object while nobody confirmed the new one, whoever reports first") {
  for (const bool old_first : {true, false}) {
    for (const bool confirmed : {true, false}) {
      Pool pool;
      pool.catalog.start_term(2);
      const Generation old{1, 2}, next{1, 5};
      const auto report = [&](bool the_old) {
        const NodeId& id = the_old ? kNodeA : kNodeB;
        pool.join(id, 64 * kKiB, 1);
        pool.inventory(id, {the_old ? entry("k", old, 0, true) : entry("k", next, 128, confirmed)});
        pool.ready(id);
      };
      report(old_first);
      report(!old_first);
      if (confirmed) {
        pool.ack_all();
        CHECK(pool.locate("k").generation == next);
        continue;
      }
      CHECK(pool.locate("k").generation == old);
      // Its client says it again.
      CHECK(pool.end_at(kBob, "k", next, {{kNodeB, 128, 7}}) == Code::kOk);
      pool.ack_all();
      CHECK(pool.locate("k").generation == next);
    }
  }
}

TEST_CASE("replace: a new master lets go of a new object whose client is gone, and keeps the old one") {
  Pool pool;
  pool.catalog.start_term(2);
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {entry("k", {1, 2}, 0, true), entry("k", {1, 5}, 128, false), entry("k", {1, 7}, 256, false)});
  pool.ready(kNodeA);
  CHECK(pool.locate("k").generation == Generation{1, 2});
  pool.tick(60 * kSecond);
  CHECK(pool.locate("k").generation == Generation{1, 2});
  const std::vector<Generation> gone{{1, 5}, {1, 7}};
  CHECK(pool.ordered(kNodeA) == gone);
}

TEST_CASE("replace: another put that nobody confirmed hides what is older, as ever") {
  Pool pool;
  pool.catalog.start_term(2);
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {entry("k", {1, 2}, 0, true), entry("k", {1, 4}, 128, false)});
  pool.ready(kNodeA);
  CHECK_FALSE(pool.exists("k"));
}
