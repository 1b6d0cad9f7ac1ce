// An rpc channel that is fed any bytes in any pieces, with calls outstanding and handlers that answer now, later or
// never, close the channel or destroy it: every call is answered once, and nothing of a closed channel runs.
#include <map>

#include "fuzz/wire_stream.h"
#include "io/sim.h"
#include "rpc/channel.h"

namespace moontide::fuzz {
namespace {

constexpr size_t kRequestsMax = 4;

class Scene {
 public:
  Scene() : process_(world_.start_process("fuzz")), wire_(std::make_shared<Wire>()) {
    channel_ = std::make_unique<rpc::Channel>(
        process_, std::make_unique<WireStream>(wire_),
        rpc::ChannelLimits{.requests_in_max = kRequestsMax, .requests_out_max = 8, .pending_bytes_max = 1u << 20});
    channel_->start({
        .request = [this](rpc::Incoming in, rpc::Responder out) { request(std::move(in), std::move(out)); },
        .notice =
            [this](rpc::Incoming in) {
              require(!over_, "no notice after the end");
              if (in.type % 16 == 15) channel_.reset();
            },
        .closed = [this](Error) { require(!std::exchange(over_, true), "closed once"); },
    });
  }
  ~Scene() {
    kept_.clear();
    channel_.reset();
    world_.run_for(10 * kSecond);
    require(answers_ == calls_, "every call is answered once");
  }

  void step(Input& input) {
    const uint8_t op = input.u8();
    switch (op % 8) {
      case 0:
      case 1:
        feed(input.bytes(input.u16() % 2048), 1 + input.u8());
        break;
      case 2:
        frame(input);
        break;
      case 3:
        call(op);
        break;
      case 4:
        if (!kept_.empty()) {
          kept_.front().reply(to_bytes(input.bytes(op)));
          kept_.pop_front();
        }
        break;
      case 5:
        wire_->take_write();
        break;
      case 6:
        world_.run_for(int64_t{op} * 20 * kMillisecond);
        break;
      default:
        end(op / 8, input);
    }
    feed({}, SIZE_MAX);
    process_turns();
    require(kept_.size() <= kRequestsMax, "unanswered requests are bounded");
  }

 private:
  void frame(Input& input) {
    wire::FrameHeader header;
    header.kind = static_cast<wire::FrameKind>(1 + input.u8() % 4);
    header.type = input.u8();
    header.id = input.u8();
    header.fd_count = header.type % 3;
    ByteView payload = input.bytes(input.u8());
    header.length = static_cast<uint32_t>(payload.size());
    feed(Output().add(header).bytes(payload).take(), 1 + input.u8());
  }
  void feed(ByteView bytes, size_t piece) {
    if (wire_->coming.size() > (64u << 10)) return;
    wire_->coming.insert(wire_->coming.end(), bytes.begin(), bytes.end());
    wire_->deliver(piece);
  }
  void call(uint8_t op) {
    if (!channel_) return;
    ++calls_;
    channel_->call(op, Bytes(op), op % 2 == 0 ? rpc::kNoTimeout : int64_t{op} * kMillisecond,
                   [this, answered = false](Result<rpc::Reply>) mutable {
                     require(!std::exchange(answered, true), "one answer for a call");
                     ++answers_;
                   });
  }
  void request(rpc::Incoming in, rpc::Responder out) {
    require(!over_, "no request after the end");
    switch (in.type % 8) {
      case 0:
        return out.reply(std::move(in.payload));
      case 1:
        return out.refuse({Code::kDenied, "no"});
      case 2:
        return;  // dropped
      case 3:
        if (channel_) channel_->close();
        return;
      case 4:
        channel_.reset();
        return;
      default:
        kept_.push_back(std::move(out));
    }
  }
  // Ends, or another stream after which the other side claims to have got some of what was sent.
  void end(uint8_t how, Input& input) {
    if (how % 8 == 3 && channel_) channel_->keep_for_resume(4096);
    if (how % 8 == 4 && channel_ && channel_->open()) {
      channel_->suspend();
      if (input.u8() % 2 == 0) world_.run_for(kMillisecond);
      wire_ = std::make_shared<Wire>();
      if (channel_->open()) channel_->resume(std::make_unique<WireStream>(wire_), input.u8());
    }
    if (how % 8 == 0) wire_->end();
    if (how % 8 == 1 && channel_) channel_->close();
    if (how % 8 == 2) channel_.reset();
  }
  void process_turns() { world_.run_for(kMillisecond); }

  io::SimWorld world_{1};
  io::SimProcess& process_;
  std::shared_ptr<Wire> wire_;
  std::unique_ptr<rpc::Channel> channel_;
  std::deque<rpc::Responder> kept_;
  size_t calls_ = 0, answers_ = 0;
  bool over_ = false;
};

Bytes frame_seed(uint8_t kind, uint8_t type, uint8_t id) {
  return Output().u8(3).u8(2).u8(kind).u8(type).u8(id).u8(4).bytes(as_bytes("four")).u8(0).u8(4).u8(5).take();
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (uint8_t type = 0; type < 8; ++type) all.push_back(frame_seed(0, type, 1));
  all.push_back(frame_seed(1, 0, 1));
  all.push_back(frame_seed(2, 15, 0));
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kRequest;
  header.type = 5;
  all.push_back(Output().u8(0).u16(sizeof header).add(header).u8(7).take());
  return all;
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  moontide::fuzz::Scene scene;
  for (int steps = 0; steps < 200 && !input.empty(); ++steps) scene.step(input);
  return 0;
}
