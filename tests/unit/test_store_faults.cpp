// The pool when its parts restart, vanish, lag or lie.
#include "unit/store_support.h"

using namespace moontide;
using namespace moontide::store;
using namespace moontide::store::test;
using io::test::pattern;

namespace {

// Speaks to the master as a client or node would, one message at a time.
struct RawSession {
  Cluster& cluster;
  std::unique_ptr<rpc::Channel> channel;
  bool closed = false;

  explicit RawSession(Cluster& pool) : cluster(pool) {
    bool connected = false;
    cluster.network.connect("inproc:master", kSecond, [&](Result<std::unique_ptr<io::Stream>> stream) {
      REQUIRE(stream);
      channel = std::make_unique<rpc::Channel>(cluster.reactor, std::move(*stream));
      channel->start({.request = {}, .notice = {}, .closed = [this](Error) { closed = true; }});
      connected = true;
    });
    REQUIRE(cluster.until([&] { return connected; }));
  }
  Result<Bytes> ask(uint16_t type, Bytes payload) {
    std::optional<Result<Bytes>> answer;
    channel->call(type, std::move(payload), kSecond, [&](Result<rpc::Reply> reply) {
      answer = reply ? Result<Bytes>(std::move(reply->payload)) : Result<Bytes>(std::unexpected(reply.error()));
    });
    REQUIRE(cluster.until([&] { return answer.has_value(); }));
    return *answer;
  }
};

}  // namespace

TEST_CASE("store faults: a master that restarts alone gets its facts back from the nodes") {
  Cluster cluster;
  Client& client = cluster.simple();
  for (int i = 0; i < 20; ++i) REQUIRE(cluster.put(client, "k" + std::to_string(i), pattern(5000, i)) == Code::kOk);
  REQUIRE(cluster.remove(client, "k7") == Code::kOk);
  Node& node = *cluster.nodes[0].node;
  auto all_confirmed = [&] {
    for (auto& [generation, entry] : node.storage().segment().inventory()) {
      if (!entry.confirmed) return false;
    }
    return true;
  };
  REQUIRE(cluster.until(all_confirmed));
  uint32_t before = cluster.master->term();
  cluster.start_master();
  REQUIRE(cluster.until([&] { return node.joined() && node.term() > before; }));
  CHECK(cluster.master->term() == node.term());
  CHECK(cluster.master->catalog().stats().committed == 19);
  for (int i = 0; i < 20; ++i) {
    std::string key = "k" + std::to_string(i);
    CHECK(cluster.exists(client, key) == (i != 7));
    if (i != 7) CHECK(*cluster.get(client, key) == pattern(5000, i));
  }
  CHECK(cluster.put(client, "k7", pattern(5000, 77)) == Code::kOk);
  CHECK(*cluster.get(client, "k7") == pattern(5000, 77));
  auto result = cluster.master->catalog().check_invariants();
  CHECK_MESSAGE(result.has_value(), (result ? "" : result.error().text()));
}

TEST_CASE("store faults: puts go on over a master's restart") {
  Cluster cluster;
  Client& client = cluster.simple(16 * kMiB);
  std::vector<OperationRef> operations;
  for (int i = 0; i < 60; ++i) {
    std::vector<PutItem> items(1);
    items[0].key = "k" + std::to_string(i);
    items[0].value = pattern(20'000, i);
    operations.push_back(client.put(std::move(items), i % 2 == 0 ? Commit::kSync : Commit::kAsync, {}));
    if (i == 20 || i == 40) cluster.start_master();
    // a few turns in between, so that puts are at every stage when the master goes
    int turns = 0;
    REQUIRE(cluster.until([&] { return ++turns > i % 7; }));
  }
  for (auto& operation : operations) {
    auto results = cluster.finish(operation);
    CHECK_MESSAGE(results[0].has_value(), (results[0] ? "" : results[0].error().text()));
  }
  bool committed = false;
  client.when_committed([&] { committed = true; });
  REQUIRE(cluster.until([&] { return committed; }));
  int found = 0;
  for (int i = 0; i < 60; ++i) {
    auto value = cluster.get(client, "k" + std::to_string(i));
    if (!value) continue;
    ++found;
    CHECK(*value == pattern(20'000, i));
  }
  // What was committed in the instant before a restart and not confirmed to its node yet may be lost, as by eviction.
  CHECK(found >= 40);
  CHECK(cluster.master->catalog().check_invariants().has_value());
}

TEST_CASE("store faults: async commits survive the master's absence") {
  Cluster cluster;
  Client& client = cluster.simple();
  Client& other = cluster.add_client();
  REQUIRE(cluster.put(client, "before", pattern(100, 1)) == Code::kOk);
  std::vector<PutItem> items(1);
  items[0].key = "k";
  items[0].value = pattern(50'000, 2);
  auto operation = client.put(std::move(items), Commit::kAsync, {});
  REQUIRE(cluster.until([&] { return operation->done(); }));
  cluster.master.reset();
  CHECK(cluster.get_code(client, "k") == Code::kOk);  // its own put, without a master
  CHECK(client.commits().pending() == 1);
  cluster.start_master();
  bool committed = false;
  client.when_committed([&] { committed = true; });
  REQUIRE(cluster.until([&] { return committed; }));
  CHECK(client.commits().lost() == 0);
  auto value = cluster.get(other, "k");
  REQUIRE(value.has_value());
  CHECK(*value == pattern(50'000, 2));
}

TEST_CASE("store faults: a node that dies takes its objects along, and a new one takes over") {
  Cluster cluster;
  Client& client = cluster.simple();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  cluster.nodes.clear();
  CHECK(cluster.get_code(client, "k") == Code::kNotFound);
  cluster.add_node(4 * kMiB);
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().nodes == 1; }));  // the dead one is given up
  CHECK_FALSE(cluster.exists(client, "k"));
  CHECK(cluster.put(client, "k", pattern(5000, 2)) == Code::kOk);
  CHECK(*cluster.get(client, "k") == pattern(5000, 2));
}

TEST_CASE("store faults: a put that was granted on a node that just died goes to another one") {
  Cluster cluster;
  cluster.start_master();
  cluster.add_node(4 * kMiB);
  cluster.add_node(4 * kMiB);
  Client& client = cluster.add_client();
  REQUIRE(cluster.put(client, "warm", pattern(10, 1)) == Code::kOk);
  std::vector<OperationRef> operations;
  for (int i = 0; i < 10; ++i) {
    std::vector<PutItem> items(1);
    items[0].key = "k" + std::to_string(i);
    items[0].value = pattern(20'000, i);
    operations.push_back(client.put(std::move(items), Commit::kSync, {}));
  }
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().unfinished > 0; }));
  cluster.nodes.pop_back();
  for (auto& operation : operations) {
    auto results = cluster.finish(operation);
    CHECK_MESSAGE(results[0].has_value(), (results[0] ? "" : results[0].error().text()));
  }
}

TEST_CASE("store faults: another node at the address of a dead one is not mistaken for it") {
  Cluster cluster;
  Client& client = cluster.simple();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  REQUIRE(cluster.get(client, "k").has_value());  // its place is cached
  cluster.nodes.clear();
  cluster.engines = 0;  // the next engine gets the same address
  cluster.add_node(4 * kMiB);
  CHECK(cluster.get_code(client, "k") == Code::kNotFound);
}

TEST_CASE("store faults: a put whose client vanishes expires, its key and its space come back") {
  Cluster cluster;
  cluster.master_options.catalog.put_timeout_ns = 100 * kMillisecond;
  Client& client = cluster.simple(1 * kMiB);
  RawSession raw(cluster);
  REQUIRE(raw.ask(wire::kClientHello, wire::encode(wire::ClientHello{{}, {5, 5}})));
  auto started = raw.ask(wire::kPutStart, wire::encode(wire::PutStart{{{"k", 600'000, 1}}}));
  REQUIRE(started);
  auto grant = wire::decode<wire::PutStartReply>(*started);
  REQUIRE(grant);
  CHECK(grant->items[0].code == Code::kOk);
  CHECK(cluster.put(client, "k", pattern(600'000, 1)) == Code::kAlreadyExists);
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().unfinished == 0; }));
  CHECK(cluster.put(client, "k", pattern(600'000, 2)) == Code::kOk);
  auto late = raw.ask(wire::kPutEnd,
                      wire::encode(wire::PutEnd{{{"k", grant->items[0].generation, grant->nodes[0].node, 0, 0}}}));
  REQUIRE(late);
  CHECK(wire::decode<wire::Codes>(*late)->codes[0] == Code::kStale);
  CHECK(*cluster.get(client, "k") == pattern(600'000, 2));
}

TEST_CASE("store faults: a node honours no ticket that is forged, foreign or over") {
  Cluster cluster;
  Client& client = cluster.simple();
  REQUIRE(cluster.put(client, "warm", pattern(10, 1)) == Code::kOk);
  RawSession raw(cluster);
  REQUIRE(raw.ask(wire::kClientHello, wire::encode(wire::ClientHello{{}, {5, 5}})));
  auto started = raw.ask(wire::kPutStart, wire::encode(wire::PutStart{{{"k", 3, 1}, {"l", 3, 2}}}));
  REQUIRE(started);
  auto grant = *wire::decode<wire::PutStartReply>(*started);
  engine::LinkRef link;
  cluster.clients[0].engine->open(grant.nodes[0].address, kSecond,
                                  [&](Result<engine::LinkRef> opened) { link = *opened; });
  REQUIRE(cluster.until([&] { return link != nullptr; }));
  auto pull = [&](wire::StorePullItem item) {
    std::optional<Code> code;
    link->call(wire::kStorePull, wire::encode_traced(wire::StorePull{{std::move(item)}}, {}, link->version()), kSecond,
               [&](Result<rpc::Reply> reply) {
                 REQUIRE(reply);
                 code = wire::decode<wire::StorePullReply>(reply->payload)->items[0].code;
               });
    REQUIRE(cluster.until([&] { return code.has_value(); }));
    return *code;
  };
  wire::StorePullItem good{"k", grant.items[0].generation, 3, grant.items[0].tag, {}, pattern(3, 1)};
  auto with = [&](auto change) {
    wire::StorePullItem item = good;
    change(item);
    return pull(std::move(item));
  };
  CHECK(with([](auto& item) { item.tag ^= 1; }) == Code::kDenied);
  CHECK(with([](auto& item) { item.key = "m"; }) == Code::kDenied);
  CHECK(with([](auto& item) { ++item.generation.sequence; }) == Code::kDenied);
  CHECK(with([](auto& item) { item.length = 2, item.inline_value.resize(2); }) == Code::kDenied);
  CHECK(with([](auto& item) { item.inline_value.resize(2); }) == Code::kInvalid);
  CHECK(with([](auto& item) { item.parts.push_back({77, 1, 0, 3}), item.inline_value.clear(); }) == Code::kDenied);
  CHECK(with([](auto& item) {
          item.parts = {{1, 1, 0, UINT64_MAX}, {1, 1, 0, 4}};
          item.inline_value.clear();
        }) == Code::kInvalid);
  CHECK(pull(good) == Code::kOk);
  CHECK(pull(good) == Code::kOk);  // the answer got lost: asked again, the same place
  // A put that was revoked: its ticket comes late.
  REQUIRE(raw.ask(wire::kPutRevoke, wire::encode(wire::PutRevoke{{{"l", grant.items[1].generation}}})));
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().retiring == 0; }));
  CHECK(pull({"l", grant.items[1].generation, 3, grant.items[1].tag, {}, pattern(3, 1)}) == Code::kStale);
  CHECK(cluster.nodes[0].node->storage().segment().inventory().size() == 2);
}

TEST_CASE("store faults: an unconfirmed entry is not shown by a new master") {
  Cluster cluster;
  cluster.master_options.catalog.put_timeout_ns = 200 * kMillisecond;
  Client& client = cluster.simple();
  RawSession raw(cluster);
  REQUIRE(raw.ask(wire::kClientHello, wire::encode(wire::ClientHello{{}, {5, 5}})));
  auto started = raw.ask(wire::kPutStart, wire::encode(wire::PutStart{{{"k", 3, 1}}}));
  auto grant = *wire::decode<wire::PutStartReply>(*started);
  engine::LinkRef link;
  cluster.clients[0].engine->open(grant.nodes[0].address, kSecond,
                                  [&](Result<engine::LinkRef> opened) { link = *opened; });
  REQUIRE(cluster.until([&] { return link != nullptr; }));
  bool pulled = false;
  wire::StorePullItem item{"k", grant.items[0].generation, 3, grant.items[0].tag, {}, pattern(3, 1)};
  link->call(wire::kStorePull, wire::encode_traced(wire::StorePull{{item}}, {}, link->version()), kSecond,
             [&](Result<rpc::Reply>) { pulled = true; });
  REQUIRE(cluster.until([&] { return pulled; }));
  Node& node = *cluster.nodes[0].node;
  uint32_t before = node.term();
  cluster.start_master();
  REQUIRE(cluster.until([&] { return node.joined() && node.term() > before; }));
  CHECK_FALSE(cluster.exists(client, "k"));
  CHECK(cluster.list(client, "").empty());
  REQUIRE(cluster.until([&] { return node.storage().segment().inventory().empty(); }));  // it goes in time
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().retiring == 0; }));
}

TEST_CASE("store faults: garbage, foreign messages and second hellos are refused, the master stays") {
  Cluster cluster;
  Client& client = cluster.simple();
  // a stranger whose first word is no good hello has said its last
  auto stranger_says = [&](uint16_t type, Bytes message) {
    RawSession stranger(cluster);
    return stranger.ask(type, std::move(message)).error().code;
  };
  CHECK(stranger_says(wire::kLocate, wire::encode(wire::Keys{{"k"}})) == Code::kInvalid);
  CHECK(stranger_says(wire::kInventory, {}) == Code::kInvalid);
  CHECK(stranger_says(wire::kClientHello, pattern(3, 1)) == Code::kInvalid);
  CHECK(stranger_says(wire::kClientHello, wire::encode(wire::ClientHello{{9, 9}, {1, 1}})) == Code::kIncompatible);
  RawSession raw(cluster);
  REQUIRE(raw.ask(wire::kClientHello, wire::encode(wire::ClientHello{{}, {1, 1}})));
  CHECK(raw.ask(wire::kClientHello, wire::encode(wire::ClientHello{{}, {1, 1}})).error().code == Code::kInvalid);
  CHECK(raw.ask(wire::kLocate, pattern(100, 1)).error().code == Code::kInvalid);
  CHECK(raw.ask(9999, {}).error().code == Code::kUnsupported);
  CHECK(raw.ask(wire::kLocate, wire::encode(wire::Keys{std::vector<std::string>(1025, "k")})).error().code ==
        Code::kInvalid);
  CHECK(cluster.put(client, "k", pattern(10, 1)) == Code::kOk);

  RawSession node(cluster);
  wire::NodeHello hello;
  hello.node = {7, 7};
  hello.capacity_bytes = 1024;
  hello.address = "inproc:nobody";
  REQUIRE(node.ask(wire::kNodeHello, wire::encode(hello)));
  wire::Inventory lie{{{"k", {1, 99}, 5000, 0, 0, true}}};  // more than it lends
  CHECK(node.ask(wire::kInventory, wire::encode(lie)).error().code == Code::kInvalid);
  REQUIRE(cluster.until([&] { return node.closed; }));
  CHECK(cluster.get_code(client, "k") == Code::kOk);
}

TEST_CASE("store faults: sessions that fall silent are closed, and their number is bounded") {
  Cluster cluster;
  cluster.master_options.session_timeout_ns = 100 * kMillisecond;
  cluster.master_options.sessions_max = 4;
  cluster.start_master();
  {
    RawSession silent(cluster);
    REQUIRE(cluster.until([&] { return silent.closed; }));
  }
  std::vector<std::unique_ptr<RawSession>> many;
  for (int i = 0; i < 6; ++i) many.push_back(std::make_unique<RawSession>(cluster));
  REQUIRE(cluster.until([&] { return many[5]->closed; }));
  CHECK(cluster.master->sessions() <= 4);
  many.clear();
}

TEST_CASE("store faults: a node that has seen a later term makes the master begin one above it") {
  Cluster cluster;
  cluster.start_master(40);
  Node& node = cluster.add_node(1 * kMiB);
  Client& client = cluster.add_client();
  REQUIRE(cluster.put(client, "k", pattern(5000, 1)) == Code::kOk);
  CHECK(node.term() == 41);
  REQUIRE(cluster.until([&] { return node.storage().segment().inventory().begin()->second.confirmed; }));
  cluster.start_master(3);  // lost its disk
  REQUIRE(cluster.until([&] { return node.joined() && cluster.master->term() == 42; }));
  CHECK(*cluster.get(client, "k") == pattern(5000, 1));
  REQUIRE(cluster.put(client, "l", pattern(10, 1)) == Code::kOk);
}
