// Events: an index that follows them has the committed objects, whatever was dropped in between.
#include <set>

#include "unit/catalog_fixture.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

std::vector<Event> all(Catalog& catalog) {
  std::vector<Event> events;
  while (!catalog.events().empty()) {
    for (Event& event : catalog.take_events(2)) events.push_back(std::move(event));
  }
  return events;
}

const Event kCleared{};
Event stored(const std::string& key, uint64_t length) { return {EventKind::kStored, {}, key, length}; }
Event removed(const std::string& key, uint64_t length, Ending why) { return {EventKind::kRemoved, why, key, length}; }

}  // namespace

TEST_CASE("events: none are noted unless somebody wants them") {
  Pool pool;
  pool.add_node(kNodeA, 64 * kKiB);
  pool.put("a", 100);
  CHECK(pool.catalog.events().empty());
  CHECK(pool.catalog.take_events(10).empty());
}

TEST_CASE("events: stored when it is committed, removed with the reason, and nothing about puts that failed") {
  Pool pool;
  pool.catalog.note_events(100);
  pool.add_node(kNodeA, 64 * kKiB);
  CHECK(all(pool.catalog) == std::vector<Event>{kCleared});
  pool.start(kAlice, "open", 10);
  pool.put("a", 100);
  pool.put("b", 200);
  CHECK(all(pool.catalog) == std::vector<Event>{stored("a", 100), stored("b", 200)});
  pool.remove("a");
  pool.remove("open");
  CHECK(all(pool.catalog) == std::vector<Event>{removed("a", 100, Ending::kRemoved)});
  pool.catalog.node_lost(kNodeA);
  CHECK(all(pool.catalog) == std::vector<Event>{removed("b", 200, Ending::kLost)});
  pool.catalog.start_term(2);
  CHECK(all(pool.catalog) == std::vector<Event>{kCleared});
}

TEST_CASE("events: eviction and the end of a ttl say so") {
  Pool pool;
  pool.catalog.note_events(1000);
  pool.add_node(kNodeA, 8 * kKiB);
  std::set<Ending> seen;
  for (int i = 0; i < 50; ++i) {
    const std::string key = "e" + std::to_string(i);
    PutGrant grant = pool.start(kAlice, key, 1000);
    if (grant.code == Code::kNoSpace) {  // room is being made
      pool.ack_all();
      grant = pool.start(kAlice, key, 1000);
    }
    REQUIRE(grant.code == Code::kOk);
    REQUIRE(pool.end(kAlice, key, grant.generation) == Code::kOk);
    pool.tick(10 * kSecond);
  }
  pool.keep("e49", {.pin = Pin::kNone, .ttl_ns = kSecond});
  pool.tick(2 * kSecond);
  for (const Event& event : all(pool.catalog)) {
    if (event.kind == EventKind::kRemoved) seen.insert(event.why);
  }
  CHECK(seen.contains(Ending::kEvicted));
  CHECK(seen.contains(Ending::kExpired));
}

TEST_CASE("events: what was dropped is told anew, in bounded steps, while more goes on") {
  Pool pool;
  pool.catalog.note_events(5);
  pool.add_node(kNodeA, 1024 * kKiB);
  for (int i = 100; i < 140; ++i) pool.put("k" + std::to_string(i), 10);
  std::set<std::string> index{"stale"};
  int steps = 0;
  auto take = [&](size_t max) {
    for (const Event& event : pool.catalog.take_events(max)) {
      if (event.kind == EventKind::kCleared) index.clear();
      if (event.kind == EventKind::kStored) index.insert(event.key);
      if (event.kind == EventKind::kRemoved) index.erase(event.key);
    }
  };
  take(10);
  CHECK(index.size() < 40);
  pool.remove("k101");  // told already
  pool.remove("k139");  // not told yet
  pool.put("k099", 10);
  while (!pool.catalog.events().empty()) take(3), ++steps;
  CHECK(steps > 5);
  CHECK(index.size() == 39);
  CHECK(index.contains("k099"));
  CHECK_FALSE(index.contains("k139"));
  pool.catalog.tell_events_anew();
  index.insert("wrong");
  while (!pool.catalog.events().empty()) take(7);
  CHECK(index.size() == 39);
}

TEST_CASE("events: a master that starts anew tells what nodes bring, and not what nobody confirmed") {
  Pool pool;
  pool.catalog.note_events(100);
  pool.catalog.start_term(7);
  REQUIRE(pool.catalog.node_join(kNodeA, {64 * kKiB, "a", 3}));
  const std::vector<InventoryEntry> entries{
      {.key = "kept", .generation = {3, 1}, .length = 10, .offset = 0, .crc = 1, .confirmed = true},
      {.key = "open", .generation = {3, 2}, .length = 10, .offset = 128, .crc = 1, .confirmed = false}};
  REQUIRE(pool.catalog.node_inventory(kNodeA, entries, pool.now_ns));
  CHECK(all(pool.catalog) == std::vector<Event>{kCleared, stored("kept", 10)});
}
