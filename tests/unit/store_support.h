// A pool in one thread: a master, nodes and clients with engines of their own over in-process streams.
#pragma once

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "io/inproc.h"
#include "store/client.h"
#include "store/master.h"
#include "store/node.h"
#include "transport/builtin.h"
#include "unit/io_support.h"

namespace moontide::store::test {

inline constexpr uint64_t kMiB = 1 << 20;

inline engine::TransportFactory factory() {
  return [](memory::Registry& registry, const engine::EngineOptions&) {
    return transport::builtin(registry, {.shm = false, .cma = false, .tcp_streams = 1});
  };
}

struct Cluster {
  io::EpollReactor reactor;
  io::InprocNetwork network{reactor};
  MasterOptions master_options{.listen = "inproc:master"};
  std::unique_ptr<Master> master;
  struct NodeProcess {
    std::unique_ptr<engine::Engine> engine;
    std::shared_ptr<memory::Arena> arena;
    std::unique_ptr<Node> node;
  };
  struct ClientProcess {
    std::unique_ptr<engine::Engine> engine;
    std::unique_ptr<Client> client;
  };
  std::vector<NodeProcess> nodes;
  std::vector<ClientProcess> clients;
  int engines = 0;

  Cluster() {
    master_options.tick_ns = 5 * kMillisecond;
    master_options.earlier_lease_ns = 0;  // tests of restarts set it
    master_options.catalog.lease_ns = 200 * kMillisecond;
    master_options.node_grace_ns = 300 * kMillisecond;
  }
  ~Cluster() {
    clients.clear();
    nodes.clear();
  }

  bool until(const std::function<bool()>& ready) { return io::test::run_until(reactor, ready); }

  std::unique_ptr<engine::Engine> make_engine() {
    engine::EngineOptions options;
    options.listen = "inproc:engine-" + std::to_string(++engines);
    options.local_reads = engine::LocalReads::kOff;
    auto engine = engine::Engine::create(reactor, network, options, factory());
    REQUIRE_MESSAGE(engine, (engine ? "" : engine.error().text()));
    return std::move(*engine);
  }
  void start_master(uint32_t elector_term = 0) {
    master.reset();
    master_options.elector_term = elector_term;
    auto made = Master::create(reactor, network, master_options);
    REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    master = std::move(*made);
  }
  Node& add_node(uint64_t bytes, NodeOptions options = {}) {
    NodeProcess process;
    process.engine = make_engine();
    auto arena = memory::Arena::create_private(bytes);
    REQUIRE(arena);
    process.arena = *arena;
    options.master = "inproc:master";
    auto node = Node::create(reactor, network, *process.engine, *arena, options);
    REQUIRE_MESSAGE(node, (node ? "" : node.error().text()));
    process.node = std::move(*node);
    nodes.push_back(std::move(process));
    Node& added = *nodes.back().node;
    REQUIRE(until([&] { return added.joined(); }));
    return added;
  }
  Client& add_client(ClientOptions options = {}) {
    ClientProcess process;
    process.engine = make_engine();
    options.master = "inproc:master";
    process.client = std::make_unique<Client>(reactor, network, *process.engine, options);
    clients.push_back(std::move(process));
    return *clients.back().client;
  }
  // A master, one node, one client.
  Client& simple(uint64_t bytes = 4 * kMiB) {
    start_master();
    add_node(bytes);
    return add_client();
  }

  std::vector<Result<uint64_t>> finish(const OperationRef& operation) {
    REQUIRE(until([&] { return operation->quiet(); }));
    return operation->results();
  }
  Code put(Client& client, const std::string& key, const Bytes& value, Commit commit = Commit::kSync,
           int64_t timeout_ns = 0) {
    std::vector<PutItem> items(1);
    items[0].key = key;
    items[0].value = value;
    auto results = finish(client.put(std::move(items), commit, {.timeout_ns = timeout_ns}));
    return results[0] ? Code::kOk : results[0].error().code;
  }
  Result<Bytes> get(Client& client, const std::string& key, size_t room = 2 * kMiB) {
    Bytes into(room);
    std::vector<GetItem> items(1);
    items[0] = {key, {{reinterpret_cast<uint64_t>(into.data()), into.size()}}};
    auto results = finish(client.get(std::move(items), {}));
    if (!results[0]) return std::unexpected(results[0].error());
    into.resize(*results[0]);
    return into;
  }
  Code get_code(Client& client, const std::string& key) {
    auto value = get(client, key);
    return value ? Code::kOk : value.error().code;
  }
  Result<std::vector<Code>> codes(const std::function<void(Client::CodesDone)>& ask) {
    std::optional<Result<std::vector<Code>>> answer;
    ask([&](Result<std::vector<Code>> codes) { answer = std::move(codes); });
    REQUIRE(until([&] { return answer.has_value(); }));
    return *answer;
  }
  bool exists(Client& client, const std::string& key) {
    auto answer = codes([&](Client::CodesDone done) { client.exists({key}, 0, std::move(done)); });
    REQUIRE(answer);
    return answer->at(0) == Code::kOk;
  }
  Code remove(Client& client, const std::string& key) {
    auto answer = codes([&](Client::CodesDone done) { client.remove({key}, 0, std::move(done)); });
    REQUIRE(answer);
    return answer->at(0);
  }
  std::vector<std::string> list(Client& client, const std::string& prefix) {
    std::vector<std::string> keys;
    bool answered = false;
    client.list(prefix, "", 1000, 0, [&](Result<wire::ListReply> reply) {
      answered = true;
      REQUIRE(reply);
      for (auto& item : reply->items) keys.push_back(item.key);
    });
    REQUIRE(until([&] { return answered; }));
    return keys;
  }
};

}  // namespace moontide::store::test
