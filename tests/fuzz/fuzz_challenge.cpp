// A port with a cluster secret, and strangers who say what they like, repeat what they heard, and quote the nonces:
// none of them passes, and none is kept waiting beyond its time.
#include <algorithm>

#include "fuzz/raw_peer.h"
#include "rpc/secure_network.h"
#include "wire/challenge_messages.h"

namespace moontide::fuzz {
namespace {

class Scene {
 public:
  Scene()
      : process_(world_.start_process("owner")),
        inner_(fabric_, process_),
        network_(process_, inner_, "engine", make_security()),
        wires_(fabric_, world_.start_process("stranger")) {
    fabric_.set_delays({kMicrosecond, 2 * kMicrosecond});
    listener_ = *network_.listen(
        "sim:owner:0", [](std::unique_ptr<io::Stream>) { require(false, "nobody passes without the secret"); });
    peers_.resize(3);
  }
  ~Scene() {
    world_.run_for(10 * kSecond);
    for (const auto& peer : peers_) require(!peer || peer->over(), "nobody waits for ever");
    peers_.clear();
  }

  void step(Input& input) {
    const uint8_t op = input.u8();
    auto& peer = peers_[op / 16u % peers_.size()];
    if (!peer) peer = std::make_unique<RawPeer>(wires_, listener_->address());
    switch (op % 8) {
      case 0:
        return peer->send(input.bytes(input.u8()));
      case 1: {
        const auto kind = static_cast<wire::FrameKind>(1 + input.u8() % 4);
        const auto type = static_cast<uint16_t>(wire::kChallengeHello + input.u8() % 3);
        const uint64_t id = input.u8();
        return peer->frame(kind, type, id, input.bytes(input.u8()));
      }
      case 2: {
        wire::ChallengeHello hello{{}, input.u8() % 4 == 0 ? "store" : "engine", nonce(input)};
        return peer->request(wire::kChallengeHello, hello);
      }
      case 3:
        if (auto reply = peer->answer<wire::ChallengeReply>()) heard_ = reply->nonce;
        return;
      case 4: {  // a proof of the right length: a nonce that was heard, or anything
        wire::ChallengeProof proof{nonce(input)};
        return peer->request(wire::kChallengeProof, proof);
      }
      case 5:
        if (op >= 192) peer.reset();
        return;
      default:
        world_.run_for(int64_t{input.u8()} * (op >= 128 ? 20 * kMillisecond : 10 * kMicrosecond));
    }
  }

 private:
  static std::shared_ptr<rpc::Security> make_security() {
    auto security = std::make_shared<rpc::Security>();
    security->secret = *rpc::ClusterSecret::create(as_bytes("a secret that no input knows"));
    security->waiting_max = 2;
    return security;
  }
  Bytes nonce(Input& input) {
    if (input.u8() % 2 == 0 && !heard_.empty()) return heard_;
    Bytes out = to_bytes(input.bytes(wire::kChallengeNonceBytes));
    out.resize(wire::kChallengeNonceBytes);
    return out;
  }

  io::SimWorld world_{1};
  io::SimFabric fabric_{world_};
  io::SimProcess& process_;
  io::SimNetwork inner_;
  rpc::SecureNetwork network_;
  io::SimNetwork wires_;
  std::unique_ptr<io::Listener> listener_;
  std::vector<std::unique_ptr<RawPeer>> peers_;
  Bytes heard_;
};

}  // namespace

std::vector<Bytes> seeds() {
  const Bytes nonce(wire::kChallengeNonceBytes, std::byte{1});
  Output proof;
  proof.u8(2).u8(1).u8(1).bytes(nonce).u8(6).u8(100).u8(3).u8(4).u8(0).u8(6).u8(100);
  Output twice;
  twice.u8(2).u8(1).u8(1).bytes(nonce).u8(6).u8(100).u8(3).u8(18).u8(1).u8(0).u8(22).u8(99).u8(20).u8(0).u8(22).u8(200);
  return {proof.take(), twice.take()};
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  moontide::fuzz::Scene scene;
  for (int steps = 0; steps < 60 && !input.empty(); ++steps) scene.step(input);
  return 0;
}
