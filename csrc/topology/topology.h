// Which NICs, accelerators and disks lie how near to which memory. Plain values: copy it, read it from any thread.
//
// A *location* is memory: "cpu:0" is the memory of NUMA node 0, "cxl:2" that of node 2 which has no CPUs, "gpu:3" that
// of the fourth accelerator in the order of PCI addresses (CUDA numbers so with CUDA_DEVICE_ORDER=PCI_BUS_ID).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/tree.h"

namespace moontide::topology {

constexpr int kNoNode = -1;

struct NumaNode {
  int id = 0;
  int socket = -1;  // of its CPUs, without CPUs that of the nearest node that has some; -1: not known
  std::vector<int> cpus;
  uint64_t memory_bytes = 0;
  std::vector<int> distances;  // to each of Topology::nodes, in that order; 10 is local
};

// Where a device is attached.
struct Place {
  std::string pci;                   // "0000:1b:00.0"; empty for what is on no PCI bus
  std::string root;                  // "pci0000:15": the root complex
  std::vector<std::string> bridges;  // from the root port down to the one right above
  int node = kNoNode;                // NUMA
};

struct RdmaPort {
  int number = 1;
  bool active = false;
  std::string link_layer;   // "InfiniBand", "Ethernet"
  uint64_t speed_mbps = 0;  // 0: not known
};

struct Nic {
  std::string name;  // of the network interface; of the RDMA device where there is no interface
  Place place;
  bool interface = false;  // it has a network interface
  bool physical = false;   // false: a bridge, a veth, a tunnel
  std::string operstate;
  bool carrier = false;  // there is a signal on the line; false too where the kernel does not say
  std::string master;    // the bond or bridge that it is a port of: that one has the addresses
  int mtu = 0;
  uint64_t speed_mbps = 0;  // 0: not known
  std::string rdma_device;  // "mlx5_0" or empty
  std::vector<RdmaPort> rdma_ports;

  bool up() const;
  bool usable() const { return up() && master.empty(); }
};

struct Gpu {
  std::string name;  // "gpu:0", which is the location of its memory too
  Place place;
  std::string vendor;  // "nvidia", "amd", ..., "other"
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
};

struct Disk {
  std::string name;  // "nvme0"
  Place place;
  std::string transport;  // "pcie", "tcp", "rdma"
};

enum class DeviceKind { kNic, kGpu, kDisk };

// How far apart, nearest first. The PCI levels are for devices and gpu locations only.
enum class Level { kSwitch, kRootComplex, kNode, kSocket, kRemote, kUnknown };
std::string_view level_name(Level level);

struct Ranked {
  std::string name;
  Level level = Level::kUnknown;
  int numa_distance = 0;   // as the firmware says it; 0: not known
  int hops = 0;            // bridges on the way, at kSwitch
  bool preferred = false;  // belongs to the best group
  bool usable = true;      // false: a NIC that is down, or a port of a bond or bridge
};

struct Topology {
  std::vector<NumaNode> nodes;     // by id
  std::vector<Nic> nics;           // by name, "eth2" before "eth10"
  std::vector<Gpu> gpus;           // by PCI address
  std::vector<Disk> disks;         // by name
  std::vector<std::string> notes;  // what was strange, for a person; bounded

  // What the tree holds. What is missing or nonsense is left out and noted; it never fails.
  static Topology discover(Tree& tree);

  // All memory there is: cpu:N, cxl:N, gpu:N.
  std::vector<std::string> locations() const;

  // The devices of a kind, best first; the same tree gives the same order. NOT_FOUND names the locations there are.
  //
  // NICs that can be used come first, then physical ones, then those with at least a tenth of the fastest one's speed;
  // then nearness counts, then speed, then the name. The preferred ones are equal in all but speed and name.
  Result<std::vector<Ranked>> rank(std::string_view location, DeviceKind kind = DeviceKind::kNic) const;

  // Keeps the NICs that a pattern of `allow` matches (all, if it is empty) and none of `deny`. Patterns match the
  // interface or the RDMA device, as in the shell: "mlx5_*". NOT_FOUND if `allow` leaves nothing; a pattern without a
  // match is noted.
  Result<void> restrict_nics(const std::vector<std::string>& allow, const std::vector<std::string>& deny);

  const NumaNode* node(int id) const;
  int numa_distance(int from, int to) const;  // 0: not known

  void note(std::string text);
};

// "eth2" < "eth10": digits compare as numbers.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace moontide::topology
