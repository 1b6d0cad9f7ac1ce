// From places to an order.
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <tuple>

#include "topology/topology.h"

namespace moontide::topology {
namespace {

constexpr uint64_t kSlowFactor = 10;  // a NIC with less than a tenth of the fastest one's speed is for management
constexpr size_t kNotesMax = 64;

struct Distance {
  Level level = Level::kUnknown;
  int numa = 0;
  int hops = 0;
};

struct Candidate {
  std::string name;
  const Place* place = nullptr;
  bool unusable = false;
  bool virtual_ = false;
  bool slow = false;
  uint64_t speed_mbps = 0;
  Distance distance;

  auto group() const { return std::tuple(unusable, virtual_, slow, distance.level, distance.numa, distance.hops); }
};

// By NUMA nodes alone.
Distance between_nodes(const Topology& topology, int from, int to) {
  const NumaNode* a = topology.node(from);
  const NumaNode* b = topology.node(to);
  if (a == nullptr || b == nullptr) return {};
  const int numa = topology.numa_distance(from, to);
  if (from == to) return {Level::kNode, numa, 0};
  return {a->socket == b->socket && a->socket >= 0 ? Level::kSocket : Level::kRemote, numa, 0};
}

// A NUMA node without CPUs hangs at one that has some: a device at that one is as near as it gets.
Distance from_memory(const Topology& topology, const NumaNode& memory, const Place& to) {
  Distance distance = between_nodes(topology, memory.id, to.node);
  const NumaNode* host = topology.node(to.node);
  if (!memory.cpus.empty() || host == nullptr || distance.level == Level::kNode) return distance;
  const bool nearest = std::ranges::all_of(topology.nodes, [&](const NumaNode& other) {
    return other.cpus.empty() || topology.numa_distance(memory.id, other.id) >= distance.numa;
  });
  if (nearest && distance.numa > 0) distance.level = Level::kNode;
  return distance;
}

Distance from_device(const Topology& topology, const Place& from, const Place& to) {
  Distance distance = between_nodes(topology, from.node, to.node);
  if (from.root.empty() || from.root != to.root) return distance;
  size_t common = 0;
  while (common < from.bridges.size() && common < to.bridges.size() && from.bridges[common] == to.bridges[common]) {
    ++common;
  }
  distance.level = Level::kRootComplex;
  if (common > 0) {
    distance.level = Level::kSwitch;
    distance.hops = static_cast<int>(from.bridges.size() + to.bridges.size() - 2 * common);
  }
  return distance;
}

std::vector<Candidate> candidates(const Topology& topology, DeviceKind kind, std::string_view location) {
  std::vector<Candidate> found;
  if (kind == DeviceKind::kNic) {
    uint64_t fastest = 0;
    for (const Nic& nic : topology.nics) {
      if (nic.usable() && nic.physical) fastest = std::max(fastest, nic.speed_mbps);
    }
    for (const Nic& nic : topology.nics) {
      const bool slow = nic.speed_mbps > 0 && nic.speed_mbps < fastest / kSlowFactor;
      found.push_back({nic.name, &nic.place, !nic.usable(), !nic.physical, slow, nic.speed_mbps, {}});
    }
  } else if (kind == DeviceKind::kGpu) {
    for (const Gpu& gpu : topology.gpus) {
      if (gpu.name != location) found.push_back({.name = gpu.name, .place = &gpu.place, .distance = {}});
    }
  } else {
    for (const Disk& disk : topology.disks) {
      // a disk at the other end of a network has no place here
      found.push_back({.name = disk.name, .place = &disk.place, .virtual_ = disk.place.pci.empty(), .distance = {}});
    }
  }
  return found;
}

bool matches(const std::string& pattern, const Nic& nic) {
  return fnmatch(pattern.c_str(), nic.name.c_str(), 0) == 0 ||
         (!nic.rdma_device.empty() && fnmatch(pattern.c_str(), nic.rdma_device.c_str(), 0) == 0);
}

}  // namespace

std::string_view level_name(Level level) {
  switch (level) {
    case Level::kSwitch:
      return "same-switch";
    case Level::kRootComplex:
      return "same-root-complex";
    case Level::kNode:
      return "same-node";
    case Level::kSocket:
      return "same-socket";
    case Level::kRemote:
      return "other-socket";
    case Level::kUnknown:
      break;
  }
  return "unknown";
}

bool Nic::up() const {
  // tunnels and veths of old kernels say "unknown" when they work
  const bool said = operstate == "up" || operstate == "unknown";
  // the kernel writes operstate up to a second after the line has come up
  const bool coming = carrier && (operstate == "down" || operstate == "lowerlayerdown");
  const bool carries = interface && (said || coming);
  return carries || std::ranges::any_of(rdma_ports, &RdmaPort::active);
}

const NumaNode* Topology::node(int id) const {
  const auto found = std::ranges::find(nodes, id, &NumaNode::id);
  return found != nodes.end() ? &*found : nullptr;
}

int Topology::numa_distance(int from, int to) const {
  const NumaNode* start = node(from);
  const auto end = std::ranges::find(nodes, to, &NumaNode::id);
  if (start == nullptr || end == nodes.end()) return 0;
  return start->distances[static_cast<size_t>(end - nodes.begin())];
}

std::vector<std::string> Topology::locations() const {
  std::vector<std::string> names;
  for (const NumaNode& node : nodes) {
    if (!node.cpus.empty()) names.push_back("cpu:" + std::to_string(node.id));
  }
  for (const NumaNode& node : nodes) {
    if (node.cpus.empty() && node.memory_bytes > 0) names.push_back("cxl:" + std::to_string(node.id));
  }
  for (const Gpu& gpu : gpus) names.push_back(gpu.name);
  return names;
}

Result<std::vector<Ranked>> Topology::rank(std::string_view location, DeviceKind kind) const {
  const auto known = locations();
  if (std::ranges::find(known, location) == known.end()) {
    return fail(Code::kNotFound, "no memory '" + std::string(location) + "'; there are: " + join(known, ' '));
  }
  const auto gpu = std::ranges::find(gpus, location, &Gpu::name);
  int number = kNoNode;
  const std::string_view digits = location.substr(location.find(':') + 1);
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  auto found = candidates(*this, kind, location);
  for (Candidate& candidate : found) {
    candidate.distance = gpu != gpus.end() ? from_device(*this, gpu->place, *candidate.place)
                                           : from_memory(*this, *node(number), *candidate.place);
  }
  std::ranges::sort(found, [](const Candidate& a, const Candidate& b) {
    if (a.group() != b.group()) return a.group() < b.group();
    if (a.speed_mbps != b.speed_mbps) return a.speed_mbps > b.speed_mbps;
    return natural_less(a.name, b.name);
  });
  std::vector<Ranked> ranked;
  for (const Candidate& candidate : found) {
    const bool best = !candidate.unusable && candidate.group() == found.front().group();
    ranked.push_back({.name = candidate.name,
                      .level = candidate.distance.level,
                      .numa_distance = candidate.distance.numa,
                      .hops = candidate.distance.hops,
                      .preferred = best,
                      .usable = !candidate.unusable});
  }
  return ranked;
}

Result<void> Topology::restrict_nics(const std::vector<std::string>& allow, const std::vector<std::string>& deny) {
  std::vector<std::string> names;
  names.reserve(nics.size());
  for (const Nic& nic : nics) names.push_back(nic.name);
  const auto matches_any = [](const std::vector<std::string>& patterns, const Nic& nic) {
    return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches(pattern, nic); });
  };
  for (const auto* patterns : {&allow, &deny}) {
    for (const std::string& pattern : *patterns) {
      if (std::ranges::none_of(nics, [&](const Nic& nic) { return matches(pattern, nic); })) {
        note("no NIC is called '" + pattern + "'; there are: " + join(names, ' '));
      }
    }
  }
  if (!allow.empty()) std::erase_if(nics, [&](const Nic& nic) { return !matches_any(allow, nic); });
  if (!allow.empty() && nics.empty()) {
    return fail(Code::kNotFound, "no NIC is called " + join(allow, ' ') + "; there are: " + join(names, ' '));
  }
  std::erase_if(nics, [&](const Nic& nic) { return matches_any(deny, nic); });
  return {};
}

void Topology::note(std::string text) {
  if (notes.size() < kNotesMax) {
    notes.push_back(std::move(text));
  } else if (notes.size() == kNotesMax) {
    notes.push_back("and more");
  }
}

bool natural_less(std::string_view a, std::string_view b) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto number_at = [&](std::string_view text, size_t& at) {
    const size_t start = at;
    while (at < text.size() && digit(text[at])) ++at;
    std::string_view number = text.substr(start, at - start);
    number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
    return number;
  };
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (digit(a[i]) && digit(b[j])) {
      const auto left = number_at(a, i);
      const auto right = number_at(b, j);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;
}

}  // namespace moontide::topology
