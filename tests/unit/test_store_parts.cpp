// The parts of the pool that need no network: allocator, entry headers, tickets, keyed hash, places, segment.
#include <map>

#include "base/random.h"
#include "base/siphash.h"
#include "store/allocator.h"
#include "store/entry.h"
#include "store/locations.h"
#include "store/segment.h"
#include "store/ticket.h"
#include "unit/store_support.h"

using namespace moontide;
using namespace moontide::store;

TEST_CASE("siphash: the reference's vectors") {
  SipKey key{0x0706050403020100, 0x0f0e0d0c0b0a0908};
  Bytes message(15);
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<std::byte>(i);
  CHECK(siphash(key, message) == 0xa129ca6149be45e5);  // the paper's example
  CHECK(siphash(key, {}) == 0x726fdb47dd0e0e31);
  CHECK(siphash(key, ByteView(message).first(1)) == 0x74f839c593dc67fd);
  CHECK(siphash(key, ByteView(message).first(8)) == 0x93f5f5799a932462);
  key[0] ^= 1;
  CHECK(siphash(key, message) != 0xa129ca6149be45e5);
}

TEST_CASE("allocator: best fit, neighbours joined, exact bounds") {
  ExtentAllocator extents(10 * 64 + 63);
  CHECK(extents.size() == 640);
  CHECK_FALSE(extents.allocate(0).has_value());
  CHECK_FALSE(extents.allocate(641).has_value());
  CHECK_FALSE(extents.allocate(UINT64_MAX).has_value());
  auto a = extents.allocate(64), b = extents.allocate(129), c = extents.allocate(64), d = extents.allocate(1);
  CHECK(extents.used() == 64 + 192 + 64 + 64);
  extents.free(*b);
  extents.free(*d);
  CHECK(extents.largest_free() == 320);
  CHECK(*extents.allocate(192) == *b);  // the hole that fits, not the larger rest
  extents.free(*b);
  extents.free(*a);
  extents.free(*c);
  CHECK(extents.used() == 0);
  CHECK(extents.largest_free() == 640);
  CHECK(*extents.allocate(640) == 0);
}

TEST_CASE("allocator: random histories never overlap, and everything comes back in one piece") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SeededRandom random(seed);
    ExtentAllocator extents(1 << 20);
    std::map<uint64_t, uint64_t> live;  // offset → length
    uint64_t used = 0;
    for (int step = 0; step < 3000; ++step) {
      if (random.below(2) == 0 || live.empty()) {
        uint64_t length = 1 + random.below(random.below(2) == 0 ? 300 : 20'000);
        auto offset = extents.allocate(length);
        uint64_t rounded = (length + 63) / 64 * 64;
        if (!offset) {
          CHECK(extents.largest_free() < rounded);
          continue;
        }
        auto next = live.lower_bound(*offset);
        if (next != live.end()) REQUIRE(*offset + rounded <= next->first);
        if (next != live.begin()) REQUIRE(std::prev(next)->first + std::prev(next)->second <= *offset);
        REQUIRE(*offset + rounded <= extents.size());
        live[*offset] = rounded;
        used += rounded;
      } else {
        auto it = live.begin();
        std::advance(it, random.below(live.size()));
        extents.free(it->first);
        used -= it->second;
        live.erase(it);
      }
      REQUIRE(extents.used() == used);
    }
    for (auto& [offset, length] : live) extents.free(offset);
    CHECK(extents.largest_free() == extents.size());
  }
}

TEST_CASE("allocator: bimodal sizes keep fitting while there is three times as much free") {
  ExtentAllocator extents(32u << 20);
  std::deque<std::vector<uint64_t>> steps;
  for (int step = 0; step < 200; ++step) {
    auto& mine = steps.emplace_back();
    for (auto [count, length] : {std::pair{10, 300u}, std::pair{10, 3u << 10}, std::pair{3, 1u << 20}}) {
      for (int i = 0; i < count; ++i) {
        auto offset = extents.allocate(length);
        REQUIRE((offset.has_value() || extents.size() - extents.used() < 3 * uint64_t{length}));
        if (offset) mine.push_back(*offset);
      }
    }
    if (steps.size() > 2) {
      for (uint64_t offset : steps.front()) extents.free(offset);
      steps.pop_front();
    }
  }
}

TEST_CASE("entry: a header is accepted only unchanged and for what was located") {
  alignas(64) std::byte at[64];
  EntryHeader made = make_header({3, 9}, "key", 1000, 77);
  write_header(at, made);
  EntryHeader header;
  std::memcpy(&header, at, sizeof header);
  CHECK(header_matches(header, {3, 9}, "key", 1000));
  CHECK_FALSE(header_matches(header, {3, 9}, "kez", 1000));
  CHECK_FALSE(header_matches(header, {3, 9}, "key", 1001));
  CHECK_FALSE(header_matches(header, {4, 9}, "key", 1000));
  CHECK_FALSE(header_matches(header, {3, 8}, "key", 1000));
  for (size_t bit = 0; bit < 512; ++bit) {
    EntryHeader broken = header;
    reinterpret_cast<std::byte*>(&broken)[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    CHECK_FALSE(header_matches(broken, {3, 9}, "key", 1000));
  }
  clear_header(at);
  for (std::byte byte : at) CHECK(byte == std::byte{0});
}

TEST_CASE("ticket: made for one generation, key and length, with one node's secret") {
  SipKey secret{1, 2};
  TicketGate gate(secret, 100);
  uint64_t tag = ticket_tag(secret, {1, 5}, "key", 10);
  CHECK(gate.authentic({1, 5}, "key", 10, tag).has_value());
  CHECK_FALSE(gate.authentic({1, 6}, "key", 10, tag).has_value());
  CHECK_FALSE(gate.authentic({1, 5}, "kex", 10, tag).has_value());
  CHECK_FALSE(gate.authentic({1, 5}, "key", 11, tag).has_value());
  CHECK_FALSE(gate.authentic({1, 5}, "key", 10, tag + 1).has_value());
  CHECK_FALSE(gate.authentic({1, 5}, "key", 10, ticket_tag({1, 3}, {1, 5}, "key", 10)).has_value());
}

TEST_CASE("ticket: over are those of another term, below the floor, and refused ones, for good") {
  TicketGate gate({1, 2}, 3);
  gate.enter_term(2);
  CHECK(gate.open({2, 1}).has_value());
  CHECK_FALSE(gate.open({1, 9}).has_value());
  CHECK_FALSE(gate.open({3, 1}).has_value());
  gate.refuse({2, 5});
  CHECK_FALSE(gate.open({2, 5}).has_value());
  gate.raise_floor({2, 4});
  CHECK_FALSE(gate.open({2, 3}).has_value());
  CHECK_FALSE(gate.open({2, 5}).has_value());
  CHECK(gate.open({2, 4}).has_value());
  gate.raise_floor({2, 2});  // floors do not sink
  CHECK_FALSE(gate.open({2, 3}).has_value());
  gate.raise_floor({2, 6});
  CHECK(gate.remembered() == 0);
  for (uint64_t sequence : {7u, 9u, 11u, 13u}) gate.refuse({2, sequence});
  CHECK(gate.remembered() == 3);
  for (uint64_t sequence : {6u, 7u, 9u, 11u, 13u}) CHECK_FALSE(gate.open({2, sequence}).has_value());
  CHECK(gate.open({2, 8}).has_value());
  gate.enter_term(3);
  CHECK_FALSE(gate.open({2, 8}).has_value());
  CHECK(gate.open({3, 1}).has_value());
}

TEST_CASE("segment: retiring clears the header before the bytes are free, and old headers never come back") {
  auto arena = memory::Arena::create_private(1 << 20);
  REQUIRE(arena);
  Segment segment(*arena);
  auto offset = segment.allocate(100);
  REQUIRE(offset);
  segment.publish({1, 1}, "k", 100, *offset, 5);
  CHECK(segment.find({1, 1})->offset == *offset);
  CHECK((*arena)->data()[*offset] != std::byte{0});
  CHECK(segment.retire({1, 1}));
  CHECK_FALSE(segment.retire({1, 1}));
  for (size_t i = 0; i < 64; ++i) CHECK((*arena)->data()[*offset + i] == std::byte{0});
  CHECK(segment.extents().used() == 0);
  // bytes of a payload that look like a header, where the next entry begins
  std::memset((*arena)->data(), 0x5a, (*arena)->size());
  auto next = segment.allocate(100);
  for (size_t i = 0; i < 64; ++i) CHECK((*arena)->data()[*next + i] == std::byte{0});
}

TEST_CASE("locations: bounded, until their lease is over") {
  LocationCache cache(3);
  auto location = [](uint64_t sequence) { return Location{{1, 1}, "a", {1, sequence}, 0, 0}; };
  for (uint64_t i = 1; i <= 4; ++i) cache.put("k" + std::to_string(i), location(i), 100);
  CHECK(cache.size() == 3);
  CHECK_FALSE(cache.get("k1", 0).has_value());
  CHECK(cache.get("k4", 99)->generation.sequence == 4);
  CHECK_FALSE(cache.get("k4", 100).has_value());
  CHECK(cache.size() == 2);
  cache.put("k2", location(7), 100);
  CHECK(cache.get("k2", 0)->generation.sequence == 7);
  cache.drop("k2");
  CHECK_FALSE(cache.get("k2", 0).has_value());
}
