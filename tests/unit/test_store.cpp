// The pool end to end, in one thread: every operation, several clients and nodes, full pools, bad input.
#include "base/crc32c.h"
#include "store/embedded.h"
#include "unit/store_support.h"

using namespace moontide;
using namespace moontide::store;
using namespace moontide::store::test;
using io::test::pattern;

TEST_CASE("store: what was put is got, by everyone, whatever its size") {
  Cluster cluster;
  Client& writer = cluster.simple(16 * kMiB);
  Client& reader = cluster.add_client();
  for (size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4096}, size_t{4097},
                      size_t{100'000}, size_t{3} << 20}) {
    CAPTURE(size);
    std::string key = "k" + std::to_string(size);
    Bytes value = pattern(size, size);
    CHECK_FALSE(cluster.exists(reader, key));
    CHECK(cluster.get_code(reader, key) == Code::kNotFound);
    REQUIRE(cluster.put(writer, key, value) == Code::kOk);
    CHECK(cluster.exists(reader, key));
    auto got = cluster.get(reader, key, 4 * kMiB);
    REQUIRE(got.has_value());
    CHECK(*got == value);
  }
  CHECK(cluster.list(reader, "k").size() == 9);
  CHECK(cluster.list(reader, "k6") == std::vector<std::string>{"k63", "k64", "k65"});
}

TEST_CASE("store: objects of several parts, in registered memory, in one batch over two nodes") {
  Cluster cluster;
  cluster.start_master();
  cluster.add_node(4 * kMiB);
  cluster.add_node(4 * kMiB);
  Client& client = cluster.add_client();
  engine::Engine& engine = *cluster.clients[0].engine;
  constexpr size_t kObjects = 40, kParts = 7, kPart = 3000;
  Bytes source = pattern(kObjects * kParts * kPart, 1);
  Bytes target(source.size());
  auto source_region = engine.add_region(source.data(), source.size(), memory::kReadable, "source");
  auto target_region = engine.add_region(target.data(), target.size(), memory::kLocal, "target");
  REQUIRE(source_region);
  REQUIRE(target_region);
  std::vector<PutItem> puts(kObjects);
  std::vector<GetItem> gets(kObjects);
  for (size_t i = 0; i < kObjects; ++i) {
    puts[i].key = gets[i].key = "object" + std::to_string(i);
    for (size_t p = 0; p < kParts; ++p) {
      size_t offset = (p * kObjects + i) * kPart;  // a layer at a time, as a KV cache lies
      puts[i].parts.push_back({reinterpret_cast<uint64_t>(source.data() + offset), kPart});
      gets[i].parts.push_back({reinterpret_cast<uint64_t>(target.data() + offset), kPart});
    }
  }
  for (auto& result : cluster.finish(client.put(std::move(puts), Commit::kSync, {}))) CHECK(result == kParts * kPart);
  for (auto& process : cluster.nodes) CHECK(process.node->storage().segment().inventory().size() == kObjects / 2);
  for (auto& result : cluster.finish(client.get(std::move(gets), {}))) CHECK(result == kParts * kPart);
  CHECK(source == target);
}

TEST_CASE("store: one entry lies as documented: header, then payload, checksums over both") {
  Cluster cluster;
  Client& client = cluster.simple();
  Bytes value = pattern(10'000, 3);
  REQUIRE(cluster.put(client, "k", value) == Code::kOk);
  const auto& [generation, entry] = *cluster.nodes[0].node->storage().segment().inventory().begin();
  EntryHeader header;
  std::memcpy(&header, cluster.nodes[0].arena->data() + entry.offset, sizeof header);
  CHECK(header_matches(header, generation, "k", value.size()));
  CHECK_FALSE(header_matches(header, generation, "other", value.size()));
  CHECK_FALSE(header_matches(header, {generation.term, generation.sequence + 1}, "k", value.size()));
  CHECK(header.payload_crc == crc32c(value));
  CHECK(entry.crc == crc32c(value));
}

TEST_CASE("store: a key is put once; duplicates in a batch and by others are told so") {
  Cluster cluster;
  Client& client = cluster.simple();
  Client& other = cluster.add_client();
  std::vector<PutItem> batch(3);
  batch[0].key = batch[2].key = "same";
  batch[1].key = "different";
  for (auto& item : batch) item.value = pattern(10, 1);
  auto results = cluster.finish(client.put(std::move(batch), Commit::kSync, {}));
  CHECK(results[0].has_value());
  CHECK(results[1].has_value());
  REQUIRE_FALSE(results[2].has_value());
  CHECK(results[2].error().code == Code::kAlreadyExists);
  CHECK(cluster.put(other, "same", pattern(10, 2)) == Code::kAlreadyExists);
  CHECK(*cluster.get(other, "same") == pattern(10, 1));
}

TEST_CASE("store: many clients put one key at a time, one wins") {
  Cluster cluster;
  cluster.simple();
  for (int i = 0; i < 7; ++i) cluster.add_client();
  for (int round = 0; round < 20; ++round) {
    std::string key = "race" + std::to_string(round);
    std::vector<OperationRef> operations;
    for (size_t c = 0; c < cluster.clients.size(); ++c) {
      std::vector<PutItem> items(1);
      items[0].key = key;
      items[0].value = pattern(5000, c + 1);
      operations.push_back(cluster.clients[c].client->put(std::move(items), Commit::kSync, {}));
    }
    int winners = 0;
    size_t winner = 0;
    for (size_t c = 0; c < operations.size(); ++c) {
      auto results = cluster.finish(operations[c]);
      if (results[0])
        ++winners, winner = c;
      else
        CHECK(results[0].error().code == Code::kAlreadyExists);
    }
    CHECK(winners == 1);
    CHECK(*cluster.get(*cluster.clients[0].client, key) == pattern(5000, winner + 1));
  }
}

TEST_CASE("store: remove ends an object for everyone, also for whoever has its place cached") {
  Cluster cluster;
  Client& client = cluster.simple();
  Client& other = cluster.add_client();
  REQUIRE(cluster.put(client, "k", pattern(50'000, 1)) == Code::kOk);
  REQUIRE(cluster.get(other, "k").has_value());
  CHECK(cluster.remove(client, "k") == Code::kOk);
  CHECK(cluster.nodes[0].node->storage().segment().inventory().empty());  // before the answer
  CHECK(cluster.nodes[0].node->storage().segment().extents().used() == 0);
  CHECK_FALSE(cluster.exists(client, "k"));
  CHECK(cluster.get_code(other, "k") == Code::kNotFound);
  CHECK(other.counters().proofs_failed == 1);  // the cached place was tried and refuted
  CHECK(cluster.remove(client, "k") == Code::kNotFound);
  REQUIRE(cluster.put(client, "k", pattern(50'000, 2)) == Code::kOk);
  CHECK(*cluster.get(other, "k") == pattern(50'000, 2));
}

TEST_CASE("store: a cached place serves the next get without the master, until its lease is over") {
  Cluster cluster;
  Client& client = cluster.simple();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  REQUIRE(cluster.get(client, "k").has_value());
  uint64_t located = cluster.master->catalog().stats().located;
  REQUIRE(cluster.get(client, "k").has_value());
  CHECK(cluster.master->catalog().stats().located == located);
  int64_t over_ns = cluster.reactor.now_ns() + 210 * kMillisecond;
  REQUIRE(cluster.until([&] { return cluster.reactor.now_ns() > over_ns; }));
  REQUIRE(cluster.get(client, "k").has_value());
  CHECK(cluster.master->catalog().stats().located == located + 1);
}

TEST_CASE("store: bytes that changed on the node are a miss, never an answer") {
  Cluster cluster;
  Client& client = cluster.simple();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  const auto& entry = cluster.nodes[0].node->storage().segment().inventory().begin()->second;
  std::byte* payload = cluster.nodes[0].arena->data() + entry.offset + sizeof(EntryHeader);
  payload[4321] ^= std::byte{1};
  CHECK(cluster.get_code(client, "k") == Code::kNotFound);
  CHECK(client.counters().proofs_failed == 2);  // asked once more in between
  payload[4321] ^= std::byte{1};
  CHECK(cluster.get_code(client, "k") == Code::kOk);
  payload[-64 + 16] ^= std::byte{1};  // the header
  CHECK(cluster.get_code(client, "k") == Code::kNotFound);
}

TEST_CASE("store: memory that is too small, bad keys, objects that never fit") {
  Cluster cluster;
  Client& client = cluster.simple(1 * kMiB);
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  auto small = cluster.get(client, "k", 4999);
  REQUIRE_FALSE(small.has_value());
  CHECK(small.error().code == Code::kInvalid);
  CHECK(small.error().message.find("5000") != std::string::npos);
  CHECK(small.error().message.find("4999") != std::string::npos);
  CHECK(cluster.put(client, "", pattern(1, 1)) == Code::kInvalid);
  CHECK(cluster.put(client, std::string(1025, 'k'), pattern(1, 1)) == Code::kInvalid);
  CHECK(cluster.get_code(client, "") == Code::kInvalid);
  CHECK(cluster.put(client, std::string("\0\xff", 2), pattern(1, 1)) == Code::kOk);
  CHECK(cluster.get_code(client, std::string("\0\xff", 2)) == Code::kOk);
  CHECK(cluster.put(client, "big", pattern(2 * kMiB, 1)) == Code::kTooLarge);
  CHECK(cluster.finish(client.put({}, Commit::kSync, {})).empty());
  CHECK(cluster.finish(client.get({}, {})).empty());
}

TEST_CASE("store: a full pool gives up its coldest objects; every put goes through") {
  Cluster cluster;
  cluster.master_options.catalog.lease_ns = kMillisecond;
  Client& client = cluster.simple(2 * kMiB);
  for (int i = 0; i < 100; ++i) {
    CAPTURE(i);
    REQUIRE(cluster.put(client, "k" + std::to_string(i), pattern(100'000, i)) == Code::kOk);
  }
  CHECK(cluster.exists(client, "k99"));
  CHECK_FALSE(cluster.exists(client, "k0"));
  CHECK(cluster.master->catalog().stats().evicted >= 80);
  CHECK(*cluster.get(client, "k99") == pattern(100'000, 99));
  for (int i = 0; i < 100; ++i) cluster.remove(client, "k" + std::to_string(i));
  CHECK(cluster.nodes[0].node->storage().segment().extents().used() == 0);
  CHECK(cluster.put(client, "one big", pattern(2 * kMiB - 64, 1)) == Code::kOk);  // nothing is left apart
}

TEST_CASE("store: a pool full of objects in use says NO_SPACE at the deadline") {
  Cluster cluster;
  cluster.master_options.catalog.lease_ns = 60 * kSecond;
  cluster.master_options.catalog.high_percent = cluster.master_options.catalog.low_percent = 100;
  Client& client = cluster.simple(1 * kMiB);
  for (int i = 0; i < 4; ++i) {
    REQUIRE(cluster.put(client, "k" + std::to_string(i), pattern(250'000, i)) == Code::kOk);
    REQUIRE(cluster.get(client, "k" + std::to_string(i)).has_value());
  }
  CHECK(cluster.put(client, "more", pattern(250'000, 9), Commit::kSync, 100 * kMillisecond) == Code::kNoSpace);
  CHECK(cluster.master->catalog().stats().evicted == 0);
}

TEST_CASE("store: without a node a put says so, without a master everything does, and it names the address") {
  Cluster cluster;
  ClientOptions options;
  options.no_node_wait_ns = 50 * kMillisecond;
  Client& client = cluster.add_client(options);
  CHECK(cluster.put(client, "k", pattern(10, 1), Commit::kSync, 100 * kMillisecond) == Code::kUnavailable);
  auto answer =
      cluster.codes([&](Client::CodesDone done) { client.exists({"k"}, 100 * kMillisecond, std::move(done)); });
  REQUIRE_FALSE(answer.has_value());
  CHECK(answer.error().code == Code::kUnavailable);
  CHECK(answer.error().message.find("inproc:master") != std::string::npos);
  cluster.start_master();
  CHECK(cluster.put(client, "k", pattern(10, 1)) == Code::kUnavailable);
  CHECK(cluster.get_code(client, "k") == Code::kNotFound);
}

TEST_CASE("store: async puts are read by their own client at once and by others soon") {
  Cluster cluster;
  Client& client = cluster.simple();
  Client& other = cluster.add_client();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1), Commit::kAsync) == Code::kOk);
  CHECK(cluster.get_code(client, "k") == Code::kOk);
  CHECK(cluster.exists(client, "k"));
  bool committed = false;
  client.when_committed([&] { committed = true; });
  REQUIRE(cluster.until([&] { return committed; }));
  CHECK(client.commits().pending() == 0);
  CHECK(cluster.exists(other, "k"));
  REQUIRE(cluster.put(client, "gone", pattern(5000, 1), Commit::kAsync) == Code::kOk);
  cluster.remove(client, "gone");
  CHECK(cluster.get_code(client, "gone") == Code::kNotFound);
}

TEST_CASE("store: closing a client ends what is under way, once") {
  Cluster cluster;
  Client& client = cluster.simple();
  int done = 0, quiet = 0;
  std::vector<PutItem> items(1);
  items[0].key = "k";
  items[0].value = pattern(100'000, 1);
  auto operation = client.put(std::move(items), Commit::kSync,
                              {.timeout_ns = 0, .on_done = [&] { ++done; }, .on_quiet = [&] { ++quiet; }});
  cluster.clients[0].client.reset();
  CHECK(operation->done());
  CHECK(operation->results()[0].error().code == Code::kClosed);
  REQUIRE(cluster.until([&] { return quiet == 1; }));
  CHECK(done == 1);
}

TEST_CASE("store: embedded, the whole pool is one object") {
  Cluster cluster;
  auto engine = cluster.make_engine();
  auto member = Member::create(cluster.reactor, cluster.network, *engine, {.master = "", .lend_bytes = 4 * kMiB});
  REQUIRE_MESSAGE(member, (member ? "" : member.error().text()));
  Client& client = (*member)->client();
  for (size_t size : {10u, 5000u, 1'000'000u}) {
    std::string key = std::to_string(size);
    REQUIRE(cluster.put(client, key, pattern(size, size)) == Code::kOk);
    CHECK(*cluster.get(client, key) == pattern(size, size));
  }
  CHECK(cluster.list(client, "").size() == 3);
  CHECK(cluster.remove(client, "10") == Code::kOk);
  CHECK(cluster.get_code(client, "10") == Code::kNotFound);
  member->reset();
}
