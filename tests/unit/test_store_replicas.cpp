// Objects on several nodes, end to end in one thread: nodes that fail while they are put, and afterwards.
#include <algorithm>
#include <set>

#include "store/storage.h"
#include "unit/store_support.h"

using namespace moontide;
using namespace moontide::store;
using namespace moontide::store::test;
using io::test::pattern;

namespace {

struct ReplicaCluster : Cluster {
  Code put_on(Client& client, const std::string& key, const Bytes& value, const catalog::Placement& placement,
              Commit commit = Commit::kSync) {
    std::vector<PutItem> items(1);
    items[0].key = key;
    items[0].value = value;
    auto results = finish(client.put(std::move(items), commit, {}, placement));
    return results[0] ? Code::kOk : results[0].error().code;
  }
  std::vector<InstanceId> places(Client& client, const std::string& key) {
    std::optional<Result<std::vector<Result<Location>>>> answer;
    client.places({key}, 0, [&](Result<std::vector<Result<Location>>> places) { answer = std::move(places); });
    REQUIRE(until([&] { return answer.has_value(); }));
    REQUIRE(*answer);
    std::vector<InstanceId> nodes;
    const Result<Location>& location = answer->value()[0];
    if (!location) return nodes;
    nodes.push_back(location->node);
    for (const OtherPlace& place : location->further) nodes.push_back(place.node);
    return nodes;
  }
  Client& three_nodes() {
    start_master();
    for (int i = 0; i < 3; ++i) add_node(4 * kMiB);
    return add_client();
  }
  // Flips a bit of each payload on the node.
  void spoil(const InstanceId& id) {
    for (NodeProcess& process : nodes) {
      if (process.node->id() != id) continue;
      for (const auto& [generation, entry] : process.node->storage().segment().inventory())
        process.arena->data()[entry.offset + sizeof(EntryHeader)] ^= std::byte{1};
    }
  }
  void kill(const InstanceId& id) {
    auto process = std::ranges::find_if(nodes, [&](const NodeProcess& one) { return one.node->id() == id; });
    REQUIRE(process != nodes.end());
    process->node.reset();  // before its engine, which moving another into its place would end first
    process->engine.reset();
    nodes.erase(process);
  }
};

}  // namespace

TEST_CASE("store: an object with replicas is read while one of its nodes lives") {
  ReplicaCluster cluster;
  Client& client = cluster.three_nodes();
  for (size_t size : {size_t{100}, size_t{100'000}}) {
    CAPTURE(size);
    const std::string key = "k" + std::to_string(size);
    REQUIRE(cluster.put_on(client, key, pattern(size, 1), {.replicas = 3}) == Code::kOk);
    CHECK(cluster.places(client, key).size() == 3);
  }
  for (auto& process : cluster.nodes) CHECK(process.node->storage().segment().inventory().size() == 2);
  for (int left = 2; left >= 1; --left) {  // no node is left for a repair
    cluster.kill(cluster.places(client, "k100").front());
    for (size_t size : {size_t{100}, size_t{100'000}}) {
      CHECK(*cluster.get(client, "k" + std::to_string(size)) == pattern(size, 1));
    }
    REQUIRE(cluster.until([&] { return cluster.places(client, "k100").size() == static_cast<size_t>(left); }));
  }
}

TEST_CASE("store: a node that cannot take its replica costs nothing but that") {
  ReplicaCluster cluster;
  cluster.start_master();
  cluster.add_node(4 * kMiB);
  NodeOptions busy;
  busy.jobs_max = 0;
  cluster.add_node(4 * kMiB, busy);
  Client& client = cluster.add_client();
  for (Commit commit : {Commit::kSync, Commit::kAsync}) {
    const std::string key = commit == Commit::kSync ? "sync" : "async";
    REQUIRE(cluster.put_on(client, key, pattern(20'000, 2), {.replicas = 2}, commit) == Code::kOk);
    CHECK(*cluster.get(client, key) == pattern(20'000, 2));
    REQUIRE(cluster.until([&] { return client.commits().pending() == 0; }));
    CHECK(cluster.places(client, key) == std::vector{cluster.nodes[0].node->id()});
  }
  // What was reserved there is given back; so is, again and again, what a repair reserves.
  const auto& catalog = cluster.master->catalog();
  REQUIRE(cluster.until([&] { return catalog.node(cluster.nodes[1].node->id())->used_bytes() == 0; }));
}

TEST_CASE("store: a node that does not answer holds a put up for half its time, not for all of it") {
  ReplicaCluster cluster;
  cluster.start_master();
  cluster.add_node(4 * kMiB);
  cluster.add_node(4 * kMiB);
  Client& client = cluster.add_client();
  std::vector<rpc::Responder> unanswered;
  cluster.nodes[1].engine->serve(wire::kStorePull,
                                 [&unanswered](const engine::LinkRef&, const rpc::Incoming&, rpc::Responder responder) {
                                   unanswered.push_back(std::move(responder));
                                 });
  std::vector<PutItem> items(1);
  items[0].key = "k";
  items[0].value = pattern(20'000, 3);
  auto results =
      cluster.finish(client.put(std::move(items), Commit::kSync, {.timeout_ns = 400 * kMillisecond}, {.replicas = 2}));
  CHECK(results[0].has_value());
  CHECK(cluster.places(client, "k") == std::vector{cluster.nodes[0].node->id()});
}

TEST_CASE("store: where the proof of one replica fails the next one is read") {
  ReplicaCluster cluster;
  Client& client = cluster.three_nodes();
  REQUIRE(cluster.put_on(client, "k", pattern(5000, 4), {.replicas = 2}) == Code::kOk);
  const auto places = cluster.places(client, "k");
  REQUIRE(places.size() == 2);
  cluster.spoil(places[0]);
  CHECK(*cluster.get(client, "k") == pattern(5000, 4));
  CHECK(client.counters().proofs_failed == 1);
  cluster.spoil(places[1]);
  CHECK(cluster.get_code(client, "k") == Code::kNotFound);
}

TEST_CASE("store: placement is obeyed, one that is impossible is refused") {
  ReplicaCluster cluster;
  Client& client = cluster.three_nodes();
  const InstanceId a = cluster.nodes[0].node->id(), b = cluster.nodes[1].node->id(), c = cluster.nodes[2].node->id();
  REQUIRE(cluster.put_on(client, "b", pattern(10, 1), {.replicas = 1, .prefer = {b}, .avoid = {}}) == Code::kOk);
  CHECK(cluster.places(client, "b") == std::vector{b});
  REQUIRE(cluster.put_on(client, "c", pattern(10, 1), {.replicas = 3, .prefer = {}, .avoid = {a, b}}) == Code::kOk);
  CHECK(cluster.places(client, "c") == std::vector{c});
  CHECK(cluster.put_on(client, "none", pattern(10, 1), {.replicas = 9, .prefer = {}, .avoid = {}}) == Code::kInvalid);
}

TEST_CASE("store: the replica in the reader's own process is read first") {
  ReplicaCluster cluster;
  cluster.three_nodes();
  auto& process = cluster.nodes[1];
  Client local(cluster.reactor, cluster.network, *process.engine, {.master = "inproc:master"});
  REQUIRE(cluster.put_on(local, "k", pattern(5000, 5), {.replicas = 3}) == Code::kOk);
  CHECK(cluster.places(local, "k").front() == process.node->id());
}

TEST_CASE("store: a restarted master makes one object of the replicas, a remove ends all of them") {
  ReplicaCluster cluster;
  Client& client = cluster.three_nodes();
  REQUIRE(cluster.put_on(client, "k", pattern(5000, 6), {.replicas = 3}) == Code::kOk);
  cluster.start_master(7);
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().nodes_ready == 3; }));
  CHECK(cluster.places(client, "k").size() == 3);
  CHECK(*cluster.get(client, "k") == pattern(5000, 6));
  CHECK(cluster.remove(client, "k") == Code::kOk);
  for (auto& process : cluster.nodes) CHECK(process.node->storage().segment().inventory().empty());
  CHECK(cluster.get_code(client, "k") == Code::kNotFound);
}

TEST_CASE("store: a lost replica is made again from one that is left, byte for byte") {
  ReplicaCluster cluster;
  Client& client = cluster.three_nodes();
  const std::vector<size_t> sizes = {0, 100, 100'000, 1'000'000};
  for (size_t size : sizes) {
    REQUIRE(cluster.put_on(client, std::to_string(size), pattern(size, 8), {.replicas = 2}) == Code::kOk);
  }
  auto whole = [&] { return cluster.master->catalog().stats().replicas_short == 0; };
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    cluster.kill(cluster.places(client, "100").front());
    REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().nodes == 2; }));
    REQUIRE(cluster.until(whole));
    for (size_t size : sizes) {
      CHECK(cluster.places(client, std::to_string(size)).size() == 2);
      CHECK(*cluster.get(client, std::to_string(size)) == pattern(size, 8));
    }
    cluster.add_node(4 * kMiB);
  }
  CHECK(cluster.master->catalog().stats().repairs >= 3);
  // what was repaired is confirmed: a new master shows all of it
  cluster.start_master(9);
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().nodes_ready == 3; }));
  for (size_t size : sizes) CHECK(cluster.places(client, std::to_string(size)).size() == 2);
}

TEST_CASE("store: bytes that changed at rest are not spread by a repair") {
  ReplicaCluster cluster;
  Client& client = cluster.three_nodes();
  REQUIRE(cluster.put_on(client, "k", pattern(5000, 9), {.replicas = 2}) == Code::kOk);
  const auto places = cluster.places(client, "k");
  cluster.spoil(places[1]);
  cluster.kill(places[0]);
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().repairs_failed > 0; }));
  CHECK(cluster.places(client, "k") == std::vector{places[1]});
  REQUIRE(cluster.until([&] { return cluster.master->catalog().stats().retiring == 0; }));
}

TEST_CASE("store: a repair that is called off while its bytes come in leaves nothing behind") {
  ReplicaCluster cluster;
  REQUIRE(cluster.put(cluster.simple(), "k", pattern(5000, 10)) == Code::kOk);
  const Node& source = *cluster.nodes[0].node;
  const auto& [generation, entry] = *source.storage().segment().inventory().begin();
  wire::NodeOrder repair{.term = generation.term, .floor = {}, .confirm = {}, .retire = {}};
  repair.repair.value.push_back(
      {"k", generation, entry.length, entry.crc, source.id(), cluster.nodes[0].engine->address(), entry.offset});
  wire::NodeOrder retire{.term = generation.term, .floor = {}, .confirm = {}, .retire = {{generation, 0}}};
  auto engine = cluster.make_engine();
  auto arena = memory::Arena::create_private(kMiB);
  REQUIRE(arena);
  auto region = engine->add_region((*arena)->data(), (*arena)->size(), memory::kReadable, "arena", *arena);
  REQUIRE(region);
  for (bool called_off : {true, false}) {
    CAPTURE(called_off);
    std::vector<Generation> retired;
    std::optional<Code> outcome;
    const NodeOptions options;
    Storage storage(
        *engine, *arena, SipKey{1, 2}, options,
        [&](const std::vector<Generation>& generations) {
          retired.insert(retired.end(), generations.begin(), generations.end());
        },
        [&](const wire::RepairedItem& item) { outcome = item.code; });
    storage.close_gate(generation.term);
    storage.open_gate({generation.term, generation.sequence + 1});  // a ticket of that generation would be over
    storage.obey(repair);
    CHECK(storage.jobs() == 1);
    if (called_off) storage.obey(retire);
    CHECK(retired.empty());  // not before nothing can become an entry any more
    REQUIRE(cluster.until([&] { return storage.jobs() == 0; }));
    CHECK(outcome == (called_off ? Code::kStale : Code::kOk));
    CHECK(storage.segment().inventory().size() == (called_off ? 0 : 1));
    CHECK(storage.segment().extents().used() == (called_off ? 0 : catalog::entry_footprint(5000)));
    CHECK(retired.size() == (called_off ? 1 : 0));
  }
}
