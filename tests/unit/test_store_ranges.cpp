// Parts of objects: which bytes come, and that they are of one put, whatever happens to the entry meanwhile.
#include "unit/store_support.h"

using namespace moontide;
using namespace moontide::store;
using namespace moontide::store::test;
using io::test::pattern;

namespace {

GetItem part_of(const std::string& key, MutableBytes into, uint64_t offset, uint64_t length) {
  return {.key = key,
          .parts = {{reinterpret_cast<uint64_t>(into.data()), into.size()}},
          .range = ObjectRange{offset, length}};
}

Result<Bytes> get_part(Cluster& cluster, Client& client, const std::string& key, uint64_t offset, uint64_t length) {
  Bytes into(std::min<uint64_t>(length, 2 * kMiB) + 8, std::byte{0xEE});
  const size_t room = into.size() - 8;
  std::vector<GetItem> items{part_of(key, MutableBytes(into).first(room), offset, length)};
  auto results = cluster.finish(client.get(std::move(items), {}));
  for (size_t i = room; i < into.size(); ++i) CHECK(into[i] == std::byte{0xEE});
  if (!results[0]) return std::unexpected(results[0].error());
  REQUIRE(*results[0] <= room);
  into.resize(*results[0]);
  return into;
}

std::byte* entry_of(Cluster& cluster) {
  auto& process = cluster.nodes[0];
  return process.arena->data() + process.node->storage().segment().inventory().begin()->second.offset;
}

}  // namespace

TEST_CASE("store ranges: each is the slice that it names, cut at the object's end") {
  Cluster cluster;
  Client& writer = cluster.simple(16 * kMiB);
  Client& reader = cluster.add_client();
  for (size_t size : {size_t{0}, size_t{1}, size_t{64}, size_t{5000}, size_t{300'000}}) {
    const std::string key = "k" + std::to_string(size);
    const Bytes value = pattern(size, size + 1);
    REQUIRE(cluster.put(writer, key, value) == Code::kOk);
    for (uint64_t offset : {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{64}, size / 2, size - size / 8, size}) {
      for (uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{64}, uint64_t{4097}, size, size + 100}) {
        if (offset > size) continue;
        CAPTURE(size);
        CAPTURE(offset);
        CAPTURE(length);
        auto got = get_part(cluster, reader, key, offset, length);
        REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
        const auto first = value.begin() + static_cast<ptrdiff_t>(offset);
        CHECK(*got == Bytes(first, first + static_cast<ptrdiff_t>(std::min(length, size - offset))));
      }
    }
  }
  CHECK(reader.counters().range_gets > 0);
  CHECK(reader.counters().proofs_failed == 0);
}

TEST_CASE("store ranges: one past the end or with too little memory says both values") {
  Cluster cluster;
  Client& client = cluster.simple();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  for (uint64_t offset : {uint64_t{5001}, ~uint64_t{0}}) {
    auto got = get_part(cluster, client, "k", offset, 1);
    REQUIRE_FALSE(got);
    CHECK(got.error().code == Code::kInvalid);
    CHECK(got.error().message.find(std::to_string(offset)) != std::string::npos);
    CHECK(got.error().message.find("5000") != std::string::npos);
  }
  CHECK(get_part(cluster, client, "k", 1, ~uint64_t{0})->size() == 4999);
  Bytes into(100);
  std::vector<GetItem> items{part_of("k", into, 4000, 500)};
  auto results = cluster.finish(client.get(std::move(items), {}));
  REQUIRE_FALSE(results[0]);
  CHECK(results[0].error().message.find("500") != std::string::npos);
  CHECK(results[0].error().message.find("100") != std::string::npos);
  CHECK(get_part(cluster, client, "none", 0, 1).error().code == Code::kNotFound);
}

TEST_CASE("store ranges: many in one batch, ranges and whole objects, in parts; bytes read are counted") {
  Cluster cluster;
  Client& client = cluster.simple();
  const Bytes value = pattern(50'000, 7);
  REQUIRE(cluster.put(client, "k", value) == Code::kOk);
  Bytes into(90'000);
  const auto base = reinterpret_cast<uint64_t>(into.data());
  std::vector<GetItem> items;
  for (uint64_t i = 0; i < 40; ++i) {
    items.push_back({.key = "k",
                     .parts = {{base + i * 1000, 300}, {base + i * 1000 + 300, 700}},
                     .range = ObjectRange{i * 1001, 1000}});
  }
  items.push_back({.key = "k", .parts = {{base + 40'000, 50'000}}});
  auto results = cluster.finish(client.get(std::move(items), {}));
  for (size_t i = 0; i < 40; ++i) {
    CHECK(results[i] == 1000);
    CHECK(std::memcmp(into.data() + i * 1000, value.data() + i * 1001, 1000) == 0);
  }
  CHECK(std::memcmp(into.data() + 40'000, value.data(), value.size()) == 0);
  CHECK(client.counters().get_bytes == 90'000);
  CHECK(client.counters().range_gets == 40);
}

TEST_CASE("store ranges: a cached place that is no longer the object's neither answers nor refuses") {
  Cluster cluster;
  Client& client = cluster.simple();
  Client& other = cluster.add_client();
  REQUIRE(cluster.put(client, "k", pattern(1000, 1)) == Code::kOk);
  REQUIRE(get_part(cluster, other, "k", 10, 10));
  REQUIRE(cluster.remove(client, "k") == Code::kOk);
  const Bytes longer = pattern(9000, 2);
  REQUIRE(cluster.put(client, "k", longer) == Code::kOk);
  auto got = get_part(cluster, other, "k", 8000, 100);  // past the end of what its cache knows
  REQUIRE_MESSAGE(got, (got ? "" : got.error().text()));
  CHECK(*got == Bytes(longer.begin() + 8000, longer.begin() + 8100));
}

TEST_CASE("store ranges: a header that changed is a miss") {
  Cluster cluster;
  Client& client = cluster.simple();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  std::byte* at = entry_of(cluster);
  for (size_t byte = 0; byte < sizeof(EntryHeader); byte += 4) {
    CAPTURE(byte);
    at[byte] ^= std::byte{1};
    auto got = get_part(cluster, client, "k", 100, 100);
    REQUIRE_FALSE(got);
    CHECK(got.error().code == Code::kNotFound);
    at[byte] ^= std::byte{1};
  }
  CHECK(get_part(cluster, client, "k", 100, 100).has_value());
}

// The law's guard: the entry is retired, and its space reused, at every point of a read.
TEST_CASE("store ranges: an entry that ends while its bytes come is a miss, at whatever point") {
  constexpr uint64_t kFirst = 1000, kLength = 5 * kMiB;  // several turns of the streams
  size_t right = 0, missed = 0;
  for (int turns = 0; turns < 60; ++turns) {
    CAPTURE(turns);
    Cluster cluster;
    Client& client = cluster.simple(8 * kMiB);
    const Bytes value = pattern(6 * kMiB, 1);
    REQUIRE(cluster.put(client, "k", value) == Code::kOk);
    std::byte* at = entry_of(cluster);
    Bytes into(kLength);
    std::vector<GetItem> items{part_of("k", into, kFirst, kLength)};
    auto operation = client.get(std::move(items), {});
    int turn = 0;
    REQUIRE(cluster.until([&] { return turn++ >= turns; }));
    clear_header(at);
    std::memset(at + sizeof(EntryHeader), 0, value.size());  // what was there is overwritten
    auto results = cluster.finish(operation);
    ++(results[0] ? right : missed);
    if (results[0]) {
      CHECK(std::memcmp(into.data(), value.data() + kFirst, kLength) == 0);
    } else {
      CHECK(results[0].error().code == Code::kNotFound);
    }
  }
  CHECK(missed > 0);
  CHECK(right > 0);
}
