// The pool's two servers in Python: its master, and a node.
#include <pybind11/stl.h>

#include <ctime>

#include "python/bindings.h"
#include "python/operation.h"
#include "python/tenant.h"
#include "store/master.h"
#include "store/node.h"

namespace moontide::python {
namespace {

store::MasterOptions master_options(const std::string& listen, double lease_s, const std::string& eviction,
                                    size_t max_objects, size_t events) {
  store::MasterOptions options;
  options.events_max = events;
  options.catalog.max_objects = max_objects;
  options.listen = listen;
  options.eviction = eviction;
  options.catalog.lease_ns = to_ns(lease_s, "lease");
  // Within a process nobody was before this master.
  options.earlier_lease_ns = io::InprocNetwork::names(listen) ? 0 : options.catalog.lease_ns;
  // Whoever starts a master elects it, and has the wall clock: a master that remembers nothing begins above all earlier
  // ones even before a node has told it of them. (A clock that went back: nodes raise the term, by kTermStepMax at
  // most; beyond that they are refused by name until the clock is right or they are restarted.)
  options.elector_term = static_cast<uint32_t>(std::time(nullptr));
  return options;
}

std::unique_ptr<store::Node> make_node(Runtime& runtime, const std::string& master, uint64_t lend, uint64_t hot_cache) {
  store::NodeOptions options;
  options.master = master;
  options.hot_bytes = hot_cache;
  auto arena = value_or_raise(memory::Arena::create(lend, "moontide-pool"));
  return value_or_raise(
      store::Node::create(runtime.reactor(), runtime.master_network(), runtime.engine(), std::move(arena), options));
}

std::vector<std::pair<const char*, uint64_t>> hot_counts(const store::HotCache* cache) {
  const wire::HotFacts facts = cache != nullptr ? cache->facts() : wire::HotFacts{};
  const store::HotCounters counters = cache != nullptr ? cache->counters() : store::HotCounters{};
  return {{"hot_capacity_bytes", facts.capacity_bytes},
          {"hot_used_bytes", facts.used_bytes},
          {"hot_entries", facts.entries},
          {"hot_hits", counters.hits},
          {"hot_hit_bytes", counters.hit_bytes},
          {"hot_misses", counters.misses},
          {"hot_pulls", counters.pulls},
          {"hot_pulled_bytes", counters.pulled_bytes},
          {"hot_pulls_failed", counters.pulls_failed},
          {"hot_evicted", counters.evicted}};
}

py::dict node_stats(const Tenant<store::Node>& handle) {
  store::StorageCounters c;
  uint64_t capacity = 0, allocated = 0, largest_free = 0;
  size_t entries = 0, jobs = 0;
  std::vector<std::pair<const char*, uint64_t>> hot;
  handle.with([&](store::Node& node) {
    const store::Storage& storage = node.storage();
    c = storage.counters();
    capacity = storage.segment().extents().size();
    allocated = storage.segment().extents().used();
    largest_free = storage.segment().extents().largest_free();
    entries = storage.segment().inventory().size();
    jobs = storage.jobs();
    hot = hot_counts(node.hot_cache());
  });
  py::dict out;
  for (const auto& [name, value] : hot) out[name] = value;
  out["capacity_bytes"] = capacity;
  out["allocated_bytes"] = allocated;
  out["largest_free_bytes"] = largest_free;
  out["entries"] = entries;
  out["pulls_under_way"] = jobs;
  out["pulls"] = c.pulls;
  out["pulled_bytes"] = c.pulled_bytes;
  out["pulls_refused"] = c.refused;
  out["pulls_failed"] = c.failed;
  out["retired"] = c.retired;
  out["repairs"] = c.repairs;
  out["repairs_failed"] = c.repairs_failed;
  return out;
}

const char* state_name(catalog::NodeState state) {
  switch (state) {
    case catalog::NodeState::kJoining:
      return "joining";
    case catalog::NodeState::kReady:
      return "ready";
    case catalog::NodeState::kAway:
      return "away";
  }
  return "?";
}

// What the master knows of each node.
py::list node_list(const Tenant<store::Master>& master) {
  struct Row {
    catalog::NodeId id;
    std::string address;
    const char* state;
    uint64_t capacity, committed, unfinished, retiring, held, hard, objects;
    wire::HotFacts hot;
  };
  auto rows = master.with([](store::Master& m) {
    std::vector<Row> found;
    for (const auto& [id, node] : m.catalog().nodes()) {
      const wire::HotFacts* const hot = m.hot_facts_of(id);
      const char* const state = node.draining ? "draining" : state_name(node.state);
      found.push_back({id, node.address, state, node.capacity_bytes, node.committed_bytes, node.unfinished_bytes,
                       node.retiring_bytes, node.held_bytes, node.hard_bytes, node.committed_count(),
                       hot == nullptr ? wire::HotFacts{} : *hot});
    }
    return found;
  });
  py::list out;
  for (const Row& row : rows) {
    py::dict item;
    item["instance"] = row.id.text();
    item["address"] = row.address;
    item["state"] = row.state;
    item["tier"] = "dram";
    item["capacity_bytes"] = row.capacity;
    item["committed_bytes"] = row.committed;
    item["unfinished_bytes"] = row.unfinished;
    item["retiring_bytes"] = row.retiring;
    item["held_bytes"] = row.held;
    item["hard_pinned_bytes"] = row.hard;
    item["objects"] = row.objects;
    item["hot_capacity_bytes"] = row.hot.capacity_bytes;
    item["hot_used_bytes"] = row.hot.used_bytes;
    item["hot_entries"] = row.hot.entries;
    item["hot_hits"] = row.hot.hits;
    item["hot_hit_bytes"] = row.hot.hit_bytes;
    item["hot_misses"] = row.hot.misses;
    out.append(std::move(item));
  }
  return out;
}

// (kind, why, key, length) of each.
py::list take_events(const Tenant<store::Master>& master, size_t most) {
  static constexpr const char* kKinds[] = {"stored", "removed", "cleared"};
  static constexpr const char* kWhy[] = {"removed", "evicted", "expired", "lost"};
  const auto events = master.with([most](store::Master& m) { return m.take_events(most); });
  py::list out(events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    const catalog::Event& event = events[i];
    const char* const why = event.kind == catalog::EventKind::kRemoved ? kWhy[static_cast<size_t>(event.why)] : "";
    out[i] = py::make_tuple(kKinds[static_cast<size_t>(event.kind)], why, py::bytes(event.key), event.length);
  }
  return out;
}

}  // namespace

void bind_servers(py::module_& m) {
  using MasterHandle = Tenant<store::Master>;
  py::class_<MasterHandle>(m, "Master")
      .def(py::init([](const std::string& listen, double lease, const std::string& eviction, const Access& access,
                       size_t max_objects, uint32_t spin_us, size_t events) {
             py::gil_scoped_release nogil;
             auto runtime = Runtime::create_bare(spin_us * kMicrosecond, access);
             auto held = lock_or_raise(*runtime);
             std::shared_ptr<store::Master> master =
                 value_or_raise(store::Master::create(runtime->reactor(), runtime->master_network(),
                                                      master_options(listen, lease, eviction, max_objects, events)));
             return settle_in(runtime, std::move(master));
           }),
           py::arg("listen"), py::arg("lease"), py::arg("eviction"), py::arg("access"), py::arg("max_objects"),
           py::arg("spin_us"), py::arg("events"))
      .def_property_readonly("refusals", [](const MasterHandle& h) { return refusals(*h.runtime()); })
      .def_property_readonly("address",
                             [](const MasterHandle& h) { return h.with([](store::Master& m) { return m.address(); }); })
      .def_property_readonly("term",
                             [](const MasterHandle& h) { return h.with([](store::Master& m) { return m.term(); }); })
      .def("stats",
           [](const MasterHandle& h) { return counts_dict(h.with([](store::Master& m) { return m.stats(); })); })
      .def("nodes", &node_list)
      .def("take_events", &take_events, py::arg("most"))
      .def("tell_events_anew", [](const MasterHandle& h) { h.with([](store::Master& m) { m.tell_events_anew(); }); })
      .def(
          "drive", [](const MasterHandle& h, double seconds) { drive(*h.runtime(), seconds); }, py::arg("seconds"))
      .def("close", [](MasterHandle& h) {
        h.close();
        py::gil_scoped_release nogil;
        h.runtime()->close();
      });
  using NodeHandle = Tenant<store::Node>;
  py::class_<NodeHandle>(m, "Node")
      .def(py::init([](const std::shared_ptr<Runtime>& runtime, const std::string& master, uint64_t lend,
                       uint64_t hot_cache) {
             py::gil_scoped_release nogil;
             auto held = lock_or_raise(*runtime);
             return settle_in(runtime, std::shared_ptr<store::Node>(make_node(*runtime, master, lend, hot_cache)));
           }),
           py::arg("runtime"), py::arg("master"), py::arg("lend"), py::arg("hot_cache") = 0)
      .def_property_readonly("joined",
                             [](const NodeHandle& h) { return h.with([](store::Node& n) { return n.joined(); }); })
      .def_property_readonly("term",
                             [](const NodeHandle& h) { return h.with([](store::Node& n) { return n.term(); }); })
      .def("stats", &node_stats)
      .def_property_readonly("last_error",
                             [](const NodeHandle& h) { return h.with([](store::Node& n) { return n.last_error(); }); })
      .def("close", &NodeHandle::close);
}

}  // namespace moontide::python
