// The order that listing goes by, against a plain map.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "base/random.h"
#include "catalog/object_table.h"

using namespace moontide;
using namespace moontide::catalog;

namespace {

// Of several kinds: long beginnings in common, prefixes of one another, zero bytes, bytes above 127, anything.
std::string key_of(SeededRandom& random, uint64_t kind, uint64_t keys) {
  const uint64_t number = random.below(keys);
  if (kind == 0) return "a beginning that all of them have/" + std::to_string(number * 0x9E3779B97F4A7C15u);
  if (kind == 1) return std::string(1 + number % 700, 'x');
  if (kind == 2) return std::string(1 + number % 9, '\0') + std::string(number % 5, '\xff') + std::to_string(number);
  if (kind == 3) return std::to_string(number);
  std::string bytes(1 + number % 40, '\0');
  SeededRandom own(number);
  for (char& byte : bytes) byte = static_cast<char>(own.below(256));
  return bytes;
}

void check_same(const KeyOrder& order, const std::map<std::string, Object::Owner>& model) {
  REQUIRE(order.size() == model.size());
  auto it = order.begin();
  for (const auto& [key, object] : model) {
    REQUIRE(it != order.end());
    REQUIRE(&*it == object.get());
    ++it;
  }
  REQUIRE(it == order.end());
}

}  // namespace

TEST_CASE("key order: as a map, whatever came and went, and from any key on") {
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    CAPTURE(seed);
    SeededRandom random(seed);
    std::map<std::string, Object::Owner> model;
    KeyOrder order;
    const uint64_t keys = 20 << random.below(9);
    for (int step = 0; step < 20'000; ++step) {
      const std::string key = key_of(random, seed % 5, keys);
      const auto next = model.lower_bound(key);
      const auto from = order.from(key);
      REQUIRE((from == order.end()) == (next == model.end()));
      if (next != model.end()) REQUIRE(&*from == next->second.get());
      const auto above = model.upper_bound(key);
      const auto after = order.after(key);
      REQUIRE((after == order.end()) == (above == model.end()));
      if (above != model.end()) REQUIRE(&*after == above->second.get());
      const bool known = next != model.end() && next->first == key;
      // It fills, and it empties, over and over.
      const bool filling = step / 4'000 % 2 == 0;
      if (!known && random.below(4) < (filling ? 4u : 1u)) {
        order.insert(*(model[key] = Object::make(key)));
      } else if (known && random.below(4) < (filling ? 1u : 4u)) {
        order.erase(*next->second);
        model.erase(next);
      }
      if (step % 1'000 == 0) check_same(order, model);
    }
    check_same(order, model);
    while (!model.empty()) {
      const auto one = model.lower_bound(key_of(random, seed % 5, keys));
      const auto gone = one == model.end() ? model.begin() : one;
      order.erase(*gone->second);
      model.erase(gone);
    }
    check_same(order, model);
  }
}

TEST_CASE("key order: rising and falling keys") {
  for (const bool rising : {true, false}) {
    std::map<std::string, Object::Owner> model;
    KeyOrder order;
    for (int i = 0; i < 30'000; ++i) {
      const std::string key = "k" + std::to_string(rising ? 100'000 + i : 200'000 - i);
      order.insert(*(model[key] = Object::make(key)));
    }
    check_same(order, model);
    // All but one in a hundred go: what is left takes little room, and is all there.
    for (auto it = model.begin(); it != model.end();) {
      if (std::stoi(it->first.substr(1)) % 100 == 0) {
        ++it;
        continue;
      }
      order.erase(*it->second);
      it = model.erase(it);
    }
    check_same(order, model);
    order.clear();
    CHECK(order.begin() == order.end());
  }
}
