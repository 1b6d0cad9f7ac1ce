#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <set>

#include "base/random.h"
#include "memory/arena.h"
#include "memory/copy.h"
#include "memory/probe.h"
#include "memory/region.h"

namespace moontide::memory {
namespace {

std::unique_ptr<Registry> make_registry() { return std::make_unique<Registry>(*GenerationTable::create_private()); }

TEST_CASE("arena: nobody can map it writable any more, or shrink it (DESIGN: the owner is the only writer)") {
  auto arena = Arena::create(10'000, "test");
  REQUIRE(arena);
  CHECK((*arena)->size() == 12'288);
  (*arena)->data()[0] = std::byte{42};
  CHECK(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (*arena)->fd(), 0) == MAP_FAILED);
  CHECK(ftruncate((*arena)->fd(), 4096) != 0);
  CHECK(ftruncate((*arena)->fd(), 1 << 20) != 0);
  CHECK(pwrite((*arena)->fd(), "x", 1, 0) != 1);
  auto mapping = Mapping::map((*arena)->fd(), (*arena)->size());
  REQUIRE(mapping);
  CHECK((*mapping)->data()[0] == std::byte{42});
  void* page = const_cast<std::byte*>((*mapping)->data());
  CHECK(mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0);
}

TEST_CASE("mapping: only what is sealed and has the announced size") {
  auto arena = Arena::create(8192, "test");
  CHECK(Mapping::map((*arena)->fd(), 4096).error().code == Code::kInvalid);
  CHECK(Mapping::map((*arena)->fd(), 1u << 30).error().code == Code::kInvalid);
  const int loose = memfd_create("loose", MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(loose, 8192) == 0);
  CHECK(Mapping::map(loose, 8192).error().code == Code::kDenied);  // it could shrink under the reader
  close(loose);
  const int null = open("/dev/null", O_RDONLY);
  CHECK(Mapping::map(null, 8192).error().code == Code::kDenied);
  close(null);
  CHECK(Arena::create(0, "none").error().code == Code::kInvalid);
  CHECK(Arena::create(SIZE_MAX, "huge").error().code == Code::kInvalid);
  CHECK(Arena::create(size_t{1} << 62, "huge").error().code == Code::kNoSpace);
}

TEST_CASE("registry: what may be registered; ranges may overlap, and a transfer gets one that suits") {
  auto registry = make_registry();
  Bytes memory(4096);
  std::byte* at = memory.data();
  auto covering = [&](size_t offset, uint64_t length, Use use) -> std::string {
    auto found = registry->find_local(reinterpret_cast<uint64_t>(at + offset), length, use);
    return found ? (*found)->name : std::string(code_name(found.error().code));
  };
  auto middle = *registry->add(at + 1000, 1000, kReadable | kSource, "middle");
  CHECK(registry->stands_alone(*middle));
  REQUIRE(registry->add(at, 1000, kReadable, "before"));  // adjacent is not overlapping
  REQUIRE(registry->add(at + 2000, 1000, kReadable, "behind"));
  CHECK(registry->stands_alone(*middle));
  CHECK(covering(1000, 1000, Use::kAny) == "middle");
  CHECK(covering(1000, 1001, Use::kAny) == "DENIED");  // two registrations are not one
  CHECK(covering(1000, 10, Use::kInto) == "DENIED");
  auto whole = *registry->add(at, 4096, kWritable, "whole");
  CHECK_FALSE(registry->stands_alone(*middle));
  CHECK_FALSE(registry->stands_alone(*whole));
  CHECK(covering(1000, 1001, Use::kAny) == "whole");
  CHECK(covering(1000, 10, Use::kInto) == "whole");
  CHECK(covering(1000, 10, Use::kGranted) == "middle");
  CHECK(covering(3000, 10, Use::kGranted) == "DENIED");
  auto again = *registry->add(at + 1000, 1000, kReadable, "again");  // the same range once more
  CHECK(again->id != middle->id);
  REQUIRE(registry->remove(middle->id, {}));
  CHECK(covering(1000, 1000, Use::kGranted) == "again");
  REQUIRE(registry->remove(again->id, {}));
  CHECK(covering(1000, 1000, Use::kGranted) == "DENIED");
  CHECK(covering(1000, 1000, Use::kAny) == "whole");
  CHECK(registry->add(at, 0, kReadable, "empty").error().code == Code::kInvalid);
  CHECK(registry->add(nullptr, 10, kReadable, "null").error().code == Code::kInvalid);
  CHECK(registry->add(at, UINT64_MAX, kReadable, "wraps").error().code == Code::kInvalid);
  CHECK(covering(0, UINT64_MAX, Use::kAny) == "DENIED");
}

TEST_CASE("interval index: random histories agree with looking at every region") {
  SeededRandom random(11);
  IntervalIndex index;
  std::vector<RegionRef> all;
  for (uint32_t step = 1; step <= 3000; ++step) {
    if (random.below(3) != 0 || all.empty()) {
      auto region = std::make_shared<Region>();
      region->id = step;
      region->address = reinterpret_cast<std::byte*>(1 + random.below(400));
      region->length = 1 + random.below(random.below(4) == 0 ? 200 : 20);
      region->access = static_cast<uint8_t>(random.below(8));
      all.push_back(region);
      index.add(region);
    } else {
      const size_t at = random.below(all.size());
      index.remove(*all[at]);
      all.erase(all.begin() + static_cast<ptrdiff_t>(at));
    }
    const uint64_t start = random.below(500), length = random.below(30);
    size_t touching = 0;
    for (Use use : {Use::kAny, Use::kInto, Use::kGranted}) {
      bool expected = false;
      touching = 0;
      for (const auto& region : all) {
        const auto begin = reinterpret_cast<uint64_t>(region->address), end = begin + region->length;
        expected |= begin <= start && end >= start + length && suits(*region, use);
        touching += begin < start + length && end > start;
      }
      auto found = index.covering(start, length, use);
      REQUIRE((found != nullptr) == expected);
      if (!found) continue;
      CHECK(reinterpret_cast<uint64_t>(found->address) <= start);
      CHECK(reinterpret_cast<uint64_t>(found->address) + found->length >= start + length);
      CHECK(suits(*found, use));
    }
    size_t visited = 0;
    index.touching(start, length, [&](const RegionRef&) { return ++visited, true; });
    CHECK(visited == touching);
  }
}

TEST_CASE("registry: a hundred thousand regions, in any order and one inside the other, keep their ways short") {
  constexpr size_t kRegions = 100'000;
  for (int order = 0; order < 3; ++order) {
    CAPTURE(order);
    auto registry = make_registry();
    auto arena = *Arena::create_private(kRegions * 64);
    std::vector<uint32_t> ids;
    for (size_t i = 0; i < kRegions; ++i) {
      const size_t at = order == 0 ? i : order == 1 ? kRegions - 1 - i : 0;
      ids.push_back((*registry->add(arena->data() + at * 64, order == 2 ? 64 * (i + 1) : 64, kReadable, ""))->id);
    }
    // log2 of 100,000 is 17; a treap's longest way is below four times that but once in a lifetime of universes
    CHECK(registry->by_address().depth() < 68);
    const auto last = reinterpret_cast<uint64_t>(arena->data()) + (kRegions - 1) * 64;
    CHECK(registry->find_local(last, 64));
    for (uint32_t id : ids) REQUIRE(registry->remove(id, {}));
    CHECK_FALSE(registry->find_local(last, 64));
  }
}

TEST_CASE("registry: who uses a region is told, also when it is leaving") {
  struct Named final : PinUser {
    explicit Named(std::string text) : name(std::move(text)) {}
    std::string describe_use(const Region& region) const override { return name + " of " + region.name; }
    std::string name;
  };
  auto registry = make_registry();
  Bytes memory(64);
  auto region = *registry->add(memory.data(), 64, kReadable, "r");
  CHECK(registry->users(region->id).empty());
  Named one("one"), two("two");
  std::vector<Pin> pins;
  for (int i = 0; i < 3; ++i) pins.emplace_back(region, &one);
  Pin other(region, &two);
  Pin moved = std::move(other);
  CHECK(registry->users(region->id) == std::vector<std::string>{"two of r", "one of r", "one of r", "one of r"});
  pins.emplace_back(region, &one);
  CHECK(registry->users(region->id).back() == "1 more");
  REQUIRE(registry->remove(region->id, {}));
  pins.clear();
  CHECK(registry->users(region->id) == std::vector<std::string>{"two of r"});
  moved.release();
  CHECK(registry->users(region->id).empty());
  CHECK(registry->users(99).empty());
}

TEST_CASE("registry: what a peer names is checked by range, right and generation (laws 3 and 6)") {
  auto registry = make_registry();
  Bytes memory(4096);
  auto region = *registry->add(memory.data(), 4096, kReadable, "r");
  const uint32_t id = region->id;
  const uint64_t generation = region->generation;
  auto code = [&](uint32_t i, uint64_t g, uint64_t offset, uint64_t length, Access right) {
    auto checked = registry->check_remote(i, g, offset, length, right);
    return checked ? Code::kOk : checked.error().code;
  };
  CHECK(code(id, generation, 0, 4096, kReadable) == Code::kOk);
  CHECK(code(id, generation, 4096, 0, kReadable) == Code::kOk);
  CHECK(code(id, generation, 0, 4097, kReadable) == Code::kDenied);
  CHECK(code(id, generation, 1, UINT64_MAX, kReadable) == Code::kDenied);
  CHECK(code(id, generation, UINT64_MAX, 1, kReadable) == Code::kDenied);
  CHECK(code(id, generation, 0, 1, kWritable) == Code::kDenied);
  CHECK(code(id, generation + 1, 0, 1, kReadable) == Code::kStale);
  CHECK(code(id + 1, generation, 0, 1, kReadable) == Code::kNotFound);
  REQUIRE(registry->remove(id, {}));
  CHECK(code(id, generation, 0, 1, kReadable) == Code::kStale);
  auto second = *registry->add(memory.data(), 4096, kReadable, "r");
  CHECK(second->generation != generation);
  CHECK(second->id != id);
}

TEST_CASE("registry: memory is handed back when the last use has ended, and not before (law 1)") {
  auto registry = make_registry();
  Bytes memory(4096);
  auto region = *registry->add(memory.data(), 4096, kReadable, "r");
  int quiet = 0;
  Pin first(region, nullptr), second(region, nullptr);
  REQUIRE(registry->remove(region->id, [&] { ++quiet; }));
  CHECK_FALSE(registry->find_local(reinterpret_cast<uint64_t>(memory.data()), 1));
  CHECK_FALSE(registry->generations().is_current(region->word, region->generation));
  first.release();
  CHECK(quiet == 0);
  Pin moved = std::move(second);
  second.release();
  CHECK(quiet == 0);
  moved.release();
  CHECK(quiet == 1);
  CHECK(registry->remove(region->id, {}).error().code == Code::kNotFound);
}

TEST_CASE("generation table: words are reused, generations are not; it is bounded") {
  auto table = *GenerationTable::create_private();
  const uint32_t word = *table->acquire(5);
  CHECK(table->is_current(word, 5));
  table->release(word);
  CHECK_FALSE(table->is_current(word, 5));
  CHECK(*table->acquire(6) == word);
  CHECK_FALSE(table->is_current(word, 5));
  CHECK_FALSE(table->is_current(UINT32_MAX, 6));
  for (uint32_t i = 1; i < GenerationTable::kWords; ++i) REQUIRE(table->acquire(100 + i));
  CHECK(table->acquire(1).error().code == Code::kNoSpace);
}

TEST_CASE("registry: ids go round and spare those in use; what left long ago stays stale") {
  Registry registry(*GenerationTable::create_private(), UINT32_MAX - 1);
  std::array<std::byte, 64> memory{};
  auto add = [&] { return *registry.add(memory.data(), memory.size(), kReadable, "r"); };
  const RegionRef last = add(), very_last = add(), first = add(), second = add();
  CHECK(last->id == UINT32_MAX - 1);
  CHECK(very_last->id == UINT32_MAX);
  CHECK(first->id == 1);
  CHECK(second->id == 2);
  REQUIRE(registry.remove(second->id, {}));
  CHECK(registry.check_remote(2, second->generation, 0, 1, kReadable).error().code == Code::kStale);
  CHECK(registry.check_remote(77, 1, 0, 1, kReadable).error().code == Code::kStale);  // it may have been one
  CHECK(registry.check_remote(0, 1, 0, 1, kReadable).error().code == Code::kNotFound);
  CHECK(registry.check_remote(1, first->generation, 0, 1, kReadable));

  Registry again(*GenerationTable::create_private(), UINT32_MAX);
  auto add_again = [&] { return *again.add(memory.data(), memory.size(), kReadable, "r"); };
  const RegionRef held = add_again();
  REQUIRE(held->id == UINT32_MAX);
  std::set<uint32_t> seen{held->id};
  for (int i = 0; i < 100; ++i) CHECK(seen.insert(add_again()->id).second);
  CHECK(again.by_id(UINT32_MAX) == held);
}

TEST_CASE("registry: memory that is not there any more is refused, by every region that has it") {
  Registry registry(*GenerationTable::create_private());
  std::array<std::byte, 128> memory{};
  const RegionRef whole = *registry.add(memory.data(), 128, kReadable, "whole");
  const RegionRef front = *registry.add(memory.data(), 64, kReadable, "front");
  const auto changes = registry.changes();
  registry.mark_missing(reinterpret_cast<uint64_t>(memory.data()) + 100);
  CHECK(registry.changes() > changes);
  CHECK(registry.check_remote(whole->id, whole->generation, 0, 1, kReadable).error().code == Code::kDenied);
  CHECK(registry.check_remote(front->id, front->generation, 0, 1, kReadable));
}

TEST_CASE("what cannot be read is found without a look at it") {
  constexpr size_t kPage = 4096;
  void* pages = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  auto* const start = static_cast<std::byte*>(pages);
  CHECK(first_missing({start + 1, 4 * kPage - 1}) == nullptr);
  CHECK(first_missing({start, 0}) == nullptr);
  REQUIRE(mprotect(start + 2 * kPage, kPage, PROT_NONE) == 0);
  CHECK(first_missing({start + 100, 4 * kPage - 100}) == start + 2 * kPage);
  CHECK(first_missing({start + 2 * kPage + 9, 1}) == start + 2 * kPage + 9);
  CHECK(first_missing({start, 2 * kPage}) == nullptr);
  munmap(pages, 4 * kPage);
}

TEST_CASE("copies of every size and alignment are exact and touch nothing else") {
  Bytes source(300'000), target(300'000);
  SeededRandom(1).fill(source);
  for (size_t size : {0u, 1u, 31u, 32u, 127u, 128u, 129u, 255u, 257u, 4096u, 65'535u, 65'536u, 262'144u, 290'001u}) {
    for (size_t shift : {0u, 1u, 31u, 33u}) {
      for (auto* loop : {&copy, &copy_streaming}) {
        std::fill(target.begin(), target.end(), std::byte{0xee});
        loop(target.data() + shift, source.data() + 3, size);
        CHECK(std::equal(source.begin() + 3, source.begin() + 3 + static_cast<ptrdiff_t>(size),
                         target.begin() + static_cast<ptrdiff_t>(shift)));
        CHECK(std::all_of(target.begin(), target.begin() + static_cast<ptrdiff_t>(shift),
                          [](std::byte b) { return b == std::byte{0xee}; }));
        CHECK(target[shift + size] == std::byte{0xee});
      }
    }
  }
}

}  // namespace
}  // namespace moontide::memory
