// The replay of traces against eviction policies, for moontide.bench.policy.
#include <pybind11/stl.h>

#include "catalog/eviction/replay.h"
#include "python/bindings.h"

namespace moontide::python {
namespace {

using catalog::Trace;

Trace make_trace(const std::vector<int64_t>& times_ms, const std::vector<size_t>& lengths,
                 const std::vector<uint64_t>& block_ids) {
  std::vector<int64_t> times_ns;
  times_ns.reserve(times_ms.size());
  for (int64_t time : times_ms) times_ns.push_back(time * 1'000'000);
  return value_or_raise(catalog::make_trace(std::move(times_ns), lengths, block_ids));
}

uint64_t replay(const Trace& trace, const std::string& policy, size_t capacity) {
  catalog::MakePolicy make = catalog::policy_maker(policy);
  if (!make) raise({Code::kInvalid, "no policy " + policy});
  const py::gil_scoped_release released;
  return catalog::replay(trace, capacity, *make());
}

}  // namespace

void bind_policy(py::module_& m) {
  py::class_<Trace>(m, "Trace")
      .def(py::init(&make_trace), py::arg("times_ms"), py::arg("lengths"), py::arg("block_ids"))
      .def_property_readonly("blocks", [](const Trace& trace) { return trace.blocks.size(); })
      .def_property_readonly("unique_blocks", [](const Trace& trace) { return trace.unique_blocks; })
      .def("replay", &replay, py::arg("policy"), py::arg("capacity"))
      .def("replay_optimum", &catalog::replay_optimum, py::arg("capacity"), py::call_guard<py::gil_scoped_release>());
  std::vector<std::string> names(catalog::policy_names().begin(), catalog::policy_names().end());
  m.attr("policy_names") = py::tuple(py::cast(names));
}

}  // namespace moontide::python
