// The hot cache of a host, end to end in one thread: what comes in, what is read there, and what must never be.
#include <algorithm>
#include <array>

#include "base/crc32c.h"
#include "store/entry.h"
#include "unit/store_support.h"

using namespace moontide;
using namespace moontide::store;
using namespace moontide::store::test;
using io::test::pattern;

namespace {

constexpr uint64_t kKiB = 1 << 10;

// Node 0 has the objects; node 1 has no room for any, and keeps a hot cache.
struct HotCluster : Cluster {
  Client& writer;
  Client& reader;

  explicit HotCluster(uint64_t hot_bytes = kMiB, int64_t lease_ns = 200 * kMillisecond)
      : writer(begin(hot_bytes, lease_ns)), reader(add_reader()) {}
  Client& begin(uint64_t hot_bytes, int64_t lease_ns) {
    master_options.catalog.lease_ns = lease_ns;
    start_master();
    add_node(16 * kMiB);
    NodeOptions options;
    options.hot_bytes = hot_bytes;
    options.hot_private = true;
    add_node(4 * kKiB, options);
    return add_client();
  }
  Client& add_reader() { return add_client({.master = {}, .hot_anywhere = true}); }
  Node& keeper() { return *nodes[1].node; }
  const HotCache& cache() { return *keeper().hot_cache(); }
  // Reads it until the cache has as many entries as it is to have.
  void warm(const std::string& key, uint64_t pulls) {
    for (int i = 0; i < 2000 && cache().counters().pulls < pulls; ++i) REQUIRE(get(reader, key));
    REQUIRE(cache().counters().pulls == pulls);
  }
  // One that knows of the cache, as its next reads show.
  Client& add_ready_reader(const std::string& key) {
    Client& client = add_reader();
    for (int i = 0; i < 2000 && client.counters().hot_gets == 0; ++i) REQUIRE(get(client, key));
    REQUIRE(client.counters().hot_gets > 0);
    return client;
  }
};

}  // namespace

TEST_CASE("hot index: finds what was added, until it is removed") {
  alignas(64) std::array<std::byte, 2 * kHotBucketBytes> memory{};
  HotIndex index(memory);
  REQUIRE(index.buckets() == 2);
  auto find = [&](Generation generation) {
    const size_t at = hot_bucket(generation, index.buckets()) * kHotBucketBytes;
    return find_in_bucket(ByteView(memory).subspan(at, kHotBucketBytes), generation);
  };
  std::vector<Generation> added;
  std::optional<Generation> crowded;
  for (uint64_t sequence = 1; !crowded; ++sequence) {
    const Generation generation{7, sequence};
    CHECK_FALSE(find(generation));
    crowded = index.add(generation, sequence * 64);
    if (!crowded) added.push_back(generation);
  }
  CHECK(added.size() >= kHotSlots);
  CHECK(std::ranges::find(added, *crowded) != added.end());
  for (Generation generation : added) CHECK(find(generation) == generation.sequence * 64);
  CHECK_FALSE(find({8, added[0].sequence}));
  index.remove(added[0]);
  CHECK_FALSE(find(added[0]));
  CHECK(find(added[1]) == added[1].sequence * 64);
}

TEST_CASE("hot cache: what is read again comes in, and every process of the host reads it there") {
  HotCluster cluster;
  const Bytes value = pattern(100'000, 1);
  REQUIRE(cluster.put(cluster.writer, "a", value) == Code::kOk);
  CHECK(cluster.cache().segment().inventory().empty());
  cluster.warm("a", 1);
  CHECK(cluster.cache().segment().inventory().size() == 1);
  Client& other = cluster.add_ready_reader("a");
  const uint64_t before = other.counters().hot_gets;
  CHECK(*cluster.get(other, "a") == value);
  CHECK(other.counters().hot_gets == before + 1);
  CHECK(other.counters().hot_failed == 0);
  REQUIRE(cluster.until([&] { return cluster.cache().counters().hits > 0; }));
  CHECK(cluster.cache().counters().hit_bytes % value.size() == 0);
  CHECK(cluster.cache().counters().pulls == 1);
  // it is no replica
  CHECK(cluster.keeper().storage().segment().inventory().empty());
  CHECK(cluster.master->catalog().stats().replicas == 1);
  REQUIRE(cluster.until([&] {
    const wire::HotFacts* facts = cluster.master->hot_facts_of(cluster.keeper().id());
    return facts != nullptr && facts->entries == 1 && facts->hits > 0;
  }));
}

TEST_CASE("hot cache: a part is read there as the whole is") {
  HotCluster cluster;
  const Bytes value = pattern(100'000, 1);
  REQUIRE(cluster.put(cluster.writer, "a", value) == Code::kOk);
  cluster.warm("a", 1);
  Client& other = cluster.add_ready_reader("a");
  const uint64_t before = other.counters().hot_gets;
  Bytes into(1000);
  std::vector<GetItem> items(1);
  items[0] = {"a", {{reinterpret_cast<uint64_t>(into.data()), into.size()}}, ObjectRange{5000, 1000}};
  CHECK(cluster.finish(other.get(std::move(items), {}))[0] == 1000);
  CHECK(std::ranges::equal(into, ByteView(value).subspan(5000, 1000)));
  CHECK(other.counters().hot_gets == before + 1);
}

TEST_CASE("hot cache: what was removed, and what was put again, is never read there") {
  HotCluster cluster(kMiB, 10 * kSecond);  // a lease lives all the time
  REQUIRE(cluster.put(cluster.writer, "a", pattern(100'000, 1)) == Code::kOk);
  cluster.warm("a", 1);
  Client& other = cluster.add_ready_reader("a");
  REQUIRE(cluster.remove(cluster.writer, "a") == Code::kOk);
  REQUIRE(cluster.cache().segment().inventory().size() == 1);  // it is still there
  CHECK(cluster.get_code(other, "a") == Code::kNotFound);
  CHECK(cluster.get_code(cluster.reader, "a") == Code::kNotFound);
  REQUIRE(cluster.put(cluster.writer, "a", pattern(100'000, 2)) == Code::kOk);
  CHECK(*cluster.get(other, "a") == pattern(100'000, 2));
  cluster.warm("a", 2);
  // a key has one entry
  CHECK(cluster.cache().segment().inventory().size() == 1);
  CHECK(*cluster.get(other, "a") == pattern(100'000, 2));
}

TEST_CASE("hot cache: an entry whose bytes changed is not believed") {
  HotCluster cluster;
  const Bytes value = pattern(100'000, 1);
  REQUIRE(cluster.put(cluster.writer, "a", value) == Code::kOk);
  cluster.warm("a", 1);
  Client& other = cluster.add_ready_reader("a");
  const Segment& segment = cluster.cache().segment();
  const auto& entry = segment.inventory().begin()->second;
  segment.payload(entry.offset, entry.length)[77] ^= std::byte{1};
  CHECK(*cluster.get(other, "a") == value);
  CHECK(other.counters().hot_failed == 1);
}

TEST_CASE("hot cache: an entry that a process made up is not believed") {
  HotCluster cluster;
  const Bytes value = pattern(100'000, 1), forged = pattern(100'000, 2);
  REQUIRE(cluster.put(cluster.writer, "a", value) == Code::kOk);
  REQUIRE(cluster.put(cluster.writer, "b", value) == Code::kOk);
  cluster.warm("b", 1);
  Client& victim = cluster.add_ready_reader("b");
  // Memory that looks like a node's, with an entry of the right generation.
  const auto& inventory = cluster.nodes[0].node->storage().segment().inventory();
  const auto truth = std::ranges::find(inventory, "a", [](const auto& one) { return one.second.key; });
  REQUIRE(truth != inventory.end());
  auto liar = cluster.make_engine();
  auto arena = memory::Arena::create_private(kMiB);
  REQUIRE(arena);
  const InstanceId made_up = InstanceId::make(cluster.reactor.random());
  std::ranges::copy(forged, (*arena)->data() + sizeof(EntryHeader));
  write_header((*arena)->data(), make_header(truth->first, "a", forged.size(), crc32c(forged)));
  REQUIRE(liar->add_region((*arena)->data(), kMiB, memory::kReadable, wire::pool_region_name(made_up), *arena));
  const wire::RepairItem lie{.key = "a",
                             .generation = truth->first,
                             .length = forged.size(),
                             .crc = crc32c(forged),
                             .source = made_up,
                             .address = liar->address(),
                             .offset = 0};
  bool told = false;
  liar->open(cluster.nodes[1].engine->address(), kSecond, [&](const Result<engine::LinkRef>& link) {
    REQUIRE(link);
    (*link)->call(wire::kHotReads, wire::encode(wire::HotReads{.hits = {}, .afar = std::vector(9, lie)}), kSecond,
                  [&](const Result<rpc::Reply>&) { told = true; });
  });
  REQUIRE(cluster.until([&] { return told && cluster.cache().counters().pulls == 2; }));
  CHECK(cluster.cache().pulls_under_way() == 0);
  CHECK(*cluster.get(victim, "a") == value);
  CHECK(victim.counters().hot_failed == 1);
}

TEST_CASE("hot cache: more than fits comes and goes, and all that is read is right") {
  HotCluster cluster(512 * kKiB);
  for (int i = 0; i < 24; ++i) {
    REQUIRE(cluster.put(cluster.writer, "k" + std::to_string(i), pattern(40'000 + i * 1000, i)) == Code::kOk);
  }
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 24; ++i) {
      const uint64_t before = cluster.reader.counters().hot_gets;
      for (int turn = 0; turn < 2000 && cluster.reader.counters().hot_gets == before; ++turn) {
        REQUIRE(*cluster.get(cluster.reader, "k" + std::to_string(i)) == pattern(40'000 + i * 1000, i));
      }
      CHECK(cluster.reader.counters().hot_gets == before + 1);
    }
  }
  CHECK(cluster.cache().counters().evicted >= 30);
  CHECK(cluster.cache().pulls_under_way() == 0);
  uint64_t bytes = 0;
  for (const auto& [generation, entry] : cluster.cache().segment().inventory())
    bytes += catalog::entry_footprint(entry.length);
  CHECK(cluster.cache().segment().extents().used() == bytes);
}

TEST_CASE("hot cache: what is too large for it stays where it is") {
  HotCluster cluster(128 * kKiB);
  REQUIRE(cluster.put(cluster.writer, "a", pattern(100'000, 1)) == Code::kOk);
  for (int i = 0; i < 200; ++i) REQUIRE(cluster.get(cluster.reader, "a"));
  REQUIRE(cluster.until([&] { return cluster.cache().counters().misses > 0; }));
  CHECK(cluster.cache().counters().pulls == 0);
  CHECK(cluster.cache().segment().extents().used() == 0);
}

TEST_CASE("hot cache: reads go on when it is gone") {
  HotCluster cluster;
  REQUIRE(cluster.put(cluster.writer, "a", pattern(100'000, 1)) == Code::kOk);
  cluster.warm("a", 1);
  Client& other = cluster.add_ready_reader("a");
  cluster.nodes[1].node.reset();
  cluster.nodes[1].engine.reset();
  cluster.nodes.pop_back();
  const uint64_t before = other.counters().hot_gets;
  CHECK(*cluster.get(other, "a") == pattern(100'000, 1));
  CHECK(other.counters().hot_gets == before);
}

TEST_CASE("hot cache: what is no message of a reader is refused, and what it cannot be is let be") {
  HotCluster cluster;
  engine::LinkRef link;
  cluster.nodes[0].engine->open(cluster.nodes[1].engine->address(), kSecond,
                                [&](const Result<engine::LinkRef>& opened) {
                                  REQUIRE(opened);
                                  link = *opened;
                                });
  REQUIRE(cluster.until([&] { return link != nullptr; }));
  auto tell = [&](Bytes payload) {
    std::optional<Code> code;
    link->call(wire::kHotReads, std::move(payload), kSecond,
               [&](const Result<rpc::Reply>& reply) { code = reply ? Code::kOk : reply.error().code; });
    REQUIRE(cluster.until([&] { return code.has_value(); }));
    return *code;
  };
  CHECK(tell(pattern(13, 1)) == Code::kInvalid);
  CHECK(tell(wire::encode(wire::HotReads{std::vector<wire::HotHit>(5000), {}})) == Code::kInvalid);
  // no key, too long, from nowhere
  wire::RepairItem none{.key = "", .generation = {1, 1}, .length = 1, .crc = 0, .source = {}, .address = "inproc:x"};
  wire::RepairItem endless = none, nowhere = none;
  endless.key = nowhere.key = "k";
  endless.length = UINT64_MAX;
  CHECK(tell(wire::encode(wire::HotReads{{{{9, 9}, 1}}, {none, none, endless, endless}})) == Code::kOk);
  CHECK(cluster.cache().pulls_under_way() == 0);
  nowhere.key = "l";
  CHECK(tell(wire::encode(wire::HotReads{{}, {nowhere, nowhere, nowhere}})) == Code::kOk);
  REQUIRE(cluster.until([&] { return cluster.cache().pulls_under_way() == 0; }));
  CHECK(cluster.cache().counters().pulls_failed > 0);
  CHECK(cluster.cache().segment().extents().used() == 0);
  link.reset();
}
