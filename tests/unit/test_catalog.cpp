// Puts, reads, removes and space of the catalog, one rule per case. Nodes and terms: test_catalog_nodes.cpp.
#include "base/hash.h"
#include "unit/catalog_fixture.h"

using namespace moontide;
using namespace moontide::catalog;

TEST_CASE("catalog: an entry takes its header, its payload and the padding to 64 bytes") {
  CHECK(entry_footprint(0) == 64);
  CHECK(entry_footprint(1) == 128);
  CHECK(entry_footprint(64) == 128);
  CHECK(entry_footprint(65) == 192);
  CHECK(entry_footprint(kMaxObjectBytes) == kMaxObjectBytes + 64);
}

TEST_CASE("catalog: a put is seen by exists, list and locate after its end, not before") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant grant = pool.start(kAlice, "k", 1000);
  REQUIRE(grant.code == Code::kOk);
  CHECK(grant.node == kNodeA);
  CHECK(grant.generation == Generation{1, 2});
  CHECK(grant.key_hash == hash64(as_bytes("k")));
  CHECK(grant.length == 1000);
  CHECK(grant.expires_in_ns == Limits{}.put_timeout_ns);
  CHECK(pool.catalog.stats().unfinished_bytes == 1088);
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.keys().empty());
  CHECK(pool.locate("k").code == Code::kNotFound);

  CHECK(pool.end(kAlice, "k", grant.generation, 4096) == Code::kOk);
  CHECK(pool.exists("k"));
  CHECK(pool.keys() == std::vector<std::string>{"k"});
  Place place = pool.locate("k");
  CHECK(place.code == Code::kOk);
  CHECK(place.node == kNodeA);
  CHECK(place.generation == grant.generation);
  CHECK(place.offset == 4096);
  CHECK(place.length == 1000);
  CHECK(place.crc == 7);
  CHECK(place.lease_ns == Limits{}.lease_ns);
  CHECK(pool.catalog.stats().committed_bytes == 1088);
  CHECK(pool.catalog.stats().unfinished_bytes == 0);
}

TEST_CASE("catalog: an empty object is an object") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("empty", 0);
  CHECK(pool.locate("empty").code == Code::kOk);
  CHECK(pool.locate("empty").length == 0);
}

TEST_CASE("catalog: bad keys are refused, by item") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  CHECK(pool.start(kAlice, "", 1).code == Code::kInvalid);
  CHECK(pool.start(kAlice, std::string(kMaxKeyBytes + 1, 'x'), 1).code == Code::kInvalid);
  CHECK(pool.start(kAlice, std::string(kMaxKeyBytes, 'x'), 1).code == Code::kOk);
  CHECK(pool.start(kAlice, std::string("\0\n\"", 3), 1).code == Code::kOk);
  CHECK(pool.remove("") == Code::kInvalid);
}

TEST_CASE("catalog: a key has one live object") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  std::vector<PutRequest> batch{{"a", 1, 1}, {"b", 1, 2}, {"a", 1, 3}};
  auto grants = pool.catalog.put_start(kAlice, batch, pool.now_ns);
  CHECK(grants[0].code == Code::kOk);
  CHECK(grants[1].code == Code::kOk);
  CHECK(grants[2].code == Code::kAlreadyExists);
  CHECK(pool.start(kBob, "a", 1).code == Code::kAlreadyExists);
  CHECK(pool.end(kAlice, "a", grants[0].generation) == Code::kOk);
  CHECK(pool.start(kBob, "a", 1).code == Code::kAlreadyExists);
}

TEST_CASE("catalog: put_start asked again with its token is answered again") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant first = pool.start(kAlice, "a", 10, 77);
  pool.now_ns += kSecond;
  PutGrant again = pool.start(kAlice, "a", 10, 77);
  CHECK(again.code == Code::kOk);
  CHECK(again.generation == first.generation);
  CHECK(again.expires_in_ns == first.expires_in_ns - kSecond);
  CHECK(pool.catalog.stats().unfinished == 1);
  CHECK(pool.start(kBob, "a", 10, 77).code == Code::kAlreadyExists);    // tokens belong to a client
  CHECK(pool.start(kAlice, "a", 11, 77).code == Code::kAlreadyExists);  // and to one request
}

TEST_CASE("catalog: put_end is idempotent by generation and bound to the client that started") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant grant = pool.start(kAlice, "a", 10);
  CHECK(pool.end(kBob, "a", grant.generation) == Code::kDenied);
  CHECK(pool.end(kAlice, "a", {1, 99}) == Code::kStale);
  CHECK(pool.end(kAlice, "other", grant.generation) == Code::kStale);
  CHECK(pool.end(kAlice, "a", grant.generation, 63) == Code::kInvalid);         // not aligned
  CHECK(pool.end(kAlice, "a", grant.generation, 64 * kKiB) == Code::kInvalid);  // outside the segment
  CHECK(pool.end(kAlice, "a", grant.generation, UINT64_MAX - 63) == Code::kInvalid);
  CHECK(pool.end(kAlice, "a", grant.generation, 64) == Code::kOk);
  CHECK(pool.end(kAlice, "a", grant.generation, 64) == Code::kOk);
  CHECK(pool.catalog.stats().puts_committed == 1);
}

TEST_CASE("catalog: put_revoke ends the client's own open put") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant grant = pool.start(kAlice, "a", 10);
  CHECK(pool.revoke(kBob, "a", grant.generation) == Code::kDenied);
  CHECK(pool.revoke(kAlice, "a", grant.generation) == Code::kOk);
  CHECK(pool.revoke(kAlice, "a", grant.generation) == Code::kStale);
  CHECK(pool.end(kAlice, "a", grant.generation) == Code::kStale);
  CHECK(pool.catalog.stats().retiring_bytes == entry_footprint(10));
  CHECK(pool.ordered(kNodeA) == std::vector{grant.generation});
  PutGrant other = pool.put("b", 10);
  CHECK(pool.revoke(kAlice, "b", other.generation) == Code::kAlreadyExists);
  CHECK(pool.exists("b"));
}

TEST_CASE("catalog: an unfinished put ends at its deadline; its late end is refused; its space waits for the node") {
  Pool pool({.put_timeout_ns = 10 * kSecond});
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant grant = pool.start(kAlice, "a", 10);
  pool.now_ns += 10 * kSecond - 1;
  pool.catalog.tick(pool.now_ns);
  CHECK(pool.catalog.stats().unfinished == 1);
  pool.now_ns += 1;
  pool.catalog.tick(pool.now_ns);
  CHECK(pool.catalog.stats().unfinished == 0);
  CHECK(pool.catalog.stats().puts_expired == 1);
  CHECK(pool.catalog.stats().retiring_bytes == entry_footprint(10));
  CHECK(pool.end(kAlice, "a", grant.generation) == Code::kStale);
  CHECK(pool.ordered(kNodeA) == std::vector{grant.generation});
  pool.ack(kNodeA, {grant.generation});
  CHECK(pool.catalog.stats().retiring_bytes == 0);
}

TEST_CASE("catalog: another client takes over a key whose put is past its deadline") {
  Pool pool({.put_timeout_ns = 10 * kSecond});
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant stale = pool.start(kAlice, "a", 10);
  CHECK(pool.start(kBob, "a", 10).code == Code::kAlreadyExists);
  pool.now_ns += 10 * kSecond;  // no tick: the conflict itself cancels
  PutGrant fresh = pool.start(kBob, "a", 10);
  CHECK(fresh.code == Code::kOk);
  CHECK(fresh.generation > stale.generation);
  CHECK(pool.end(kAlice, "a", stale.generation) == Code::kStale);
  CHECK(pool.end(kBob, "a", fresh.generation) == Code::kOk);
  CHECK_FALSE(pool.exists("a"));  // the stale entry could still be on the node
  pool.ack(kNodeA, {stale.generation});
  CHECK(pool.exists("a"));
}

TEST_CASE("catalog: a ticket floor lets nodes forget what they refuse") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant a = pool.start(kAlice, "a", 10);
  PutGrant b = pool.start(kAlice, "b", 10);
  pool.start(kAlice, "c", 10);
  pool.revoke(kAlice, "b", b.generation);
  auto orders = pool.catalog.take_orders(10);
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].floor == a.generation);  // still open
  CHECK(orders[0].retire[0].key_hash == b.key_hash);
  pool.end(kAlice, "a", a.generation);
  pool.remove("a");
  pool.remove("c");
  orders = pool.catalog.take_orders(10);
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].floor > Generation{1, 3});
}

TEST_CASE("catalog: remove ends committed and unfinished objects, a late put_end loses") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant committed = pool.put("c", 10);
  PutGrant open = pool.start(kAlice, "o", 10);
  CHECK(pool.locate("c").code == Code::kOk);  // a live lease does not protect from remove
  CHECK(pool.remove("c") == Code::kOk);
  CHECK(pool.remove("o") == Code::kOk);
  CHECK(pool.remove("absent") == Code::kNotFound);
  CHECK(pool.remove("c") == Code::kNotFound);
  CHECK_FALSE(pool.exists("c"));
  CHECK(pool.locate("c").code == Code::kNotFound);
  CHECK(pool.end(kAlice, "o", open.generation) == Code::kStale);
  CHECK(pool.end(kAlice, "c", committed.generation) == Code::kStale);
  CHECK(pool.catalog.stats().retiring == 2);
  CHECK_FALSE(pool.catalog.settled("c"));
  CHECK(pool.catalog.settled("absent"));
  pool.ack(kNodeA, {committed.generation, committed.generation, {1, 99}});  // twice, and one nobody knows
  CHECK(pool.catalog.settled("c"));
  CHECK(pool.catalog.stats().retiring == 1);
}

TEST_CASE("catalog: a key put again while its old entry is on the way out shows when that is gone") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  PutGrant old = pool.put("k", 10);
  pool.remove("k");
  PutGrant fresh = pool.put("k", 20);
  CHECK(fresh.generation > old.generation);
  CHECK(pool.catalog.stats().committed_bytes == entry_footprint(20));
  CHECK(pool.catalog.stats().retiring_bytes == entry_footprint(10));
  CHECK_FALSE(pool.exists("k"));
  CHECK(pool.keys().empty());
  CHECK(pool.locate("k").code == Code::kNotFound);
  CHECK(pool.start(kBob, "k", 20).code == Code::kAlreadyExists);
  pool.ack_all();
  CHECK(pool.exists("k"));
  CHECK(pool.locate("k").generation == fresh.generation);
}

TEST_CASE("catalog: list goes by key in pages and skips what is not visible") {
  Pool pool;
  pool.add_node(kNodeA, 1024 * kKiB);
  for (int i = 0; i < 25; ++i) pool.put("p/" + std::to_string(10 + i), 1);
  pool.put("q", 1);
  pool.put("o", 1);
  pool.start(kAlice, "p/10x", 1);
  std::vector<std::string> seen;
  std::string after;
  for (int pages = 0; pages < 10; ++pages) {
    ListPage page = pool.catalog.list("p/", after, 10);
    for (auto& item : page.items) seen.push_back(item.key);
    after = page.resume_after;
    if (after.empty()) break;
  }
  REQUIRE(seen.size() == 25);
  CHECK(seen.front() == "p/10");
  CHECK(seen.back() == "p/34");
  CHECK(std::is_sorted(seen.begin(), seen.end()));
  // Many open puts in a row: the page may be empty, yet it says where to go on.
  for (int i = 0; i < 100; ++i) pool.start(kAlice, "r/" + std::to_string(100 + i), 1);
  pool.put("r/999", 1);
  after.clear();
  seen.clear();
  for (int pages = 0; pages < 100; ++pages) {
    ListPage page = pool.catalog.list("r/", after, 2);
    for (auto& item : page.items) seen.push_back(item.key);
    if (page.resume_after.empty()) break;
    CHECK(page.resume_after > after);
    after = page.resume_after;
  }
  CHECK(seen == std::vector<std::string>{"r/999"});
}

TEST_CASE("catalog: without nodes or with too small ones the answer says which") {
  Pool pool;
  CHECK(pool.start(kAlice, "a", 1).code == Code::kUnavailable);
  pool.add_node(kNodeA, 64 * kKiB);
  CHECK(pool.start(kAlice, "a", 64 * kKiB).code == Code::kTooLarge);
  CHECK(pool.start(kAlice, "a", UINT64_MAX).code == Code::kTooLarge);
  CHECK(pool.start(kAlice, "a", 64 * kKiB - 64).code == Code::kOk);
  pool.join(kNodeB, 128 * kKiB);  // not ready yet
  CHECK(pool.start(kAlice, "b", 100 * kKiB).code == Code::kUnavailable);
  pool.ready(kNodeB);
  CHECK(pool.start(kAlice, "b", 100 * kKiB).code == Code::kOk);
}

TEST_CASE("catalog: nodes of different size fill evenly") {
  Pool pool;
  for (uint64_t i = 0; i < 4; ++i) pool.add_node({20 + i, 0}, 16 * 1024 * kKiB);
  pool.add_node({30, 0}, 40 * 1024 * kKiB);
  for (int i = 0; i < 160; ++i) pool.put(std::to_string(i), 512 * kKiB);
  for (auto& [id, node] : pool.catalog.nodes()) {
    double ratio = static_cast<double>(node.used_bytes()) / static_cast<double>(node.capacity_bytes);
    CHECK(ratio > 0.72);
    CHECK(ratio < 0.82);
  }
}

TEST_CASE("catalog: a full pool makes room, the least recently used goes, and the put fits after the acknowledgement") {
  Pool pool({.high_percent = 100, .low_percent = 100}, "lru");
  pool.add_node(kNodeA, 10 * entry_footprint(1000));
  std::vector<Generation> generations;
  for (int i = 0; i < 10; ++i) generations.push_back(pool.put("k" + std::to_string(i), 1000).generation);
  std::string first = "k0";
  pool.catalog.touch({&first, 1});
  CHECK(pool.start(kAlice, "new", 1000).code == Code::kNoSpace);
  CHECK(pool.ordered(kNodeA) == std::vector{generations[1]});
  CHECK_FALSE(pool.exists("k1"));  // out of sight at once
  CHECK(pool.start(kAlice, "new", 1000).code == Code::kNoSpace);
  CHECK(pool.ordered(kNodeA).empty());  // asked again: no second victim
  pool.ack(kNodeA, {generations[1]});
  CHECK(pool.start(kAlice, "new", 1000).code == Code::kOk);
  CHECK(pool.catalog.stats().evicted == 1);
}

TEST_CASE("catalog: a live lease protects from eviction, an expired one does not") {
  Pool pool({.lease_ns = kSecond, .high_percent = 100, .low_percent = 100});
  pool.add_node(kNodeA, 2 * entry_footprint(1000));
  pool.put("a", 1000);
  PutGrant b = pool.put("b", 1000);
  pool.locate("a");
  pool.locate("b");
  CHECK(pool.start(kAlice, "new", 1000).code == Code::kNoSpace);
  CHECK(pool.ordered(kNodeA).empty());
  pool.now_ns += kSecond + kSecond / 50 - 1;  // the granter counts 2 % more than it said
  pool.locate("a");
  CHECK(pool.start(kAlice, "new", 1000).code == Code::kNoSpace);
  CHECK(pool.ordered(kNodeA).empty());
  pool.now_ns += 1;
  CHECK(pool.start(kAlice, "new", 1000).code == Code::kNoSpace);
  CHECK(pool.ordered(kNodeA) == std::vector{b.generation});
}

TEST_CASE("catalog: of a prefix the last block goes first, whatever the policy; others keep to their order") {
  for (std::string_view policy : {"prefix", "lru"}) {
    CAPTURE(policy);
    Pool pool({.high_percent = 100, .low_percent = 100}, policy);
    pool.add_node(kNodeA, 4 * entry_footprint(1000));
    std::vector<PutRequest> requests;
    for (uint64_t i = 0; i < 4; ++i) requests.push_back({"block " + std::to_string(i), 1000, i + 1, i > 0});
    auto grants = pool.catalog.put_start(kAlice, requests, pool.now_ns);
    std::vector<PutPlaced> placed;
    for (size_t i = 0; i < 4; ++i)
      placed.push_back({requests[i].key, grants[i].generation, {kNodeA, 1088 * i, 7}, {}, {}});
    // The first half is told in another batch than the second: the link between them holds all the same.
    std::span<const PutPlaced> all(placed);
    pool.catalog.put_end(kAlice, all.first(2), pool.now_ns);
    pool.catalog.put_end(kAlice, all.last(2), pool.now_ns);
    pool.now_ns += kSecond;
    std::vector<std::string> keys = {"block 0", "block 1", "block 2"};
    pool.catalog.touch(keys);
    for (size_t left = 4; left-- > 0;) {
      CHECK(pool.start(kBob, "new", 1000).code == Code::kNoSpace);
      std::vector<Generation> victims = pool.ordered(kNodeA);
      CHECK(victims == std::vector{grants[left].generation});
      pool.ack(kNodeA, victims);
      CHECK(pool.start(kBob, "new " + std::to_string(left), 1000).code == Code::kOk);
    }
  }
}

TEST_CASE("catalog: a block whose prefix is removed first stays, and goes like any other") {
  Pool pool({.high_percent = 100, .low_percent = 100});
  pool.add_node(kNodeA, 2 * entry_footprint(1000));
  std::vector<PutRequest> requests = {{"head", 1000, 1, false}, {"tail", 1000, 2, true}};
  auto grants = pool.catalog.put_start(kAlice, requests, pool.now_ns);
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(pool.end(kAlice, requests[i].key, grants[i].generation, 1088 * i) == Code::kOk);
  }
  CHECK(pool.remove("head") == Code::kOk);
  pool.ack(kNodeA, pool.ordered(kNodeA));
  CHECK(pool.exists("tail"));
  pool.put("head", 1000);
  CHECK(pool.start(kBob, "big", 2 * 1000).code == Code::kNoSpace);
  CHECK_FALSE(pool.exists("tail"));
  CHECK_FALSE(pool.exists("head"));
}

TEST_CASE("catalog: nothing is evicted for a request that cannot be met") {
  Pool pool({.high_percent = 100, .low_percent = 100});
  pool.add_node(kNodeA, 10 * entry_footprint(1000));
  for (int i = 0; i < 5; ++i) pool.put("k" + std::to_string(i), 1000);
  for (int i = 0; i < 5; ++i) REQUIRE(pool.start(kBob, "open" + std::to_string(i), 1000).code == Code::kOk);
  CHECK(pool.start(kAlice, "big", 6000).code == Code::kNoSpace);  // the open puts leave less than that
  CHECK(pool.start(kAlice, "huge", 60000).code == Code::kTooLarge);
  pool.locate("k3");
  pool.locate("k4");
  CHECK(pool.start(kAlice, "leased", 4 * 1088 - 64).code == Code::kNoSpace);  // two of the five are leased
  CHECK(pool.catalog.stats().evicted == 0);
  CHECK(pool.start(kAlice, "fits", 3 * 1088 - 64).code == Code::kNoSpace);
  CHECK(pool.catalog.stats().evicted == 3);
}

TEST_CASE("catalog: eviction runs ahead of need between the watermarks, in bounded steps") {
  Limits limits{.high_percent = 90, .low_percent = 50, .evictions_per_step = 8};
  Pool pool(limits);
  pool.add_node(kNodeA, 100 * entry_footprint(0));
  for (int i = 0; i < 90; ++i) pool.put("k" + std::to_string(100 + i), 0);
  CHECK(pool.catalog.stats().evicted == 0);
  pool.put("one more", 0);
  CHECK(pool.catalog.stats().evicted == 8);
  for (int i = 1; i <= 4; ++i) {
    pool.catalog.tick(pool.now_ns);
    CHECK(pool.catalog.stats().evicted == 8u + 8u * i);
  }
  for (int i = 0; i < 10; ++i) pool.catalog.tick(pool.now_ns);
  CHECK(pool.catalog.stats().committed == 50);
  CHECK(pool.catalog.stats().retiring == 41);
  CHECK_FALSE(pool.exists("k100"));
  CHECK(pool.exists("one more"));
}

TEST_CASE("catalog: one object may fill a segment") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("all", 64 * kKiB - 64);
  for (int i = 0; i < 10; ++i) pool.catalog.tick(pool.now_ns += kSecond);
  CHECK(pool.exists("all"));
  CHECK(pool.start(kAlice, "next", 1).code == Code::kNoSpace);
  pool.ack_all();
  CHECK(pool.start(kAlice, "next", 1).code == Code::kOk);
}

TEST_CASE("catalog: the number of objects is bounded, the oldest go") {
  Pool pool({.max_objects = 1000});
  pool.add_node(kNodeA, 1024 * kKiB);
  int granted = 0;
  for (int i = 0; i < 3000; ++i) {
    PutGrant grant = pool.start(kAlice, std::to_string(10000 + i), 1);
    pool.ack_all();
    if (grant.code != Code::kOk) continue;
    ++granted;
    pool.end(kAlice, std::to_string(10000 + i), grant.generation);
    Stats stats = pool.catalog.stats();
    CHECK(stats.committed + stats.unfinished + stats.retiring <= 1000);
  }
  CHECK(granted > 2900);
  CHECK(pool.exists("12999"));
  CHECK_FALSE(pool.exists("10000"));
  pool.sound();
}

TEST_CASE("catalog: time that goes back counts as the latest seen") {
  Pool pool({.put_timeout_ns = kSecond});
  pool.add_node(kNodeA, 64 * kKiB);
  pool.catalog.tick(100 * kSecond);
  pool.now_ns = 5 * kSecond;
  pool.start(kAlice, "a", 1);
  pool.catalog.tick(6 * kSecond);
  CHECK(pool.catalog.stats().unfinished == 1);
  pool.catalog.tick(101 * kSecond);
  CHECK(pool.catalog.stats().unfinished == 0);
}
