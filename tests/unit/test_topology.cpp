#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "topology/parse.h"
#include "topology/topology.h"

namespace moontide::topology {
namespace {

std::string fixture(const std::string& name) {
  std::ifstream file(std::string(MOONTIDE_FIXTURES) + "/topology/" + name);
  REQUIRE_MESSAGE(file, name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::unique_ptr<Tree> tree_of(const std::string& text) {
  auto tree = open_recording(text);
  REQUIRE_MESSAGE(tree, (tree ? "" : tree.error().text()));
  return std::move(*tree);
}

Topology machine_of(const std::string& text) { return Topology::discover(*tree_of(text)); }

std::vector<Ranked> ranked(const Topology& machine, const std::string& location, DeviceKind kind = DeviceKind::kNic) {
  auto found = machine.rank(location, kind);
  REQUIRE_MESSAGE(found, (found ? "" : found.error().text()));
  return std::move(*found);
}

// "a b | c d": the preferred ones, then the others.
std::string order(const Topology& machine, const std::string& location, DeviceKind kind = DeviceKind::kNic) {
  std::string text;
  bool preferred = true;
  for (const Ranked& device : ranked(machine, location, kind)) {
    if (preferred && !device.preferred) text += text.empty() ? "|" : " |";
    preferred = device.preferred;
    text += (text.empty() ? "" : " ") + device.name;
  }
  return text;
}

const Nic& nic(const Topology& machine, const std::string& name) {
  const auto found = std::ranges::find(machine.nics, name, &Nic::name);
  REQUIRE_MESSAGE(found != machine.nics.end(), name);
  return *found;
}

// Everything that was found, for comparisons.
std::string describe(const Topology& machine) {
  std::ostringstream out;
  const auto place = [&](const Place& at) {
    out << ' ' << at.root << ' ' << join(at.bridges, ',') << ' ' << at.pci << ' ' << at.node;
  };
  for (const NumaNode& node : machine.nodes) {
    out << "\nnode " << node.id << ' ' << node.socket << ' ' << node.memory_bytes << ':';
    for (const int cpu : node.cpus) out << ' ' << cpu;
    out << ':';
    for (const int distance : node.distances) out << ' ' << distance;
  }
  for (const Nic& nic : machine.nics) {
    out << "\nnic " << nic.name << ' ' << nic.interface << nic.physical << nic.up() << ' ' << nic.operstate << ' '
        << nic.master << ' ' << nic.mtu << ' ' << nic.speed_mbps << ' ' << nic.rdma_device;
    for (const RdmaPort& port : nic.rdma_ports) {
      out << " port " << port.number << port.active << port.link_layer << port.speed_mbps;
    }
    place(nic.place);
  }
  for (const Gpu& gpu : machine.gpus) {
    out << '\n' << gpu.name << ' ' << gpu.vendor << ' ' << gpu.vendor_id << ' ' << gpu.device_id;
    place(gpu.place);
  }
  for (const Disk& disk : machine.disks) {
    out << '\n' << disk.name << ' ' << disk.transport;
    place(disk.place);
  }
  for (const std::string& location : machine.locations()) {
    for (const DeviceKind kind : {DeviceKind::kNic, DeviceKind::kGpu, DeviceKind::kDisk}) {
      out << '\n' << location << ": " << order(machine, location, kind);
    }
  }
  return out.str();
}

TEST_CASE("topology: two sockets, eight GPUs, each with the NIC of its own rail") {
  const Topology machine = machine_of(fixture("hgx-2x8.txt"));
  CHECK(machine.notes.empty());
  REQUIRE(machine.nodes.size() == 2);
  CHECK(machine.nodes[1].cpus.size() == 112);
  CHECK(machine.nodes[1].socket == 1);
  CHECK(machine.nodes[0].memory_bytes == 1056270264ull * 1024);
  CHECK(machine.numa_distance(0, 1) == 21);
  CHECK(machine.gpus.size() == 8);  // neither the NVSwitches nor the management controller's screen
  CHECK(machine.disks.size() == 8);
  CHECK(join(machine.locations(), ' ') == "cpu:0 cpu:1 gpu:0 gpu:1 gpu:2 gpu:3 gpu:4 gpu:5 gpu:6 gpu:7");

  // The user guide's table: which GPU has which NIC.
  const std::vector<std::pair<std::string, std::string>> rails = {
      {"mlx5_0", "ibp24s0"},  {"mlx5_3", "ibp64s0"},  {"mlx5_4", "ibp79s0"},   {"mlx5_5", "ibp94s0"},
      {"mlx5_6", "ibp154s0"}, {"mlx5_9", "ibp192s0"}, {"mlx5_10", "ibp206s0"}, {"mlx5_11", "ibp220s0"}};
  for (size_t i = 0; i < rails.size(); ++i) {
    const auto nics = ranked(machine, "gpu:" + std::to_string(i));
    CHECK(nics[0].name == rails[i].second);
    CHECK(nic(machine, nics[0].name).rdma_device == rails[i].first);
    CHECK(nics[0].level == Level::kSwitch);
    CHECK(nics[0].hops == 2);
    CHECK(nics[0].preferred);
    for (size_t j = 1; j < 8; ++j) {
      CHECK(nics[j].level == (j < 4 ? Level::kNode : Level::kRemote));
      CHECK(nics[j].numa_distance == (j < 4 ? 10 : 21));
      CHECK_FALSE(nics[j].preferred);
    }
  }
  // The management NIC is near, and a fortieth as fast; docker0 is down.
  CHECK(order(machine, "gpu:0") ==
        "ibp24s0 | ibp64s0 ibp79s0 ibp94s0 ibp154s0 ibp192s0 ibp206s0 ibp220s0 eno3 docker0");
  CHECK(order(machine, "cpu:0") ==
        "ibp24s0 ibp64s0 ibp79s0 ibp94s0 | ibp154s0 ibp192s0 ibp206s0 ibp220s0 eno3 docker0");
  CHECK(order(machine, "cpu:1") ==
        "ibp154s0 ibp192s0 ibp206s0 ibp220s0 | ibp24s0 ibp64s0 ibp79s0 ibp94s0 eno3 docker0");
  CHECK(order(machine, "cpu:1", DeviceKind::kGpu) == "gpu:4 gpu:5 gpu:6 gpu:7 | gpu:0 gpu:1 gpu:2 gpu:3");
  CHECK(order(machine, "gpu:5", DeviceKind::kDisk) == "nvme4 nvme5 nvme6 nvme7 | nvme0 nvme1 nvme2 nvme3");
  CHECK(order(machine, "gpu:5", DeviceKind::kGpu) == "gpu:4 gpu:6 gpu:7 | gpu:0 gpu:1 gpu:2 gpu:3");
}

TEST_CASE("topology: a laptop") {
  const Topology machine = machine_of(fixture("laptop.txt"));
  CHECK(machine.notes.empty());
  CHECK(join(machine.locations(), ' ') == "cpu:0 gpu:0");
  CHECK(machine.gpus[0].vendor == "intel");
  // One node: what says -1 is there.
  CHECK(nic(machine, "wlp0s20f3").place.node == 0);
  // A fast bridge without ports is no NIC to prefer, a cable that is not plugged in none to use.
  CHECK(order(machine, "cpu:0") == "wlp0s20f3 | docker0 enp0s31f6");
  CHECK_FALSE(ranked(machine, "cpu:0")[2].usable);
  CHECK(ranked(machine, "gpu:0")[0].level == Level::kRootComplex);
  // Below a remapping controller.
  CHECK(machine.disks[0].place.root == "pci0000:00");
  CHECK(machine.disks[0].place.pci == "10000:e1:00.0");
  CHECK(join(machine.disks[0].place.bridges, ' ') == "0000:00:0e.0 10000:e0:06.0");
}

TEST_CASE("topology: sub-NUMA clusters, CXL memory, bonds, RDMA devices of every kind") {
  const Topology machine = machine_of(fixture("cxl.txt"));
  CHECK(machine.notes.empty());
  CHECK(join(machine.locations(), ' ') == "cpu:0 cpu:1 cpu:2 cxl:3 gpu:0");
  CHECK(machine.node(3)->socket == 1);
  // The bond stands where its ports are and has their RDMA device; the ports are no NICs to use.
  const Nic& bond = nic(machine, "bond0");
  CHECK(bond.rdma_device == "mlx5_bond_0");
  CHECK(bond.physical);
  CHECK(bond.place.node == 0);
  CHECK(nic(machine, "enp22s0f0np0").master == "bond0");
  CHECK(nic(machine, "enp22s0f0np0").rdma_device.empty());
  // No interface: named after the RDMA device, with the port's speed.
  CHECK_FALSE(nic(machine, "mlx5_2").interface);
  CHECK(nic(machine, "mlx5_2").speed_mbps == 200'000);
  CHECK(nic(machine, "mlx5_2").up());
  CHECK(nic(machine, "veth0").rdma_device == "rxe0");
  CHECK(nic(machine, "veth0").rdma_ports.at(0).speed_mbps == 2500);
  CHECK(order(machine, "cpu:0") == "bond0 | enp49s0 mlx5_2 veth0 enp22s0f0np0 enp22s0f1np1");
  CHECK(order(machine, "cpu:1") == "enp49s0 | bond0 mlx5_2 veth0 enp22s0f0np0 enp22s0f1np1");
  CHECK(ranked(machine, "cpu:1")[1].level == Level::kSocket);
  CHECK(ranked(machine, "cpu:1")[2].level == Level::kRemote);
  // CXL memory is at the node that is nearest to it.
  CHECK(order(machine, "cxl:3") == "mlx5_2 | bond0 enp49s0 veth0 enp22s0f0np0 enp22s0f1np1");
  CHECK(ranked(machine, "cxl:3")[0].level == Level::kNode);
  CHECK(ranked(machine, "cxl:3")[0].numa_distance == 14);
  CHECK(ranked(machine, "gpu:0")[0].level == Level::kRootComplex);
  CHECK(machine.gpus[0].vendor == "amd");
  CHECK(order(machine, "cpu:2", DeviceKind::kDisk) == "nvme0 | nvme1");
  CHECK(machine.disks[1].transport == "tcp");
}

TEST_CASE("topology: a machine that was recorded, as it is and once more through the recorder") {
  for (const char* name : {"hgx-2x8.txt", "laptop.txt", "cxl.txt", "virtual-machine.txt"}) {
    CAPTURE(std::string(name));
    const auto tree = tree_of(fixture(name));
    Recorder recorder(*tree);
    const std::string seen = describe(Topology::discover(recorder));
    CHECK(seen.size() > 100);
    CHECK(describe(machine_of(recorder.text())) == seen);
  }
}

TEST_CASE("topology: this machine") {
  const auto tree = open_folder("/sys");
  REQUIRE(tree);
  Recorder recorder(**tree);
  const Topology machine = Topology::discover(recorder);
  CHECK_FALSE(machine.nodes.empty());
  size_t cpus = 0;
  for (const NumaNode& node : machine.nodes) cpus += node.cpus.size();
  CHECK(cpus >= static_cast<size_t>(sysconf(_SC_NPROCESSORS_ONLN)));
  const Topology again = machine_of(recorder.text());
  CHECK(again.nics.size() == machine.nics.size());
  CHECK(again.locations() == machine.locations());
}

TEST_CASE("topology: a recording does not tell who the machine is") {
  const std::string text = R"(moontide-sysfs 1
class/infiniband/secret-fabric -> devices/pci0000:00/0000:00:03.0/infiniband/secret-fabric
class/net/enx0050b6aabbcc -> devices/pci0000:00/0000:00:14.0/usb1/1-1/net/enx0050b6aabbcc
class/net/eth0 -> devices/pci0000:00/0000:00:03.0/net/eth0
class/net/net -> devices/virtual/net/net
class/net/net0 -> devices/virtual/net/net0
class/net/to-secret -> devices/virtual/net/to-secret
devices/pci0000:00/0000:00:03.0/infiniband/secret-fabric/ports/1/gid_attrs/ndevs/0 = to-secret
devices/pci0000:00/0000:00:03.0/net/eth0/address = 52:54:00:aa:bb:cc
devices/pci0000:00/0000:00:03.0/net/eth0/master -> devices/virtual/net/to-secret
devices/pci0000:00/0000:00:03.0/net/eth0/type = 1
devices/pci0000:00/0000:00:14.0/usb1/1-1/net/enx0050b6aabbcc/type = 1
devices/system/node/node0/cpulist = 0
devices/system/node/node0/meminfo = Node 0 MemTotal: 1024 kB\nNode 0 MemFree: 777 kB
devices/virtual/net/net/type = 1
devices/virtual/net/net0/type = 1
devices/virtual/net/to-secret/type = 1
)";
  const auto tree = tree_of(text);
  Recorder recorder(*tree);
  const Topology machine = Topology::discover(recorder);
  const std::string recorded = recorder.text();
  for (const char* told : {"secret", "aabbcc", "aa:bb:cc", "777"}) CHECK(recorded.find(told) == std::string::npos);
  CHECK(recorded.find("class/net/eth0 -> ") != std::string::npos);
  const Topology again = machine_of(recorded);
  CHECK(again.nics.size() == machine.nics.size());
  CHECK(nic(again, "eth0").master != "");
  CHECK(nic(again, nic(again, "eth0").master).rdma_device == "rdma0");
  CHECK(again.nodes[0].memory_bytes == 1 << 20);
}

TEST_CASE("topology: garbage is noted and left out") {
  const Topology machine = machine_of(fixture("hostile.txt"));
  REQUIRE(machine.nodes.size() == 3);
  CHECK(machine.nodes[0].cpus.size() == 4);
  CHECK(machine.nodes[0].memory_bytes == 0);
  CHECK(machine.nodes[1].cpus.empty());
  CHECK(machine.nodes[2].cpus.empty());
  CHECK(machine.numa_distance(0, 1) == 20);
  CHECK(machine.numa_distance(1, 9) == 0);
  CHECK(machine.gpus.size() == 1);
  CHECK(machine.gpus[0].place.node == 0);  // it says 7; only one node has CPUs
  CHECK(nic(machine, "eth1").place.node == kNoNode);
  CHECK_FALSE(nic(machine, "eth0").up());
  CHECK(machine.notes.size() >= 8);
  for (const std::string& location : machine.locations())
    CHECK(ranked(machine, location).size() == machine.nics.size());
  const auto refused = machine.rank("gpu:1");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kNotFound);
  CHECK(refused.error().message == "no memory 'gpu:1'; there are: cpu:0 gpu:0");
  for (const char* wrong : {"", "cpu", "cpu:", "cpu:1", "cpu:-1", "cpu:0 ", "gpu:99999999999", "cxl:0"}) {
    CHECK_FALSE(machine.rank(wrong));
  }
}

TEST_CASE("topology: an empty tree has one node and nothing else") {
  const Topology machine = machine_of("moontide-sysfs 1\n");
  CHECK(join(machine.locations(), ' ') == "cpu:0");
  CHECK(ranked(machine, "cpu:0").empty());
  CHECK(machine.notes.size() == 1);
}

TEST_CASE("topology: bad recordings are refused by line") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "empty"},
      {"devices/x = 1\n", "does not begin"},
      {"moontide-sysfs 2\n", "does not begin"},
      {"moontide-sysfs 1\n\nnonsense\n", "line 3"},
      {"moontide-sysfs 1\na = \\\n", "line 2"},
      {"moontide-sysfs 1\na = \\x1\n", "line 2"},
      {"moontide-sysfs 1\na = \\q\n", "line 2"},
  };
  for (const auto& [text, part] : cases) {
    const auto tree = open_recording(text);
    REQUIRE_FALSE(tree);
    CHECK_MESSAGE(tree.error().message.find(part) != std::string::npos, tree.error().message);
  }
  CHECK_FALSE(open_recording(std::string((16 << 20) + 1, '\n')));
}

TEST_CASE("topology: recordings cut anywhere, and with any byte exchanged, do no harm") {
  const std::string text = fixture("cxl.txt");
  for (size_t length = 0; length < text.size(); length += 97) {
    if (auto tree = open_recording(text.substr(0, length))) Topology::discover(**tree);
  }
  for (size_t at = 20; at < text.size(); at += 53) {
    std::string other = text;
    other[at] = static_cast<char>(at * 31);
    if (auto tree = open_recording(other)) Topology::discover(**tree);
  }
}

TEST_CASE("topology: hundreds of devices, and more than anyone has") {
  const auto made = [](int count) {
    std::string text = "moontide-sysfs 1\ndevices/system/node/node0/cpulist = 0-255\n";
    for (int i = 0; i < count; ++i) {
      char address[32];
      std::snprintf(address, sizeof address, "0000:%02x:%02x.%d", i / 256 + 1, i / 8 % 32, i % 8);
      const std::string folder = "devices/pci0000:00/0000:00:01.0/" + std::string(address);
      text += "class/net/eth" + std::to_string(i) + " -> " + folder + "/net/eth" + std::to_string(i) + "\n";
      text += folder + "/net/eth" + std::to_string(i) + "/type = 1\n" + folder + "/numa_node = 0\n";
      text += "bus/pci/devices/" + std::string(address) + " -> " + folder + "\n" + folder + "/class = 0x030200\n";
    }
    return text;
  };
  const Topology hundreds = machine_of(made(600));
  CHECK(hundreds.nics.size() == 600);
  CHECK(hundreds.gpus.size() == 600);
  CHECK(hundreds.nics[10].name == "eth10");
  const Topology too_many = machine_of(made(5000));
  CHECK(too_many.nics.size() == 4096);
  CHECK(
      std::ranges::any_of(too_many.notes, [](const std::string& note) { return note.find("more than") != note.npos; }));
}

TEST_CASE("topology: NICs by name") {
  const auto restricted = [](const std::vector<std::string>& allow, const std::vector<std::string>& deny) {
    Topology machine = machine_of(fixture("hgx-2x8.txt"));
    const auto result = machine.restrict_nics(allow, deny);
    return std::pair(result ? order(machine, "gpu:0") : result.error().text(), machine.notes.size());
  };
  CHECK(restricted({}, {"mlx5_0"}).first.starts_with("ibp64s0 ibp79s0 ibp94s0 | "));
  CHECK(restricted({"ibp2*", "mlx5_6"}, {"ibp24s0"}).first == "ibp154s0 ibp206s0 ibp220s0");
  CHECK(restricted({"eno3"}, {}) == std::pair<std::string, size_t>("eno3", 0));
  CHECK(restricted({"eno3", "eno4"}, {"eth*"}) == std::pair<std::string, size_t>("eno3", 2));
  CHECK(restricted({"eno4"}, {}).first.starts_with("NOT_FOUND: no NIC is called eno4; there are: docker0 eno3"));
  CHECK(restricted({}, {"*"}).first.empty());
}

TEST_CASE("topology: an interface whose line has just come up") {
  const auto up = [](const std::string& operstate, const std::string& carrier) {
    std::string text =
        "moontide-sysfs 1\nclass/net/eth0 -> devices/virtual/net/eth0\ndevices/virtual/net/eth0/type = 1\n";
    text += "devices/virtual/net/eth0/operstate = " + operstate + "\n";
    if (!carrier.empty()) text += "devices/virtual/net/eth0/carrier = " + carrier + "\n";
    return nic(machine_of(text), "eth0").up();
  };
  CHECK(up("down", "1"));  // operstate follows the carrier by up to a second
  CHECK(up("lowerlayerdown", "1"));
  CHECK(up("up", ""));
  CHECK(up("unknown", "1"));
  CHECK_FALSE(up("down", "0"));
  CHECK_FALSE(up("down", ""));
  CHECK_FALSE(up("dormant", "1"));  // it waits to be let in (802.1X)
}

TEST_CASE("topology: a folder, its links and what they must not reach") {
  char root[] = "/tmp/moontide-topology-XXXXXX";
  REQUIRE(mkdtemp(root) != nullptr);
  const std::filesystem::path folder(root);
  std::filesystem::create_directories(folder / "class/net");
  std::filesystem::create_directories(folder / "devices/virtual/net/eth0");
  std::filesystem::create_symlink("../../devices/virtual/net/eth0", folder / "class/net/eth0");
  std::filesystem::create_symlink("/etc/passwd", folder / "class/net/out");
  std::filesystem::create_symlink("loop", folder / "class/net/loop");
  std::ofstream(folder / "devices/virtual/net/eth0/type") << "1\n";
  std::ofstream(folder / "devices/virtual/net/eth0/operstate") << std::string(100'000, 'u');
  REQUIRE(mkfifo((folder / "devices/virtual/net/eth0/mtu").c_str(), 0600) == 0);
  {
    const auto tree = open_folder(root);
    REQUIRE(tree);
    CHECK((*tree)->resolve("class/net/eth0") == "devices/virtual/net/eth0");
    CHECK((*tree)->read("class/net/eth0/type") == "1");
    CHECK((*tree)->list("class/net").size() == 3);
    CHECK_FALSE((*tree)->read("class/net/out"));
    CHECK_FALSE((*tree)->resolve("class/net/loop"));
    CHECK_FALSE((*tree)->resolve("../etc"));
    CHECK_FALSE((*tree)->read("class/net"));
    const Topology machine = Topology::discover(**tree);
    CHECK(machine.nics.size() == 1);
    CHECK(machine.nics[0].operstate.size() == 64 << 10);
  }
  std::filesystem::remove_all(folder);
  CHECK(open_folder(root).error().code == Code::kNotFound);
  CHECK(open_folder("/proc/self/status").error().code == Code::kInvalid);
}

TEST_CASE("topology: forms of numbers and places") {
  CHECK(parse_number("-1") == -1);
  CHECK(parse_number("0x10de", 16) == 0x10de);
  for (const char* wrong : {"", " 1", "1 ", "1x", "0x1", "9223372036854775808"}) CHECK_FALSE(parse_number(wrong));
  CHECK(parse_list("0-2,8") == std::vector<int>{0, 1, 2, 8});
  CHECK(parse_list("") == std::vector<int>());
  for (const char* wrong : {"-1", "3-1", "a", "0-65536", "0-65535,1", "1048576", "0-4294967295"}) {
    CHECK_FALSE(parse_list(wrong));
  }
  CHECK(parse_list("0-65535").value_or(std::vector<int>()).size() == 65536);
  CHECK(is_pci_address("0000:1b:00.0"));
  CHECK(is_pci_address("10000:e1:00.7"));
  for (const char* wrong : {"", "pci0000:15", "000:1b:00.0", "0000:1b:00.8", "0000:1b:00", "0000:1g:00.0", ":::.0"}) {
    CHECK_FALSE(is_pci_address(wrong));
  }
  CHECK(pci_folder("devices/pci0000:00/0000:00:03.0/virtio2/net/eth0") == "devices/pci0000:00/0000:00:03.0");
  CHECK(pci_folder("devices/virtual/net/lo").empty());
  CHECK(natural_less("eth2", "eth10"));
  CHECK(natural_less("eth02", "eth2") != natural_less("eth2", "eth02"));
  CHECK_FALSE(natural_less("eth1", "eth1"));
  CHECK(natural_less("eth", "eth0"));
}

}  // namespace
}  // namespace moontide::topology
