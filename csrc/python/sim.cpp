// The simulated pool for moontide.sim: everything takes place in the calling thread.
#include <pybind11/stl.h>

#include "python/bindings.h"
#include "sim/cluster.h"

namespace moontide::python {
namespace {

using sim::Cluster;

sim::Paths paths_of(const std::string& name) {
  if (name == "sim") return sim::Paths::kOneSided;
  if (name == "tcp") return sim::Paths::kTcp;
  if (name == "both") return sim::Paths::kBoth;
  raise({Code::kInvalid, "paths '" + name + "' is none of sim, tcp, both"});
}

sim::Kind kind_of(const std::string& name) {
  const std::map<std::string, sim::Kind> kinds = {{"put", sim::Kind::kPut},       {"put_async", sim::Kind::kPutAsync},
                                                  {"upsert", sim::Kind::kUpsert}, {"get", sim::Kind::kGet},
                                                  {"exists", sim::Kind::kExists}, {"remove", sim::Kind::kRemove},
                                                  {"list", sim::Kind::kList}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) raise({Code::kInvalid, "no operation '" + name + "'"});
  return found->second;
}

void check_value(const sim::Request& request) {
  const bool put = request.kind <= sim::Kind::kUpsert;
  if (put && (request.length < 8 || request.length > sim::Slots::kSlotBytes)) {
    raise({Code::kInvalid, "a value of " + std::to_string(request.length) + " bytes; 8 to " +
                               std::to_string(sim::Slots::kSlotBytes) + " are possible"});
  }
}

bool start(Cluster& cluster, size_t client, uint64_t number, const std::string& kind, const std::string& key,
           uint64_t value, uint64_t length, bool in_memory, size_t replicas) {
  sim::Request request{number, kind_of(kind), key, value, length, in_memory, replicas};
  check_value(request);
  sim::ClientMachine* machine = cluster.client(client);
  if (machine == nullptr) return false;
  machine->start(std::move(request));
  return true;
}

py::list take_outcomes(Cluster& cluster) {
  py::list list;
  for (const sim::Outcome& outcome : cluster.take_outcomes()) {
    list.append(py::make_tuple(outcome.number, std::string(code_name(outcome.code)), outcome.value, outcome.length,
                               outcome.listed, outcome.at_ns));
  }
  return list;
}

std::string text_of(const Result<>& outcome) { return outcome ? "" : outcome.error().message; }

io::SimProcess& process_of(Cluster& cluster, const std::string& host) { return *value_or_raise(cluster.process(host)); }

void bind_faults(py::class_<Cluster>& cluster) {
  cluster.def("pause", [](Cluster& self, const std::string& host) { process_of(self, host).pause(); })
      .def("resume", [](Cluster& self, const std::string& host) { process_of(self, host).resume(); })
      .def("alive", [](Cluster& self, const std::string& host) { return process_of(self, host).alive(); })
      .def("crash", [](Cluster& self, const std::string& host, bool dark) { value_or_raise(self.crash(host, dark)); })
      .def("restart", [](Cluster& self, const std::string& host) { value_or_raise(self.restart(host)); })
      .def("cut",
           [](Cluster& self, const std::string& from, const std::string& to) { self.universe().fabric.cut(from, to); })
      .def("heal",
           [](Cluster& self, const std::string& from, const std::string& to) { self.universe().fabric.heal(from, to); })
      .def("heal_all", [](Cluster& self) { self.universe().fabric.heal_all(); })
      .def("drift",
           [](Cluster& self, const std::string& host, int64_t ppm) { process_of(self, host).set_drift_ppm(ppm); })
      .def("step_clock",
           [](Cluster& self, const std::string& host, int64_t ns) { process_of(self, host).step_clock(ns); })
      .def("delays", [](Cluster& self, int64_t least_ns,
                        int64_t most_ns) { self.universe().fabric.set_delays({least_ns, most_ns}); })
      .def("read_faults", [](Cluster& self, uint64_t late_one_in, uint64_t very_late_one_in, uint64_t fail_one_in) {
        auto& faults = self.universe().hub.faults();
        faults.late_one_in = late_one_in;
        faults.very_late_one_in = very_late_one_in;
        faults.fail_one_in = fail_one_in;
      });
}

}  // namespace

void bind_sim(py::module_& m) {
  py::class_<Cluster> cluster(m, "SimCluster");
  cluster
      .def(py::init([](uint64_t seed, const std::string& paths, size_t nodes, size_t clients, uint64_t node_bytes,
                       uint64_t hot_bytes) {
             return std::make_unique<Cluster>(
                 sim::ClusterOptions{seed, paths_of(paths), nodes, clients, node_bytes, hot_bytes});
           }),
           py::arg("seed"), py::arg("paths"), py::arg("nodes"), py::arg("clients"), py::arg("node_bytes"),
           py::arg("hot_bytes") = 0)
      .def_property_readonly("hosts", &Cluster::hosts)
      .def_property_readonly("time_ns", [](Cluster& self) { return self.world().time_ns(); })
      .def_property_readonly("events", [](Cluster& self) { return self.world().events(); })
      .def_property_readonly("trace", [](Cluster& self) { return self.world().trace(); })
      .def(
          "run_for", [](Cluster& self, int64_t ns) { self.world().run_for(ns); },
          py::call_guard<py::gil_scoped_release>())
      .def("start", &start, py::arg("client"), py::arg("number"), py::arg("kind"), py::arg("key"), py::arg("value") = 0,
           py::arg("length") = 0, py::arg("in_memory") = true, py::arg("replicas") = 1)
      .def("take_outcomes", &take_outcomes)
      .def("drain", &Cluster::drain, py::arg("node"), py::arg("on"))
      .def("assembled", &Cluster::assembled)
      .def(
          "audit", [](Cluster& self) { return text_of(self.audit()); }, py::call_guard<py::gil_scoped_release>())
      .def(
          "audit_at_rest", [](Cluster& self) { return text_of(self.audit_at_rest()); },
          py::call_guard<py::gil_scoped_release>())
      .def("describe", &Cluster::describe)
      .def("counters", &Cluster::counters);
  bind_faults(cluster);
}

}  // namespace moontide::python
