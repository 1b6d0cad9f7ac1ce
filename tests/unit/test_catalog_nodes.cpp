// Nodes that join, report, vanish and return; masters that start anew.
#include "unit/catalog_fixture.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

InventoryEntry entry(const std::string& key, Generation generation, uint64_t offset = 0, uint64_t length = 100) {
  return {.key = key, .generation = generation, .length = length, .offset = offset, .crc = 9, .confirmed = true};
}

InventoryEntry unconfirmed(const std::string& key, Generation generation, uint64_t offset = 0) {
  InventoryEntry result = entry(key, generation, offset);
  result.confirmed = false;
  return result;
}

}  // namespace

TEST_CASE("catalog: a new master adopts what nodes hold, in pieces, and publishes it") {
  Pool pool;
  pool.catalog.start_term(5);
  pool.join(kNodeA, 64 * kKiB, 4);
  pool.inventory(kNodeA, {entry("a", {4, 7}, 0), entry("b", {2, 9}, 192)});
  pool.inventory(kNodeA, {entry("c", {4, 8}, 384)});
  CHECK(pool.start(kAlice, "new", 1).code == Code::kUnavailable);  // nothing is placed before the end
  pool.ready(kNodeA);
  CHECK(pool.keys() == std::vector<std::string>{"a", "b", "c"});
  CHECK(pool.locate("b").offset == 192);
  CHECK(pool.locate("b").crc == 9);
  CHECK(pool.catalog.stats().committed_bytes == 3 * entry_footprint(100));
  CHECK(pool.ordered(kNodeA).empty());
  PutGrant grant = pool.start(kAlice, "new", 1);
  CHECK(grant.generation == Generation{5, 1});  // newer than anything that exists
}

TEST_CASE("catalog: nodes that report one generation for several open puts do not mix up the books") {
  Pool pool;
  pool.catalog.start_term(5);
  pool.join(kNodeA, 64 * kKiB, 4);
  pool.inventory(kNodeA, {unconfirmed("a", {4, 7})});
  pool.join(kNodeB, 64 * kKiB, 4);
  pool.inventory(kNodeB, {unconfirmed("b", {4, 7})});
  pool.sound();
  pool.ready(kNodeA);
  pool.ready(kNodeB);
  pool.now_ns += 3600 * kSecond;
  pool.catalog.tick(pool.now_ns);
  pool.sound();
  CHECK(pool.catalog.stats().puts_expired == 2);  // each has its own end
}

TEST_CASE("catalog: a master behind the terms that nodes have seen has to start a later one") {
  Pool pool;
  auto result = pool.catalog.node_join(kNodeA, {.capacity_bytes = 64 * kKiB, .address = "", .reported_term = 3});
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == Code::kStale);
  CHECK(pool.catalog.stats().nodes == 0);
}

TEST_CASE("catalog: a new term starts empty and lets open puts of the old one fail") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant open = pool.start(kAlice, "open", 10);
  pool.put("k", 10);
  pool.catalog.start_term(2);
  CHECK(pool.catalog.stats().nodes == 0);
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.end(kAlice, "open", open.generation) == Code::kStale);
}

TEST_CASE("catalog: after a master's restart a put_end is fine when its entry came by inventory, else stale") {
  Pool pool;
  pool.catalog.start_term(2);
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {entry("confirmed", {1, 4}), unconfirmed("landed", {1, 5}, 192)});
  CHECK(pool.catalog.node_ready(kNodeA).value() == Generation{2, 1});  // no ticket of this reign is open
  CHECK(pool.keys() == std::vector<std::string>{"confirmed"});
  CHECK(pool.end(kAlice, "confirmed", {1, 4}) == Code::kOk);
  CHECK(pool.end(kAlice, "landed", {1, 3}) == Code::kStale);
  CHECK(pool.end(kAlice, "not landed", {1, 6}) == Code::kStale);
  CHECK(pool.end(kAlice, "landed", {1, 5}, 4096) == Code::kOk);
  CHECK(pool.locate("landed").offset == 192);  // the node's word
}

TEST_CASE("catalog: an entry that nobody confirms is not shown by a new master and goes in time") {
  Pool pool({.put_timeout_ns = kSecond});
  pool.catalog.start_term(2);
  pool.catalog.tick(pool.now_ns);
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {unconfirmed("k", {1, 5})});
  pool.ready(kNodeA);
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.start(kAlice, "k", 1).code == Code::kAlreadyExists);
  pool.catalog.tick(pool.now_ns += kSecond);
  CHECK(pool.ordered(kNodeA) == std::vector<Generation>{{1, 5}});
  CHECK(pool.end(kAlice, "k", {1, 5}) == Code::kStale);
}

TEST_CASE("catalog: nodes are told what was committed, again when they come back without knowing it") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant k = pool.put("k", 100);
  pool.start(kAlice, "open", 100);
  auto orders = pool.catalog.take_orders(10);
  REQUIRE(orders.size() == 1);
  REQUIRE(orders[0].confirm.size() == 1);
  CHECK(orders[0].confirm[0].generation == k.generation);
  CHECK(pool.catalog.take_orders(10).empty());
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {unconfirmed("k", k.generation)});
  pool.ready(kNodeA);
  CHECK(pool.exists("k"));
  CHECK(pool.catalog.take_orders(10)[0].confirm.at(0).generation == k.generation);
}

TEST_CASE("catalog: of one key the highest generation wins, in one inventory and across nodes") {
  Pool pool;
  pool.catalog.start_term(9);
  pool.join(kNodeA, 64 * kKiB, 8);
  pool.inventory(kNodeA, {entry("k", {3, 5}, 0), entry("k", {4, 1}, 192), entry("k", {3, 9}, 384)});
  pool.ready(kNodeA);
  CHECK_FALSE(pool.exists("k"));  // while older ones of it are on the way out
  CHECK(pool.ordered(kNodeA) == std::vector<Generation>{{3, 5}, {3, 9}});
  pool.ack(kNodeA, {{3, 5}, {3, 9}});
  CHECK(pool.locate("k").generation == Generation{4, 1});

  pool.join(kNodeB, 64 * kKiB, 8);
  pool.inventory(kNodeB, {entry("k", {4, 2})});
  CHECK_FALSE(pool.exists("k"));
  pool.ready(kNodeB);
  CHECK(pool.ordered(kNodeA) == std::vector<Generation>{{4, 1}});
  pool.ack(kNodeA, {{4, 1}});
  CHECK(pool.locate("k").node == kNodeB);
  CHECK(pool.locate("k").generation == Generation{4, 2});

  NodeId late{12, 0};
  pool.join(late, 64 * kKiB, 8);
  pool.inventory(late, {entry("k", {4, 0}), entry("k", {4, 2}, 192)});  // older, and one more replica
  pool.ready(late);
  CHECK(pool.ordered(late) == std::vector<Generation>{{4, 0}});
  pool.ack(late, {{4, 0}});
  CHECK(pool.locate("k").further.size() == 1);
  CHECK(pool.catalog.node(kNodeB)->replicas.size() == 1);
}

TEST_CASE("catalog: a node that was away is told again what was removed meanwhile, and nothing comes back to life") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant removed = pool.put("removed", 100);
  PutGrant kept = pool.put("kept", 100);
  PutGrant lost_ack = pool.put("lost ack", 100);
  pool.remove("lost ack");
  CHECK(pool.ordered(kNodeA).size() == 1);  // handed out, the answer never comes
  pool.catalog.node_away(kNodeA);
  pool.remove("removed");
  CHECK(pool.ordered(kNodeA).empty());           // not connected
  CHECK(pool.locate("kept").code == Code::kOk);  // may still be read
  CHECK(pool.start(kAlice, "new", 1).code == Code::kUnavailable);

  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {entry("removed", removed.generation), entry("kept", kept.generation, 192)});
  CHECK(pool.ordered(kNodeA).empty());  // inventory not complete
  pool.ready(kNodeA);
  CHECK(pool.ordered(kNodeA) == std::vector{removed.generation, lost_ack.generation});
  pool.ack(kNodeA, {removed.generation, lost_ack.generation});
  CHECK(pool.keys() == std::vector<std::string>{"kept"});
  CHECK(pool.locate("kept").offset == 192);  // the node's word counts
  CHECK(pool.catalog.stats().retiring_bytes == 0);
}

TEST_CASE("catalog: committed objects that a returning node does not report are gone") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant here = pool.put("here", 100);
  PutGrant gone = pool.put("gone", 100);
  PutGrant open = pool.start(kAlice, "open", 100);
  PutGrant late = pool.start(kAlice, "late", 100);
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {entry("here", here.generation)});
  // The client's commit arrives after the piece in which the entry would have been: it is vouched for all the same.
  CHECK(pool.end(kAlice, "late", late.generation, 64) == Code::kOk);
  pool.ready(kNodeA);
  CHECK(pool.keys() == std::vector<std::string>{"here", "late"});
  CHECK(pool.ordered(kNodeA) == std::vector{gone.generation});
  CHECK(pool.catalog.stats().unfinished == 1);  // an open put may arrive at the node yet
  CHECK(pool.end(kAlice, "open", open.generation, 128) == Code::kOk);
}

TEST_CASE("catalog: a lost node's objects are misses and its open puts fail") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("k", 100);
  PutGrant open = pool.start(kAlice, "open", 100);
  pool.put("retiring", 100);
  pool.remove("retiring");
  pool.catalog.node_lost(kNodeA);
  pool.catalog.node_lost(kNodeA);
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.end(kAlice, "open", open.generation) == Code::kStale);
  CHECK(pool.catalog.settled("retiring"));
  CHECK(pool.catalog.stats().capacity_bytes == 0);
  pool.add_node(kNodeB, 64 * kKiB);
  CHECK(pool.start(kAlice, "k", 100).code == Code::kOk);
}

TEST_CASE("catalog: a lost node that returns keeps what is still the last operation on its key") {
  Pool pool({.max_endings = 100});
  pool.add_node(kNodeA, 64 * kKiB);
  std::vector<InventoryEntry> held;
  for (std::string key : {"kept", "removed", "removed while lost", "put again", "put again and evicted"}) {
    held.push_back(entry(key, pool.put(key, 100).generation, 192 * held.size()));
  }
  PutGrant failed = pool.start(kAlice, "failed", 100);
  held.push_back(entry("failed", failed.generation, 192 * held.size()));
  pool.remove("removed");
  pool.catalog.node_lost(kNodeA);
  CHECK(pool.remove("removed while lost") == Code::kNotFound);
  pool.add_node(kNodeB, 64 * kKiB);
  pool.put("put again", 100);
  pool.put("put again and evicted", 100);
  pool.remove("put again and evicted");
  pool.ack_all();

  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, held);
  pool.ready(kNodeA);
  CHECK(pool.ordered(kNodeA).size() == 5);
  CHECK(pool.keys() == std::vector<std::string>{"kept"});
}

TEST_CASE("catalog: what a lost node superseded does not come back from another one") {
  Pool pool;
  pool.catalog.start_term(2);
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant grant = pool.put("k", 100);
  pool.catalog.node_lost(kNodeA);
  pool.join(kNodeB, 64 * kKiB, 1);
  pool.inventory(kNodeB, {entry("k", {1, 8})});
  pool.ready(kNodeB);
  CHECK_FALSE(pool.exists("k"));
  pool.ack_all();
  CHECK_FALSE(pool.exists("k"));
  pool.join(kNodeA, 64 * kKiB, 2);
  pool.inventory(kNodeA, {entry("k", grant.generation)});
  pool.ready(kNodeA);
  CHECK(pool.locate("k").generation == grant.generation);
}

TEST_CASE("catalog: the end of an inventory tells the floor below which tickets are over") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant open = pool.start(kAlice, "open", 100);
  pool.join(kNodeA, 64 * kKiB, 1);
  CHECK(pool.catalog.node_ready(kNodeA).value() == open.generation);
  pool.catalog.node_lost(kNodeA);
  pool.join(kNodeA, 64 * kKiB, 1);
  CHECK(pool.catalog.node_ready(kNodeA).value() > open.generation);
}

TEST_CASE("catalog: past the bound of remembered endings older entries are not adopted") {
  Pool pool({.max_endings = 3});
  pool.catalog.start_term(2);
  for (int i = 0; i < 3; ++i) pool.remove("absent" + std::to_string(i));
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.inventory(kNodeA, {entry("k", {1, 1})});
  pool.ready(kNodeA);
  CHECK(pool.exists("k"));
  pool.remove("absent3");  // one more than is remembered
  pool.join(kNodeB, 64 * kKiB, 1);
  pool.inventory(kNodeB, {entry("other", {1, 2}), entry("absent0", {1, 3}, 192)});
  pool.ready(kNodeB);
  CHECK(pool.ordered(kNodeB).size() == 2);
  CHECK(pool.exists("k"));  // what is known already stays
}

TEST_CASE("catalog: an inventory that contradicts itself is refused") {
  Pool pool;
  pool.catalog.start_term(2);
  CHECK_FALSE(pool.catalog.node_ready(kNodeA).has_value());
  CHECK_FALSE(pool.catalog.node_join(kNodeA, {.capacity_bytes = 10, .address = ""}).has_value());
  pool.join(kNodeA, 64 * kKiB, 1);
  auto refused = [&](InventoryEntry bad) {
    auto result = pool.catalog.node_inventory(kNodeA, {&bad, 1}, 0);
    return !result.has_value() && result.error().code == Code::kInvalid;
  };
  CHECK(refused(entry("", {1, 1})));
  CHECK(refused(entry("k", {})));
  CHECK(refused(entry("k", {3, 1})));                      // a term that has not been
  CHECK(refused(entry("k", {1, 1}, 1)));                   // not aligned
  CHECK(refused(entry("k", {1, 1}, 64 * kKiB)));           // outside
  CHECK(refused(entry("k", {1, 1}, 0, UINT64_MAX - 10)));  // wraps
  CHECK_FALSE(refused(entry("k", {1, 1}, 0, 60 * kKiB)));
  CHECK(refused(entry("l", {1, 2}, 0, 60 * kKiB)));  // together more than the segment
  CHECK(refused(entry("l", {1, 1}, 0, 60 * kKiB)));  // one generation, two keys
  pool.ready(kNodeA);
  InventoryEntry fine = entry("m", {1, 3});
  CHECK_FALSE(pool.catalog.node_inventory(kNodeA, {&fine, 1}, 0).has_value());  // not joining
  CHECK_FALSE(pool.catalog.node_join(kNodeA, {.capacity_bytes = 32 * kKiB, .address = ""}).has_value());
}

TEST_CASE("catalog: the number of nodes is bounded") {
  Pool pool({.max_nodes = 2});
  pool.add_node(kNodeA, 64 * kKiB);
  pool.add_node(kNodeB, 64 * kKiB);
  auto result = pool.catalog.node_join({12, 0}, {.capacity_bytes = 64 * kKiB, .address = ""});
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().code == Code::kOverloaded);
}

TEST_CASE("catalog: retires are handed out in bounded orders, once per join") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  for (int i = 0; i < 10; ++i) {
    pool.put(std::to_string(i), 10);
    pool.remove(std::to_string(i));
  }
  size_t handed_out = 0;
  for (int i = 0; i < 3; ++i) {
    for (auto& order : pool.catalog.take_orders(4)) handed_out += order.retire.size();
    CHECK(handed_out == std::min<size_t>(4 * (i + 1), 10));
  }
  CHECK(pool.catalog.take_orders(4).empty());
  pool.catalog.node_away(kNodeA);
  pool.join(kNodeA, 64 * kKiB, 1);
  pool.ready(kNodeA);
  CHECK(pool.ordered(kNodeA).size() == 10);
}
