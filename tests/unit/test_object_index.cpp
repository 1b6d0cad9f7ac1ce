// The table that finds objects by key, against a plain map; and against keys that were chosen to collide.
#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

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

TEST_CASE("object index: keys that collide find no place in the end, and it says so until they are gone") {
  std::vector<Object::Owner> objects;
  ObjectIndex index;
  CHECK(index.find("nothing", 7) == nullptr);
  for (int i = 0; i < 1000; ++i) {
    Object& object = *objects.emplace_back(Object::make("key " + std::to_string(i)));
    object.first.key_hash = 7;
    index.insert(object);
  }
  CHECK_FALSE(index.complete());
  size_t found = 0;
  for (auto& object : objects) {
    Object* at = index.find(object->key(), 7);
    CHECK((at == nullptr || at == object.get()));
    found += at != nullptr;
  }
  CHECK(found > 0);
  CHECK(index.find("nothing", 7) == nullptr);
  for (auto& object : objects) index.erase(*object);
  CHECK(index.complete());
  for (auto& object : objects) CHECK(index.find(object->key(), 7) == nullptr);
}
