// A master with clients and nodes that say what they like: its books agree after every step, and no answer is owed for
// ever.
#include "fuzz/raw_peer.h"
#include "store/master.h"

namespace moontide::fuzz {
namespace {

constexpr uint16_t kTypes[] = {
    wire::kClientHello, wire::kPutStart,  wire::kPutEnd,       wire::kPutRevoke, wire::kLocate,   wire::kExists,
    wire::kRemove,      wire::kList,      wire::kTouch,        wire::kPoolStats, wire::kKeep,     wire::kKeepAlive,
    wire::kNodeHello,   wire::kInventory, wire::kInventoryEnd, wire::kRetired,   wire::kNodeOrder};

class Scene {
 public:
  Scene()
      : process_(world_.start_process("master")),
        network_(fabric_, process_),
        wires_(fabric_, world_.start_process("peer")) {
    fabric_.set_delays({kMicrosecond, 2 * kMicrosecond});
    store::MasterOptions options;
    options.listen = "sim:master:0";
    options.earlier_lease_ns = 0;
    options.catalog.max_objects = 20;
    options.catalog.max_nodes = 3;
    options.sessions_max = 4;
    options.waiting_max = 8;
    master_ = *store::Master::create(process_, network_, options);
    peers_.resize(3);
  }
  ~Scene() {
    peers_.clear();
    world_.run_for(12 * kSecond);
    require(master_->sessions() == 0, "sessions of peers that are gone end");
    sound();
  }

  void step(Input& input) {
    const uint8_t op = input.u8();
    if (!peers_[which_]) peers_[which_] = std::make_unique<RawPeer>(wires_, master_->address());
    RawPeer& peer = *peers_[which_];
    switch (op % 12) {
      case 0:
        return peer.send(input.bytes(input.u8()));
      case 1:
      case 2: {
        const uint16_t type = kTypes[input.u8() % std::size(kTypes)];
        const auto kind = static_cast<wire::FrameKind>(1 + input.u8() % 4);
        const uint64_t id = input.u8();
        return peer.frame(kind, type, id, input.bytes(input.u8()));
      }
      case 3:
        return peer.request(wire::kClientHello, wire::ClientHello{{}, {1, which_}});
      case 4:
        return peer.request(
            wire::kNodeHello,
            wire::NodeHello{{}, {2, input.u8() % 4u}, 256u * input.u8(), "n", input.u8() % 4u, {}, 3, 4});
      case 5:
        return inventory(peer, input);
      case 6: {
        peer.request(wire::kPutStart, wire::PutStart{{{key(input), 16u * input.u8(), input.u8()}}});
        world_.run_for(kMillisecond);
        if (auto reply = peer.answer<wire::PutStartReply>(); reply && !reply->items.empty()) {
          granted_ = reply->items[0].generation;
        }
        return;
      }
      case 7:
        return peer.request(wire::kPutEnd,
                            wire::PutEnd{{{key(input), granted_, {2, input.u8() % 4u}, 64u * input.u8(), 0}}});
      case 8:
        return peer.request(op >= 128 ? wire::kRemove : wire::kLocate, wire::Keys{{key(input)}});
      case 9:
        which_ = op / 12u % peers_.size();
        return;
      case 10:
        if (op / 12u % 4 == 0) peers_[which_].reset();
        return;
      default:
        world_.run_for(int64_t{input.u8()} * (op >= 128 ? 40 * kMillisecond : 10 * kMicrosecond));
    }
  }

  void sound() const {
    auto result = master_->catalog().check_invariants();
    if (!result) std::fprintf(stderr, "%s\n", result.error().text().c_str());
    require(result.has_value(), "the catalog's books agree");
  }

 private:
  static std::string key(Input& input) { return std::string(1, static_cast<char>('a' + input.u8() % 6)); }
  void inventory(RawPeer& peer, Input& input) {
    wire::Inventory message;
    for (size_t left = input.u8() % 3; left > 0; --left) {
      message.items.push_back({key(input), {input.u8() % 3u, input.u8()}, 16u * input.u8(), 64u * input.u8(), 0, true});
    }
    peer.request(wire::kInventory, message);
    if (input.u8() % 2 == 0) peer.request(wire::kInventoryEnd, wire::Empty{});
  }

  io::SimWorld world_{1};
  io::SimFabric fabric_{world_};
  io::SimProcess& process_;
  io::SimNetwork network_;
  io::SimNetwork wires_;
  std::unique_ptr<store::Master> master_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
  size_t which_ = 0;
  Generation granted_;
};

}  // namespace

std::vector<Bytes> seeds() {
  Output pool;  // a node joins, a client puts, locates and removes
  pool.u8(4).u8(0).u8(255).u8(0).u8(5).u8(0).u8(0).u8(11).u8(255).u8(12 + 9).u8(3).u8(11).u8(255);
  pool.u8(6).u8(0).u8(4).u8(1).u8(7).u8(0).u8(0).u8(0).u8(11).u8(255).u8(8).u8(0).u8(11).u8(255);
  pool.u8(140).u8(0).u8(11).u8(255);
  std::vector<Bytes> all = {pool.take()};
  for (size_t type = 0; type < std::size(kTypes); ++type) {
    all.push_back(
        Output().u8(type < 11 ? 3 : 4).u8(0).u8(255).u8(0).u8(1).u8(type).u8(0).u8(5).u8(4).add(0).u8(11).take());
  }
  return all;
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  moontide::fuzz::Scene scene;
  for (int steps = 0; steps < 60 && !input.empty(); ++steps) {
    scene.step(input);
    scene.sound();
  }
  return 0;
}
