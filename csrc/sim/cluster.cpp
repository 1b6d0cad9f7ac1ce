#include "sim/cluster.h"

namespace moontide::sim {
namespace {

constexpr const char* kMasterAddress = "sim:master:1";

}  // namespace

Cluster::Cluster(const ClusterOptions& options)
    : options_(options), universe_(options.seed, options.paths), nodes_(options.nodes), clients_(options.clients) {
  hosts_.push_back("master");
  auto begin = [](const Result<>& started) { MT_CHECK(started, started ? "" : started.error().text()); };
  begin(start_master());
  for (size_t i = 0; i < options.nodes; ++i) {
    hosts_.push_back("node" + std::to_string(i));
    begin(start_node(i));
  }
  for (size_t i = 0; i < options.clients; ++i) {
    hosts_.push_back("client" + std::to_string(i));
    begin(start_client(i));
  }
}

Cluster::~Cluster() {
  clients_.clear();
  for (auto& runs : nodes_) {
    for (NodeMachine& run : runs) {
      run.node.reset();
      run.engine.reset();
    }
  }
  for (MasterMachine& run : masters_) run.master.reset();
}

Result<> Cluster::start_master() {
  MasterMachine run;
  run.machine = std::make_unique<Machine>(universe_, "master");
  store::MasterOptions options;
  options.listen = kMasterAddress;
  // As an elector would: no two masters begin in one term, whatever they have forgotten.
  options.elector_term = static_cast<uint32_t>(masters_.size());
  options.events_max = options_.seed % 2 == 0 ? 4 : 1024;  // few: they are told anew again and again
  TRY(run.master, store::Master::create(run.machine->process(), run.machine->network(), std::move(options)));
  masters_.push_back(std::move(run));
  return {};
}

Result<> Cluster::start_node(size_t index) {
  NodeMachine run;
  run.machine = std::make_unique<Machine>(universe_, "node" + std::to_string(index));
  TRY(run.engine, run.machine->make_engine());
  TRY(run.arena, memory::Arena::create_private(options_.node_bytes));
  store::NodeOptions options;
  options.master = kMasterAddress;
  options.hot_bytes = index == 0 ? options_.hot_bytes : 0;
  options.hot_private = true;
  TRY(run.node,
      store::Node::create(run.machine->process(), run.machine->network(), *run.engine, run.arena, std::move(options)));
  nodes_[index].push_back(std::move(run));
  return {};
}

Result<> Cluster::start_client(size_t index) {
  TRY(auto run, ClientMachine::create(universe_, "client" + std::to_string(index), kMasterAddress, outcomes_));
  clients_[index].push_back(std::move(run));
  return {};
}

Result<io::SimProcess*> Cluster::process(const std::string& host) {
  if (host == "master") return &masters_.back().machine->process();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (host == "node" + std::to_string(i)) return &nodes_[i].back().machine->process();
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (host == "client" + std::to_string(i)) return &clients_[i].back()->machine().process();
  }
  return fail(Code::kNotFound, "no host " + host);
}

Result<> Cluster::crash(const std::string& host, bool dark) {
  if (host == "master") {
    masters_.back().machine->crash(dark);
    return {};
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (host != "node" + std::to_string(i)) continue;
    nodes_[i].back().machine->crash(dark);
    return {};
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (host != "client" + std::to_string(i)) continue;
    clients_[i].back()->machine().crash(dark);
    return {};
  }
  return fail(Code::kNotFound, "no host " + host);
}

Result<> Cluster::restart(const std::string& host) {
  TRY(io::SimProcess* const old, process(host));
  if (old->alive()) return fail(Code::kInvalid, host + " is alive");
  if (host == "master") return start_master();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (host == "node" + std::to_string(i)) return start_node(i);
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (host == "client" + std::to_string(i)) return start_client(i);
  }
  return {};
}

ClientMachine* Cluster::client(size_t index) {
  if (index >= clients_.size()) return nullptr;
  ClientMachine& run = *clients_[index].back();
  return run.machine().process().alive() ? &run : nullptr;
}

void Cluster::drain(size_t node, bool on) {
  const InstanceId id = nodes_.at(node).back().node->id();
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (ClientMachine* living = client(i)) return living->drain(id, on);
  }
}

std::map<std::string, uint64_t> Cluster::counters() const {
  std::map<std::string, uint64_t> sums;
  for (const auto& runs : nodes_) {
    for (const NodeMachine& run : runs) {
      const store::StorageCounters& counters = run.node->storage().counters();
      sums["pulls"] += counters.pulls;
      sums["pulls_failed"] += counters.failed;
      if (const store::HotCache* cache = run.node->hot_cache()) {
        sums["hot_pulls"] += cache->counters().pulls;
        sums["hot_hits"] += cache->counters().hits;
        sums["hot_evicted"] += cache->counters().evicted;
      }
      sums["pulls_refused"] += counters.refused;
      sums["retired"] += counters.retired;
    }
  }
  for (const auto& runs : clients_) {
    for (const auto& run : runs) {
      const store::ClientCounters& counters = run->client().counters();
      sums["gets"] += counters.gets;
      sums["gets_missed"] += counters.gets_missed;
      sums["located_from_cache"] += counters.located_from_cache;
      sums["proofs_failed"] += counters.proofs_failed;
      sums["puts"] += counters.puts;
      sums["puts_failed"] += counters.puts_failed;
    }
  }
  for (const MasterMachine& run : masters_) {
    const catalog::Stats stats = run.master->catalog().stats();
    sums["evicted"] += stats.evicted;
    sums["removed"] += stats.removed;
    sums["adopted"] += stats.adopted;
    sums["repairs"] += stats.repairs;
    sums["repairs_failed"] += stats.repairs_failed;
    sums["puts_expired"] += stats.puts_expired;
  }
  return sums;
}

std::vector<Outcome> Cluster::take_outcomes() { return std::exchange(outcomes_, {}); }

}  // namespace moontide::sim
