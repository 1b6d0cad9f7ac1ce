// An engine with connections of a process of its own host that says what it likes: the handshake with descriptors, the
// hello of the cma endpoint, the arenas of the shm endpoint, announced regions with keys, leaves to write them. Its
// owner reads and writes what was announced, and removes what it gave leave for. What the peer may not write keeps its
// bytes, every transfer has one outcome and one quiet, and memory is handed back when no leave of it is out any more.
#include <deque>

#include "engine/engine.h"
#include "fuzz/local_peer.h"
#include "io/inproc.h"
#include "io/sim.h"
#include "transport/builtin.h"
#include "wire/frame.h"

namespace moontide::fuzz {
namespace {

constexpr size_t kSize = 4096;
constexpr size_t kWiresMax = 8;
constexpr const char* kAddress = "local:owner";
constexpr const char* kPeerAddress = "local:peer";
constexpr uint16_t kTypes[] = {wire::kProbe,     wire::kHello, wire::kRegions, wire::kRegionGone, wire::kReady,
                               wire::kTransport, wire::kPull,  wire::kBye,     wire::kLeave};

struct ArenaKey {
  uint32_t region = 0;
  uint64_t size = 0;
  auto fields() { return std::tie(region, size); }
};
struct ProbeWord {
  uint64_t address = 0;
  uint64_t value = 0;
  auto fields() { return std::tie(address, value); }
};

const LocalProcess& peer() {
  static const LocalProcess process;
  return process;
}

class Scene {
 public:
  Scene() : process_(world_.start_process("owner")), wires_(process_, peer()), inproc_(process_) {
    engine::EngineOptions options;
    options.listen = kAddress;
    options.boot_id = "here";
    engine_ = *engine::Engine::create(process_, network_, options, [](memory::Registry& registry, const auto&) {
      return transport::builtin(registry, {});
    });
    using enum memory::Arena::Others;
    add(memory::kReadable | memory::kWritable | memory::kDirect, kReadAndWrite);
    add(memory::kReadable, kRead);
    add(memory::kLocal, kRead);
    wires_.arrive(kAddress);
  }
  ~Scene() {
    for (const auto& region : regions_) remove(region);
    for (auto& wire : wires_.wires()) wire->end();
    while (wires_.give_back()) {
    }
    world_.run_for(60 * kSecond);
    require(outcomes_ == transfers_ && quiets_ == transfers_, "every transfer has one outcome and one quiet");
    require(handed_back_ == removed_, "unregistered memory is handed back");
    for (size_t i : {1, 2}) {
      const std::byte* bytes = arenas_[i]->data();
      require(std::all_of(bytes, bytes + kSize, [i](std::byte b) { return b == std::byte(i); }),
              "only writable memory is written");
    }
    engine_.reset();
  }

  void step(Input& input) {
    const uint8_t op = input.u8();
    const uint8_t more = op / 16;
    switch (op % 16) {
      case 0:
        return send(input.bytes(input.u8()), {});
      case 1:
        return frame(static_cast<wire::FrameKind>(1 + more % 4), kTypes[input.u8() % std::size(kTypes)], input.u8() % 4,
                     input.bytes(input.u8()), input.u8());
      case 2:
        return hello(more);
      case 3:
        return announce(input, more);
      case 4:
        return notice(wire::kLeave, wire::Leave{more % 4u, input.u8() % 4u}, input.u8());
      case 5:
        return endpoint("shm", wire::encode(ArenaKey{more % 4u, arena_size(input.u8())}), input.u8());
      case 6:
        return endpoint("cma",
                        wire::encode(ProbeWord{more % 4 == 3 ? input.u64() : peer().probe(),
                                               peer().probe_value() + (more % 4 == 2)}),
                        0);
      case 7:
        return endpoint(more % 2 == 0 ? "shm" : "cma", to_bytes(input.bytes(input.u8() % 32)), input.u8());
      case 8:
        return notice(wire::kRegionGone, wire::RegionGone{more % 4u}, 0);
      case 9:
        return submit(input, more);
      case 10:
        if (!live_.empty()) live_[more % live_.size()]->cancel();
        return;
      case 11:
        return more % 4 == 0 ? remove(regions_[more / 4u % regions_.size()]) : (void)wires_.give_back();
      case 12:
        return open_or_choose(more);
      case 13:
        return answer(more);
      case 14:
        if (more == 0) wire().end();
        return;
      default:
        while (!wire().take_write().empty()) {
        }
        world_.run_for(int64_t{input.u8()} * (more >= 8 ? 20 * kMillisecond : 10 * kMicrosecond));
    }
  }

 private:
  void add(uint8_t access, memory::Arena::Others others) {
    arenas_.push_back(*memory::Arena::create(kSize, "fuzz", others));
    std::byte* bytes = arenas_.back()->data();
    std::fill(bytes, bytes + kSize, std::byte(arenas_.size() - 1));
    regions_.push_back(*engine_->add_region(bytes, kSize, access, "m", arenas_.back()));
  }

  Wire& wire() { return *wires_.wires()[which_ % wires_.wires().size()]; }

  // `shape`: how many descriptors come along, and which.
  static std::vector<io::Fd> descriptors(uint8_t shape) {
    std::vector<io::Fd> fds(shape / 16u % 4);
    for (io::Fd& fd : fds) fd = peer().descriptor(static_cast<uint8_t>(shape++ % 16));
    return fds;
  }
  void send(ByteView bytes, std::vector<io::Fd> fds) {
    Wire& to = wire();
    if (!to.open || to.sink == nullptr) return;
    if (!fds.empty()) to.sink->arrived_fds(std::move(fds));
    if (!to.open || to.coming.size() > (64u << 10)) return;
    to.coming.insert(to.coming.end(), bytes.begin(), bytes.end());
    to.deliver(SIZE_MAX / 2);
  }
  void frame(wire::FrameKind kind, uint16_t type, uint64_t id, ByteView payload, uint8_t shape) {
    auto fds = descriptors(shape);
    wire::FrameHeader header;
    header.kind = kind;
    header.type = type;
    header.id = id;
    header.fd_count = static_cast<uint8_t>(fds.size());
    header.length = static_cast<uint32_t>(payload.size());
    send(Output().add(header).bytes(payload).take(), std::move(fds));
  }
  template <wire::Message T>
  void notice(uint16_t type, const T& message, uint8_t shape) {
    frame(wire::FrameKind::kNotice, type, 0, wire::encode(message), shape);
  }
  void endpoint(const char* name, Bytes payload, uint8_t shape) {
    notice(wire::kTransport, wire::TransportMessage{name, std::move(payload)}, shape);
  }
  static uint64_t arena_size(uint8_t how) {
    return how % 4 == 3 ? uint64_t{how} << (how % 60) : uint64_t{LocalProcess::kMemory};
  }

  static constexpr uint8_t one(uint8_t which) { return static_cast<uint8_t>(16 + which); }
  void hello(uint8_t how) {
    wire::Hello message;
    message.instance = {7, which_};
    message.address = kPeerAddress;
    message.local = how % 8 != 7;
    frame(wire::FrameKind::kRequest, wire::kHello, 1, wire::encode(message), one(how / 8 + LocalProcess::kTable));
    look_for_token();
    ready();
  }
  void ready() { notice(wire::kReady, wire::Ready{{{"shm", ""}, {"cma", ""}, {"tcp", ""}}, true}, 0); }
  // What the opener of a link asks on each connection is its request 1.
  void answer(uint8_t how) {
    const InstanceId instance{9, 1};
    if (how % 2 == 0) {
      wire::ProbeReply reply{{}, instance, how % 8 == 6 ? "there" : "here", "unix:@peer"};
      return frame(wire::FrameKind::kReply, 0, 1, wire::encode(reply), 0);
    }
    wire::HelloReply reply{wire::kProtocolMax, instance, {3, 4}, {}};
    frame(wire::FrameKind::kReply, 0, 1 + how / 2 % 2, wire::encode(reply), one(how / 4 + LocalProcess::kTable));
    ready();
  }
  void open_or_choose(uint8_t more) {
    if (more < 8) {
      which_ = more;
    } else if (wires_.wires().size() < kWiresMax) {
      if (more < 12) {
        wires_.arrive(kAddress);
      } else {
        engine_->open(kPeerAddress, kSecond, [](Result<engine::LinkRef>) {});
        world_.run_for(kMillisecond);
      }
      which_ = wires_.wires().size() - 1;
    }
  }

  void announce(Input& input, uint8_t more) {
    const uint32_t id = more % 4;
    wire::RegionInfo info{id, id, LocalProcess::kMemory, input.u8(), id, "theirs", {}};
    const uint8_t how = input.u8();
    if (how % 4 == 3) info.length = input.u64();
    if (how % 8 == 7) info.word = static_cast<uint32_t>(input.u64());
    Bytes address = Output().add(how % 16 == 9 ? input.u64() : peer().memory()).take();
    if (how % 16 == 5) address.resize(input.u8() % 16);
    if (how / 16 % 2 == 0) info.keys.push_back({"shm", 0, {{}}});
    if (how / 32 % 2 == 0) info.keys.push_back({"cma", 0, {address}});
    if (how / 64 == 3) info.keys.push_back({"cma", input.u16(), {address, address}});
    notice(wire::kRegions, wire::Regions{{info}}, 0);
  }

  // The engine's owner uses what a peer announced.
  void submit(Input& input, uint8_t more) {
    if (transfers_ > 20 || !regions_[0]->live) return;
    const size_t own = more % 2 == 0 ? 0 : more / 8;  // what it reads goes where its peers may write as well
    const uint16_t offset = input.u16();
    engine::LinkRef link;
    for (const InstanceId& token : tokens_) {
      if (auto found = engine_->link_by_token(token)) link = found;
    }
    if (!link) return;
    engine::Record record{1u + more % 2u,
                          0,
                          reinterpret_cast<uint64_t>(arenas_[own]->data()) + input.u16() % kSize,
                          engine_->handle(link, more / 2 % 4),
                          offset % (LocalProcess::kMemory + 64),
                          input.u8()};
    engine::TransferOptions options;
    options.done = [this] { ++outcomes_; };
    options.quiet = [this] { ++quiets_; };
    auto transfer = engine_->submit(std::span(&record, 1), std::move(options));
    if (!transfer) return;
    ++transfers_;
    live_.push_back(*transfer);
  }
  // What the engine answered to a hello.
  void look_for_token() {
    for (const Wire::Write& write : wire().writes) {
      if (write.copy.size() <= sizeof(wire::FrameHeader)) continue;
      auto reply = wire::decode_prefix<wire::HelloReply>(ByteView(write.copy).subspan(sizeof(wire::FrameHeader)));
      if (reply) tokens_.push_back(reply->token);
    }
  }
  void remove(const memory::RegionRef& region) {
    const uint32_t id = region->id;
    auto quiet = [this, id] {
      ++handed_back_;
      require(std::ranges::count(engine_->leaves().regions(), id) == 0, "a leave that is out keeps the memory");
    };
    if (engine_->remove_region(id, quiet)) ++removed_;
  }

  io::SimWorld world_{1};
  io::SimProcess& process_;
  LocalNetwork wires_;
  io::InprocNetwork inproc_;
  io::RoutedNetwork network_{inproc_, wires_};
  std::vector<std::shared_ptr<memory::Arena>> arenas_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<memory::RegionRef> regions_;
  size_t which_ = 0;
  std::vector<InstanceId> tokens_{{3, 4}};  // of the links that the engine opened, and of those that it accepted
  std::vector<engine::TransferRef> live_;
  size_t transfers_ = 0, outcomes_ = 0, quiets_ = 0, removed_ = 0, handed_back_ = 0;
};

constexpr uint8_t op(uint8_t number, uint8_t more) { return static_cast<uint8_t>(more * 16 + number); }

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  // links that the peer and that the engine opened
  const std::vector<Bytes> links = {
      Output().u8(op(2, 0)).take(),
      Output().u8(op(12, 12)).u8(op(13, 0)).u8(op(15, 0)).u8(100).u8(op(12, 2)).u8(op(13, 1)).take(),
  };
  for (const Bytes& link : links) {
    // read and written by cma, then by shm, with a leave; the region goes and a leave is given back
    for (uint8_t keys : {16, 32}) {
      Output out;
      out.bytes(link).u8(op(6, 0)).u8(op(5, 1)).u8(0).u8(16 + LocalProcess::kWriteArena);
      out.u8(op(4, 1)).u8(1).u8(16 + LocalProcess::kPipe).u8(op(3, 1)).u8(15).u8(keys);
      for (uint8_t way : {2, 3}) out.u8(op(9, way)).u16(5).u16(9).u8(77);
      out.u8(op(15, 0)).u8(200).u8(op(9, 3)).u16(8000).u16(64).u8(255).u8(op(8, 1)).u8(op(11, 0)).u8(op(11, 1));
      all.push_back(out.u8(op(15, 8)).u8(9).take());
    }
    // arenas that it may not map
    for (uint8_t which = 0; which < LocalProcess::kDescriptors; ++which) {
      Output out;
      out.bytes(link).u8(op(5, 1)).u8(0).u8(16 + which).u8(op(3, 1)).u8(3).u8(32).u8(op(9, 2)).u16(5).u16(9).u8(77);
      all.push_back(out.u8(op(15, 0)).u8(200).take());
    }
  }
  return all;
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  moontide::fuzz::Scene scene;
  for (int steps = 0; steps < 60 && !input.empty(); ++steps) scene.step(input);
  return 0;
}
