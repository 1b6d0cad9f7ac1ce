// What is near to what on this machine or a recorded one, as plain Python values for moontide.topology.
#include "topology/topology.h"

#include <pybind11/stl.h>

#include <array>

#include "python/bindings.h"

namespace moontide::python {
namespace {

using topology::DeviceKind;
using topology::Topology;
using topology::Tree;

py::dict place_dict(const topology::Place& place) {
  py::dict out;
  out["pci"] = place.pci;
  out["root"] = place.root;
  out["bridges"] = place.bridges;
  out["node"] = place.node < 0 ? py::object(py::none()) : py::int_(place.node);
  return out;
}

py::dict node_dict(const topology::NumaNode& node) {
  py::dict out;
  out["id"] = node.id;
  out["socket"] = node.socket < 0 ? py::object(py::none()) : py::int_(node.socket);
  out["cpus"] = node.cpus;
  out["memory_bytes"] = node.memory_bytes;
  out["distances"] = node.distances;
  return out;
}

py::dict nic_dict(const topology::Nic& nic) {
  py::list ports;
  for (const topology::RdmaPort& port : nic.rdma_ports) {
    py::dict out;
    out["number"] = port.number;
    out["active"] = port.active;
    out["link_layer"] = port.link_layer;
    out["speed_mbps"] = port.speed_mbps;
    ports.append(out);
  }
  py::dict out;
  out["name"] = nic.name;
  out["place"] = place_dict(nic.place);
  out["interface"] = nic.interface;
  out["physical"] = nic.physical;
  out["up"] = nic.up();
  out["operstate"] = nic.operstate;
  out["master"] = nic.master;
  out["mtu"] = nic.mtu;
  out["speed_mbps"] = nic.speed_mbps;
  out["rdma_device"] = nic.rdma_device;
  out["rdma_ports"] = ports;
  return out;
}

py::dict gpu_dict(const topology::Gpu& gpu) {
  py::dict out;
  out["name"] = gpu.name;
  out["place"] = place_dict(gpu.place);
  out["vendor"] = gpu.vendor;
  out["vendor_id"] = gpu.vendor_id;
  out["device_id"] = gpu.device_id;
  return out;
}

py::dict disk_dict(const topology::Disk& disk) {
  py::dict out;
  out["name"] = disk.name;
  out["place"] = place_dict(disk.place);
  out["transport"] = disk.transport;
  return out;
}

py::dict ranks_dict(const Topology& machine) {
  constexpr auto kKinds = std::to_array<std::pair<const char*, DeviceKind>>(
      {{"nics", DeviceKind::kNic}, {"gpus", DeviceKind::kGpu}, {"disks", DeviceKind::kDisk}});
  py::dict locations;
  for (const std::string& location : machine.locations()) {
    py::dict kinds;
    for (const auto& [name, kind] : kKinds) {
      py::list devices;
      for (const topology::Ranked& ranked : value_or_raise(machine.rank(location, kind))) {
        py::dict out;
        out["name"] = ranked.name;
        out["level"] = std::string(topology::level_name(ranked.level));
        out["numa_distance"] = ranked.numa_distance;
        out["hops"] = ranked.hops;
        out["preferred"] = ranked.preferred;
        out["usable"] = ranked.usable;
        devices.append(out);
      }
      kinds[name] = devices;
    }
    locations[py::str(location)] = kinds;
  }
  return locations;
}

template <class T, class Convert>
py::list list_of(const std::vector<T>& values, Convert convert) {
  py::list out;
  for (const T& value : values) out.append(convert(value));
  return out;
}

std::unique_ptr<Tree> open_tree(const std::string& source, bool recording) {
  return value_or_raise(recording ? topology::open_recording(source) : topology::open_folder(source));
}

py::dict discover(const std::string& source, bool recording, const std::vector<std::string>& allow,
                  const std::vector<std::string>& deny) {
  Topology machine;
  Result<void> restricted;
  {
    const py::gil_scoped_release released;  // drivers may take their time to answer
    const auto tree = open_tree(source, recording);
    machine = Topology::discover(*tree);
    restricted = machine.restrict_nics(allow, deny);
  }
  value_or_raise(std::move(restricted));
  py::dict out;
  out["nodes"] = list_of(machine.nodes, node_dict);
  out["nics"] = list_of(machine.nics, nic_dict);
  out["gpus"] = list_of(machine.gpus, gpu_dict);
  out["disks"] = list_of(machine.disks, disk_dict);
  out["notes"] = machine.notes;
  out["locations"] = ranks_dict(machine);
  return out;
}

std::string record(const std::string& source, bool recording) {
  const py::gil_scoped_release released;
  const auto tree = open_tree(source, recording);
  topology::Recorder recorder(*tree);
  Topology::discover(recorder);
  return recorder.text();
}

}  // namespace

void bind_topology(py::module_& m) {
  m.def("discover_topology", &discover, py::arg("source"), py::arg("recording"), py::arg("allow"), py::arg("deny"));
  m.def("record_topology", &record, py::arg("source"), py::arg("recording"));
}

}  // namespace moontide::python
