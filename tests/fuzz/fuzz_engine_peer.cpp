// An engine with connections of somebody who says what he likes, before and after the handshake, on control channels
// and data streams, while its owner registers, transfers and cancels: memory that nobody may write keeps its bytes,
// every transfer has one outcome and one quiet, and unregistered memory is handed back.
#include <algorithm>
#include <deque>

#include "engine/engine.h"
#include "fuzz/raw_peer.h"
#include "io/inproc.h"
#include "transport/self/self.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/tcp.h"
#include "wire/engine_messages.h"

namespace moontide::fuzz {
namespace {

constexpr size_t kSize = 4096;
constexpr uint16_t kTypes[] = {wire::kProbe,
                               wire::kHello,
                               wire::kDataStream,
                               wire::kRegions,
                               wire::kRegionGone,
                               wire::kReady,
                               wire::kTransport,
                               wire::kFence,
                               wire::kPull,
                               wire::kPullCancel,
                               wire::kPing,
                               wire::kResume,
                               wire::kBye,
                               wire::kHoldClaim,
                               wire::kHoldRenew,
                               wire::kHoldRelease,
                               wire::kNotify,
                               wire::kLeave,
                               wire::kApplicationFirst};

class Scene {
 public:
  Scene()
      : process_(world_.start_process("owner")),
        own_wires_(fabric_, process_),
        inproc_(process_),
        network_(inproc_, own_wires_),
        wires_(fabric_, world_.start_process("peer")) {
    fabric_.set_delays({kMicrosecond, 2 * kMicrosecond});
    engine::EngineOptions options;
    options.listen = "sim:owner:0";
    options.local_reads = engine::LocalReads::kOff;
    options.boot_id = "here";
    engine_ = *engine::Engine::create(process_, network_, options, [](memory::Registry& registry, const auto& chosen) {
      transport::TransportList list;
      list.push_back(std::make_unique<transport::SelfTransport>(registry));
      list.push_back(std::make_unique<transport::TcpTransport>(chosen.tcp_streams));
      return list;
    });
    for (uint8_t access : {memory::kReadable | memory::kWritable, memory::kReadable + 0, memory::kLocal + 0}) {
      memory_.emplace_back(kSize, std::byte{access});
      regions_.push_back(*engine_->add_region(memory_.back().data(), kSize, access, "m"));
    }
    peers_.resize(3);
  }
  ~Scene() {
    peers_.clear();
    for (const auto& region : regions_) remove(region);
    world_.run_for(60 * kSecond);
    require(outcomes_ == transfers_ && quiets_ == transfers_, "every transfer has one outcome and one quiet");
    require(handed_back_ == removed_, "unregistered memory is handed back");
    require(std::ranges::all_of(memory_[1], [](std::byte b) { return b == std::byte{memory::kReadable}; }),
            "only writable memory is written");
    engine_.reset();
  }

  void step(Input& input) {
    const uint8_t op = input.u8();
    if (!peers_[which_]) connect();
    RawPeer& peer = *peers_[which_];
    switch (op % 16) {
      case 0:
        return peer.send(input.bytes(input.u8()));
      case 1:
      case 2:
      case 3: {
        const uint16_t type = kTypes[input.u8() % std::size(kTypes)];
        const auto kind = static_cast<wire::FrameKind>(1 + input.u8() % 4);
        const uint64_t id = input.u8();
        return peer.frame(kind, type, id, input.bytes(input.u8()));
      }
      case 4:
        return hello(peer, input);
      case 5:
        return announce(peer, input);
      case 6:
        return pull(peer, input);
      case 7:
        which_ = op / 16u % peers_.size();
        return;
      case 8:
        return data_stream(peer, op);
      case 9:
        return data_frame(peer, input);
      case 10:
        return submit(input);
      case 11:
        if (!live_.empty()) live_[input.u8() % live_.size()]->cancel();
        return;
      case 12:
        return remove(regions_[op / 16u % regions_.size()]);
      case 13:
        if (op / 16u % 4 == 0) peers_[which_].reset();
        return;
      default:
        world_.run_for(int64_t{input.u8()} * (op >= 128 ? 20 * kMillisecond : 10 * kMicrosecond));
    }
  }

 private:
  void connect() { peers_[which_] = std::make_unique<RawPeer>(wires_, engine_->address()); }
  void hello(RawPeer& peer, Input& input) {
    wire::Hello message;
    message.instance = {7, which_};
    message.address = "sim:peer:1";
    message.local = input.u8() % 8 == 1;
    peer.request(wire::kHello, message);
    wire::Ready ready{{{"tcp", ""}}, true};
    world_.run_for(kMillisecond);
    if (auto answer = peer.answer<wire::HelloReply>()) token_ = answer->token;
    peer.frame(wire::FrameKind::kNotice, wire::kReady, 0, wire::encode(ready));
  }
  void announce(RawPeer& peer, Input& input) {
    const uint8_t id = input.u8() % 4;
    wire::Regions regions{
        {{id, id, input.u16(), static_cast<uint8_t>(input.u8() % 4), 0, "theirs", {{"tcp", 0, {{}}}}}}};
    peer.frame(wire::FrameKind::kNotice, wire::kRegions, 0, wire::encode(regions));
  }
  void pull(RawPeer& peer, Input& input) {
    const auto& target = regions_[input.u8() % regions_.size()];
    wire::Pull message{input.u8(), {}};
    const size_t count = input.u8() % 4;
    for (size_t i = 0; i < count; ++i) {
      const uint8_t id = input.u8() % 4;
      message.items.push_back({id, id, input.u8(), target->id, target->generation, input.u16() % kSize, input.u8()});
    }
    peer.request(wire::kPull, message);
  }
  void data_stream(RawPeer& peer, uint8_t op) {
    peer.request(wire::kDataStream, wire::DataStreamHello{token_, "tcp", op / 16u});
    world_.run_for(kMillisecond);
  }
  void data_frame(RawPeer& peer, Input& input) {
    using namespace transport::tcp;
    Header header;
    header.kind = static_cast<Kind>(1 + input.u8() % 4);
    header.tag = input.u8() % 8;
    const bool request = header.kind == Kind::kWrite || header.kind == Kind::kRead;
    Place place{};
    if (request) {
      const auto& region = regions_[input.u8() % regions_.size()];
      place = {region->id, 0, region->generation, input.u16() % kSize, input.u8()};
      header.count = 1;
    }
    if (header.kind == Kind::kWrite) header.length = place.length;
    if (header.kind == Kind::kReadData) header.length = input.u8();
    Output out;
    out.add(header);
    if (request) out.add(place);
    out.bytes(Bytes(header.length, std::byte{0x77}));
    peer.send(out.take());
  }
  // The engine's owner uses what a peer announced.
  void submit(Input& input) {
    auto link = engine_->link_by_token(token_);
    if (!link || transfers_ > 20 || !regions_[0]->live) return;
    const uint8_t how = input.u8();
    engine::Record record{1u + how % 2,
                          0,
                          reinterpret_cast<uint64_t>(memory_[0].data()) + input.u16() % kSize,
                          engine_->handle(link, how / 2 % 4),
                          input.u16(),
                          input.u8()};
    engine::TransferOptions options;
    options.done = [this] { ++outcomes_; };
    options.quiet = [this] { ++quiets_; };
    auto transfer = engine_->submit(std::span(&record, 1), std::move(options));
    if (!transfer) return;
    ++transfers_;
    live_.push_back(*transfer);
  }
  void remove(const memory::RegionRef& region) {
    if (engine_->remove_region(region->id, [this] { ++handed_back_; })) ++removed_;
  }

  io::SimWorld world_{1};
  io::SimFabric fabric_{world_};
  io::SimProcess& process_;
  io::SimNetwork own_wires_;
  io::InprocNetwork inproc_;
  io::RoutedNetwork network_;
  io::SimNetwork wires_;
  std::deque<Bytes> memory_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<memory::RegionRef> regions_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
  size_t which_ = 0;
  InstanceId token_;
  std::vector<engine::TransferRef> live_;
  size_t transfers_ = 0, outcomes_ = 0, quiets_ = 0, removed_ = 0, handed_back_ = 0;
};

}  // namespace

std::vector<Bytes> seeds() {
  // a link, a data stream of it, a write and a read of the owner's memory
  Output target;
  target.u8(4).u8(0).u8(16 + 7).u8(16 + 8).u8(9).u8(0).u8(1).u8(0).u16(9).u8(50).u8(9).u8(2).u8(2).u8(1).u16(3).u8(40);
  target.u8(14).u8(200);
  // a peer with regions, that is read and written and answers on the stream that it opened
  Output source;
  source.u8(4).u8(0).u8(5).u8(1).u16(4096).u8(3).u8(14).u8(200).u8(16 + 7).u8(16 + 8).u8(10).u8(2).u16(0).u16(0).u8(64);
  source.u8(14).u8(100).u8(9).u8(3).u8(1).u8(64).u8(14).u8(200).u8(10).u8(3).u16(0).u16(0).u8(64).u8(14).u8(99);
  source.u8(9).u8(1).u8(2).u8(11).u8(0).u8(12).u8(14).u8(255);
  Output pull;
  pull.u8(4).u8(0).u8(5).u8(1).u16(4096).u8(3).u8(14).u8(200).u8(6).u8(0).u8(1).u8(1).u8(1).u8(0).u16(0).u8(9);
  pull.u8(14).u8(100).u8(1).u8(9).u8(2).u8(0).u8(8).add(uint64_t{1}).u8(14).u8(255);
  std::vector<Bytes> all = {target.take(), source.take(), pull.take()};
  for (size_t type = 0; type < std::size(kTypes); ++type) {
    all.push_back(Output().u8(4).u8(0).u8(1).u8(type).u8(0).u8(1).u8(8).add(uint64_t{1}).u8(14).u8(200).take());
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
