// From the files of a sysfs to places. Every read is of a path that was resolved, so that a recording has all of it.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "topology/parse.h"
#include "topology/topology.h"

namespace moontide::topology {
namespace {

constexpr size_t kDevicesMax = 4096;  // of each kind
constexpr size_t kNodesMax = 1024;
constexpr size_t kPortsMax = 16;
constexpr int kLocalDistance = 10;
constexpr int kRemoteDistance = 20;
constexpr int64_t kLoopback = 772;  // ARPHRD_LOOPBACK

struct Vendor {
  uint32_t id;
  std::string_view name;
};
constexpr auto kVendors = std::to_array<Vendor>({{0x10de, "nvidia"},
                                                 {0x1002, "amd"},
                                                 {0x8086, "intel"},
                                                 {0x19e5, "huawei"},
                                                 {0x1da3, "habana"},
                                                 {0x1d0f, "amazon"},
                                                 {0x1ae0, "google"},
                                                 {0xcabc, "cambricon"},
                                                 {0x1ed5, "moorethreads"},
                                                 {0x9999, "metax"}});

// Screens of management controllers and of virtual machines: no memory that anyone would move, and counted in they
// would shift the numbers of the others. ASPEED, Matrox, Silicon Motion, Huawei's iBMC; QEMU, Cirrus, QXL, virtio,
// VMware, VirtualBox, Hyper-V.
constexpr auto kScreens =
    std::to_array<uint32_t>({0x1a03, 0x102b, 0x126f, 0x19e5, 0x1234, 0x1013, 0x1b36, 0x1af4, 0x15ad, 0x80ee, 0x1414});

class Discovery {
 public:
  explicit Discovery(Tree& tree) : tree_(tree) {}

  Topology run() {
    find_nodes();
    find_nics();
    find_rdma();
    find_gpus();
    find_disks();
    std::ranges::sort(found_.nics, natural_less, &Nic::name);
    std::ranges::sort(found_.disks, natural_less, &Disk::name);
    return std::move(found_);
  }

 private:
  void find_nodes();
  void find_distances(const std::map<int, std::string>& folders);
  void find_nics();
  void find_rdma();
  std::vector<RdmaPort> ports_of(const std::string& folder);
  Nic& nic_of(const std::string& device, const std::string& folder);
  void find_gpus();
  void find_disks();

  // (name, resolved folder) of each entry of a class, naturally sorted and bounded.
  std::vector<std::pair<std::string, std::string>> entries(const std::string& folder) {
    auto names = tree_.list(folder);
    std::ranges::sort(names, natural_less);
    std::vector<std::pair<std::string, std::string>> found;
    for (const std::string& name : names) {
      if (found.size() == kDevicesMax) {
        found_.note(folder + " has more than " + std::to_string(kDevicesMax) + " entries; the others are left out");
        break;
      }
      if (auto inside = tree_.resolve(folder + "/" + name)) found.emplace_back(name, std::move(*inside));
    }
    return found;
  }

  std::string text(const std::string& path) { return tree_.read(path).value_or(""); }

  // Nothing where the file is missing; nonsense is noted.
  std::optional<int64_t> number(const std::string& path, int base = 10) {
    const auto read = tree_.read(path);
    if (!read) return std::nullopt;
    const auto value = parse_number(*read, base);
    if (!value) found_.note(path + " is no number");
    return value;
  }

  uint64_t speed(const std::string& path) {
    const auto value = number(path);
    return value && *value > 0 ? static_cast<uint64_t>(*value) : 0;  // -1: not known
  }

  Place place(const std::string& folder) {
    Place place = parse_place(folder);
    const std::string pci = pci_folder(folder);
    // what hangs on no PCI bus (a controller of an ARM chip) has the node at its parent device
    auto node = number(pci.empty() ? folder + "/device/numa_node" : pci + "/numa_node");
    if (node && *node >= 0 && found_.node(static_cast<int>(std::min<int64_t>(*node, INT32_MAX))) == nullptr) {
      found_.note(folder + " is said to be at NUMA node " + std::to_string(*node) + ", which does not exist");
      node.reset();
    }
    if (node && *node >= 0) {
      place.node = static_cast<int>(*node);
    } else if (hosts_ == 1 && !place.pci.empty()) {
      place.node = only_host_;  // virtual machines say -1; there is only one answer
    }
    return place;
  }

  Tree& tree_;
  Topology found_;
  int hosts_ = 0;  // NUMA nodes with CPUs
  int only_host_ = kNoNode;
};

void Discovery::find_nodes() {
  constexpr std::string_view kFolder = "devices/system/node";
  std::map<int, std::string> folders;
  for (const auto& [name, folder] : entries(std::string(kFolder))) {
    const auto id = name.starts_with("node") ? parse_number(std::string_view(name).substr(4)) : std::nullopt;
    if (!id || *id < 0 || *id > INT16_MAX || folders.size() == kNodesMax) continue;
    folders[static_cast<int>(*id)] = folder;
  }
  for (const auto& [id, folder] : folders) {
    NumaNode node{.id = id, .cpus = {}, .distances = {}};
    auto cpus = parse_list(text(folder + "/cpulist"));
    if (!cpus) found_.note(folder + "/cpulist is no list of CPUs");
    node.cpus = std::move(cpus).value_or(std::vector<int>());
    // "Node 0 MemTotal:       20277464 kB"
    for (const std::string& line : split(text(folder + "/meminfo"), '\n')) {
      const auto words = split(line, ' ');
      if (words.size() < 4 || words[2] != "MemTotal:") continue;
      const auto kib = parse_number(words[3]);
      if (kib && *kib >= 0 && *kib <= INT64_MAX / 1024) node.memory_bytes = static_cast<uint64_t>(*kib) * 1024;
    }
    found_.nodes.push_back(std::move(node));
  }
  if (found_.nodes.empty()) {  // a kernel without NUMA
    NumaNode node{.cpus = parse_list(text("devices/system/cpu/online")).value_or(std::vector<int>()), .distances = {}};
    if (node.cpus.empty()) {
      found_.note("neither NUMA nodes nor CPUs are listed");
      node.cpus = {0};
    }
    found_.nodes.push_back(std::move(node));
  }
  for (NumaNode& node : found_.nodes) {
    if (node.cpus.empty()) continue;
    ++hosts_;
    only_host_ = node.id;
    const std::string cpu = "devices/system/cpu/cpu" + std::to_string(node.cpus.front());
    node.socket = static_cast<int>(
        std::clamp<int64_t>(number(cpu + "/topology/physical_package_id").value_or(-1), -1, INT16_MAX));
  }
  find_distances(folders);
}

void Discovery::find_distances(const std::map<int, std::string>& folders) {
  for (NumaNode& node : found_.nodes) {
    const auto folder = folders.find(node.id);
    const auto words = split(folder != folders.end() ? text(folder->second + "/distance") : "", ' ');
    for (const std::string& word : words) {
      const auto distance = parse_number(word);
      if (distance && *distance > 0 && *distance <= 255) node.distances.push_back(static_cast<int>(*distance));
    }
    if (node.distances.size() == found_.nodes.size() && words.size() == found_.nodes.size()) continue;
    if (found_.nodes.size() > 1) found_.note("node " + std::to_string(node.id) + " does not say its distances");
    node.distances.clear();
    for (const NumaNode& other : found_.nodes) {
      node.distances.push_back(other.id == node.id ? kLocalDistance : kRemoteDistance);
    }
  }
  for (NumaNode& node : found_.nodes) {
    if (!node.cpus.empty()) continue;
    int nearest = INT32_MAX;
    for (const NumaNode& other : found_.nodes) {
      const int distance = found_.numa_distance(node.id, other.id);
      if (other.cpus.empty() || distance >= nearest) continue;
      nearest = distance;
      node.socket = other.socket;
    }
  }
}

void Discovery::find_nics() {
  for (const auto& [name, folder] : entries("class/net")) {
    const auto type = number(folder + "/type");
    if (!type || *type == kLoopback) continue;
    Nic nic;
    nic.name = name;
    nic.place = place(folder);
    nic.interface = true;
    nic.physical = !nic.place.pci.empty() || tree_.resolve(folder + "/device").has_value();
    nic.operstate = text(folder + "/operstate");
    nic.carrier = number(folder + "/carrier").value_or(0) == 1;
    nic.mtu = static_cast<int>(std::clamp<int64_t>(number(folder + "/mtu").value_or(0), 0, INT32_MAX));
    nic.speed_mbps = speed(folder + "/speed");
    // "devices/virtual/net/bond0"
    const auto master = split(tree_.resolve(folder + "/master").value_or(""), '/');
    if (!master.empty()) nic.master = master.back();
    found_.nics.push_back(std::move(nic));
  }
  // a bond or bridge is where its ports are, if they agree
  for (Nic& nic : found_.nics) {
    if (!nic.place.pci.empty()) continue;
    const Nic* first = nullptr;
    bool agree = true;
    for (const Nic& port : found_.nics) {
      if (port.master != nic.name || !port.physical) continue;
      if (first == nullptr) first = &port;
      agree = agree && port.place.node == first->place.node;
    }
    if (first == nullptr) continue;
    nic.physical = true;
    if (agree) nic.place = first->place;
  }
}

std::vector<RdmaPort> Discovery::ports_of(const std::string& folder) {
  std::vector<RdmaPort> ports;
  for (const auto& [name, port_folder] : entries(folder + "/ports")) {
    const auto number = parse_number(name);
    if (!number || *number < 0 || *number > UINT8_MAX || ports.size() == kPortsMax) continue;
    RdmaPort port{.number = static_cast<int>(*number), .link_layer = text(port_folder + "/link_layer")};
    port.active = text(port_folder + "/state").starts_with("4:");
    // "400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)"
    const auto rate = split(text(port_folder + "/rate"), ' ');
    if (!rate.empty()) {
      const auto parts = split(rate[0], '.');
      const auto whole = parts.empty() ? std::nullopt : parse_number(parts[0]);
      if (whole && *whole >= 0 && *whole < 1'000'000) port.speed_mbps = static_cast<uint64_t>(*whole) * 1000;
      if (parts.size() == 2 && parts[1] == "5") port.speed_mbps += 500;
    }
    ports.push_back(std::move(port));
  }
  return ports;
}

// The NIC to which an RDMA device belongs: the kernel names its interface (a bond too, or the one below a software
// device), else it is the interface of the same PCI function; a device without interface is a NIC of its own.
Nic& Discovery::nic_of(const std::string& device, const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [port, port_folder] : entries(folder + "/ports"))
    names.push_back(text(port_folder + "/gid_attrs/ndevs/0"));
  names.push_back(text(folder + "/parent"));
  for (const std::string& name : names) {
    const auto nic = std::ranges::find(found_.nics, name, &Nic::name);
    if (!name.empty() && nic != found_.nics.end()) return *nic;
  }
  Place own = place(folder);
  const auto nic = std::ranges::find_if(found_.nics, [&](const Nic& other) {
    return !own.pci.empty() && other.place.pci == own.pci && other.rdma_device.empty();
  });
  if (nic != found_.nics.end()) return *nic;
  Nic& lone = found_.nics.emplace_back();
  lone.name = device;
  lone.place = std::move(own);
  return lone;
}

void Discovery::find_rdma() {
  for (const auto& [name, folder] : entries("class/infiniband")) {
    auto ports = ports_of(folder);
    Nic& nic = nic_of(name, folder);
    if (!nic.rdma_device.empty()) {
      found_.note(name + " and " + nic.rdma_device + " are one NIC, " + nic.name + "; the second is left out");
      continue;
    }
    nic.rdma_device = name;
    // a bond of two ports is where its RDMA device is
    if (nic.place.pci.empty()) nic.place = place(folder);
    nic.physical = nic.physical || !nic.place.pci.empty();
    for (const RdmaPort& port : ports) {
      if (nic.speed_mbps == 0 && port.active) nic.speed_mbps = port.speed_mbps;
    }
    nic.rdma_ports = std::move(ports);
  }
}

void Discovery::find_gpus() {
  std::vector<Gpu> gpus;
  for (const auto& [address, folder] : entries("bus/pci/devices")) {
    const auto kind = number(folder + "/class", 16);
    if (!kind || !is_pci_address(address)) continue;
    const bool screen = *kind >> 16 == 0x03;
    if (!screen && *kind >> 16 != 0x12) continue;
    Gpu gpu{.name = {}, .place = place(folder), .vendor = "other"};
    gpu.vendor_id = static_cast<uint32_t>(number(folder + "/vendor", 16).value_or(0) & 0xffff);
    gpu.device_id = static_cast<uint32_t>(number(folder + "/device", 16).value_or(0) & 0xffff);
    if (screen && std::ranges::find(kScreens, gpu.vendor_id) != kScreens.end()) continue;
    const auto vendor = std::ranges::find(kVendors, gpu.vendor_id, &Vendor::id);
    if (vendor != kVendors.end()) gpu.vendor = vendor->name;
    gpus.push_back(std::move(gpu));
  }
  std::ranges::sort(gpus, {}, [](const Gpu& gpu) { return gpu.place.pci; });
  for (Gpu& gpu : gpus) {
    gpu.name = "gpu:" + std::to_string(found_.gpus.size());
    found_.gpus.push_back(std::move(gpu));
  }
}

void Discovery::find_disks() {
  for (const auto& [name, folder] : entries("class/nvme")) {
    Disk disk{.name = name, .place = place(folder), .transport = text(folder + "/transport")};
    found_.disks.push_back(std::move(disk));
  }
}

}  // namespace

Topology Topology::discover(Tree& tree) { return Discovery(tree).run(); }

}  // namespace moontide::topology
