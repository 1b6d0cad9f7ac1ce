// The tables that find objects by key, against plain maps; and with keys that were chosen to collide.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <set>
#include <string>

#include "base/random.h"
#include "catalog/object_table.h"

using namespace moontide;
using namespace moontide::catalog;

TEST_CASE("object table: finds what is there and nothing else, whatever came and went") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SeededRandom random(seed);
    ObjectTable table;
    std::map<std::string, Object*> model;
    // Few keys for many rounds: they come again where others have left; in some seeds it grows and empties.
    const uint64_t keys = 50 << random.below(8);
    for (int step = 0; step < 20'000; ++step) {
      const std::string key = "key " + std::to_string(random.below(keys));
      auto known = model.find(key);
      REQUIRE(table.find(key) == (known == model.end() ? nullptr : known->second));
      if (known == model.end()) {
        model[key] = &table.insert(key);
      } else if (random.below(3) > 0) {
        table.erase(*known->second);
        model.erase(known);
      }
      REQUIRE(table.size() == model.size());
    }
    for (auto& [key, object] : model) REQUIRE(table.find(key) == object);
    for (auto& [key, object] : model) table.erase(*object);
    table.insert("last");
    CHECK(table.find("last")->key() == "last");
    table.clear();
    CHECK(table.find("last") == nullptr);
  }
}

namespace {

struct Thing {
  uint64_t key = 0;
  uint64_t hash = 0;
};

struct ByNumber {
  using Thing = ::Thing;
  using Key = uint64_t;
  static uint64_t key(const Thing& thing) { return thing.key; }
  static uint64_t hash(const Thing& thing) { return thing.hash; }
};

}  // namespace

TEST_CASE("pointer index: keys that were chosen to collide are found, and nothing else") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SeededRandom random(seed);
    PointerIndex<ByNumber> index;
    CHECK(index.find(7, 7) == nullptr);
    std::map<uint64_t, std::unique_ptr<Thing>> model;
    const uint64_t hashes = 1 + random.below(5);
    for (int step = 0; step < 10'000; ++step) {
      const uint64_t key = random.below(3'000);
      // most of them have one of a few hashes
      const uint64_t hash = key % 4 != 0 ? key % hashes : key * 0x9E3779B97F4A7C15u;
      auto known = model.find(key);
      REQUIRE(index.find(key, hash) == (known == model.end() ? nullptr : known->second.get()));
      if (known == model.end()) {
        auto& thing = model[key] = std::make_unique<Thing>(key, hash);
        index.insert(*thing);
      } else if (random.below(3) == 0) {
        index.erase(*known->second);
        model.erase(known);
      }
      REQUIRE(index.size() == model.size());
    }
    std::set<const Thing*> met;
    for (size_t cursor = 0; const Thing* thing = index.next(cursor);) REQUIRE(met.insert(thing).second);
    CHECK(met.size() == model.size());
    for (auto& [key, thing] : model) index.erase(*thing);
    size_t cursor = 0;
    CHECK(index.next(cursor) == nullptr);
  }
}
