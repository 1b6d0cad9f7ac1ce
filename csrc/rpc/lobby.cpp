#include "rpc/lobby.h"

namespace moontide::rpc {
namespace {

constexpr int64_t kPartingNs = 200 * kMillisecond;  // for a peer that was refused to read why

// The refusal of its first call, as a connector without TLS understands it.
Bytes plain_answer() {
  static constexpr std::string_view kWhy = "TLS is required here (tls_cert, tls_key, tls_ca)";
  wire::FrameHeader header{.length = kWhy.size(),
                           .kind = wire::FrameKind::kReply,
                           .type = static_cast<uint16_t>(Code::kDenied),
                           .id = Channel::kFirstCall};
  Bytes answer = to_bytes(std::as_bytes(std::span(&header, 1)));
  answer.insert(answer.end(), as_bytes(kWhy).begin(), as_bytes(kWhy).end());
  return answer;
}

}  // namespace

ChannelLimits challenge_limits() {
  return {.requests_in_max = 2,
          .requests_out_max = 2,
          .pending_bytes_max = 64u << 10,
          .payload_max = wire::kChallengePayloadMax,
          .fds_max = 0};
}

Bytes make_nonce(Random& random) {
  Bytes nonce(wire::kChallengeNonceBytes);
  random.fill(nonce);
  return nonce;
}

// The accepting side of one challenge.
class Lobby::Entrant final : public std::enable_shared_from_this<Entrant> {
 public:
  Entrant(Lobby& lobby, uint64_t number, std::unique_ptr<io::Stream> stream)
      : lobby_(lobby),
        number_(number),
        peer_(stream->peer_address()),
        channel_(std::make_unique<Channel>(lobby.reactor_, std::move(stream), challenge_limits())),
        deadline_(lobby.reactor_) {}

  void start() {
    deadline_.start(lobby_.security_->timeout_ns, [this] {
      if (!refused_) lobby_.security_->refuse(peer_, "it did not prove in time that it has the cluster secret");
      leave();
    });
    channel_->start({
        .request = [this](Incoming incoming,
                          Responder responder) { request(std::move(incoming), std::move(responder)); },
        .notice = [this](Incoming) { stranger(); },
        .closed =
            [this](const Error& cause) {
              if (!refused_ && (cause.code != Code::kPeerLost || spoke_)) {
                lobby_.security_->refuse(peer_, cause.message);
              }
              leave();
            },
    });
  }

  void turn_away(const std::string& why) {
    lobby_.security_->refuse(peer_, why);
    leave();
  }

  // Calls nothing of the lobby any more.
  void drop() {
    deadline_.stop();
    channel_->close();
  }

 private:
  void request(Incoming incoming, Responder responder) {
    spoke_ = true;
    if (refused_) return leave();
    if (incoming.type == wire::kChallengeHello && hello_.empty()) return greeted(std::move(incoming), responder);
    if (incoming.type == wire::kChallengeProof && !hello_.empty()) return proved(incoming, responder);
    refuse(responder, "a cluster secret is required here (secret_file), and the peer proved none");
  }

  void greeted(Incoming incoming, Responder& responder) {
    auto hello = wire::decode_prefix<wire::ChallengeHello>(incoming.payload);
    if (!hello) return refuse(responder, hello.error().message);
    if (hello->protocol.min > wire::kProtocolMax || hello->protocol.max < wire::kProtocolMin) {
      return refuse(responder, "challenge of protocol [" + std::to_string(hello->protocol.min) + ", " +
                                   std::to_string(hello->protocol.max) + "], [" + std::to_string(wire::kProtocolMin) +
                                   ", " + std::to_string(wire::kProtocolMax) + "] here");
    }
    if (hello->purpose != lobby_.purpose_) {
      return refuse(responder, "this is the port of a moontide " + lobby_.purpose_ + "; the peer looks for '" +
                                   hello->purpose.substr(0, 64) + "'");
    }
    if (hello->nonce.size() != wire::kChallengeNonceBytes) {
      return refuse(responder, "a nonce of " + std::to_string(hello->nonce.size()) + " bytes");
    }
    hello_ = std::move(incoming.payload);
    reply_ = wire::encode(wire::ChallengeReply{wire::kProtocolMax, make_nonce(lobby_.reactor_.random())});
    responder.reply(reply_);
  }

  void proved(const Incoming& incoming, Responder& responder) {
    const ClusterSecret& secret = *lobby_.security_->secret;
    const Bytes binding = channel_->stream()->binding();
    auto theirs = wire::decode<wire::ChallengeProof>(incoming.payload);
    if (!theirs) return refuse(responder, theirs.error().message);
    if (!secret.accepts(theirs->proof, ChallengeRole::kConnector, hello_, reply_, binding)) {
      return refuse(responder, "the cluster secrets differ");
    }
    const auto ours = secret.prove(ChallengeRole::kAcceptor, hello_, reply_, binding);
    responder.reply(wire::encode(wire::ChallengeProof{to_bytes(ours)}));
    ++lobby_.security_->counters.authenticated;
    deadline_.stop();
    lobby_.pass(number_, channel_->detach());
  }

  // Says why, and gives the peer a moment to read it: what is closed with bytes unread takes back what was sent.
  void refuse(Responder& responder, const std::string& why) {
    responder.refuse({Code::kDenied, why});
    refused_ = true;
    lobby_.security_->refuse(peer_, why);
    deadline_.start(kPartingNs, [this] { leave(); });
  }

  void stranger() {
    if (std::exchange(refused_, true)) return;
    turn_away("a cluster secret is required here (secret_file), and the peer proved none");
  }

  void leave() {
    auto self = shared_from_this();
    drop();
    // the channel may be the caller: it goes in a later turn
    lobby_.reactor_.post([channel = std::shared_ptr<Channel>(std::move(channel_))] {});
    lobby_.waiting_.erase(number_);
  }

  Lobby& lobby_;
  const uint64_t number_;
  const std::string peer_;
  std::unique_ptr<Channel> channel_;
  io::Timer deadline_;
  Bytes hello_, reply_;
  bool spoke_ = false;
  bool refused_ = false;
};

Lobby::Lobby(io::Reactor& reactor, std::shared_ptr<Security> security, std::string purpose, bool encrypted,
             io::Network::Accepted accepted)
    : reactor_(reactor),
      security_(std::move(security)),
      purpose_(std::move(purpose)),
      encrypted_(encrypted && security_->tls != nullptr),
      accepted_(std::move(accepted)) {}

Lobby::~Lobby() = default;

void Lobby::receive(std::unique_ptr<io::Stream> stream) {
  // the one that has been silent for longest makes room: whoever has the secret is through within a moment
  if (waiting_.size() >= security_->waiting_max) {
    auto oldest = waiting_.begin()->second;
    oldest->turn_away("too many peers wait that have not proved the cluster secret");
  }
  if (encrypted_) {
    stream = io::make_tls_stream(reactor_, std::move(stream), security_->tls, io::TlsRole::kAcceptor, plain_answer());
  }
  const uint64_t number = next_++;
  auto entrant = std::make_shared<Entrant>(*this, number, std::move(stream));
  waiting_.emplace(number, entrant);
  entrant->start();
}

void Lobby::pass(uint64_t number, std::unique_ptr<io::Stream> stream) {
  auto self = shared_from_this();
  auto entrant = waiting_.extract(number);  // its channel is the caller
  reactor_.post([entrant = std::shared_ptr<Entrant>(std::move(entrant.mapped()))] {});
  if (!accepted_) return;
  io::Network::Accepted accepted = std::move(accepted_);  // the callback may end the listener, and itself with it
  accepted(std::move(stream));
  if (!closed_) accepted_ = std::move(accepted);
}

void Lobby::close() {
  closed_ = true;
  accepted_ = {};
  for (auto& [number, entrant] : std::exchange(waiting_, {})) {
    entrant->drop();
    reactor_.post([entrant = std::move(entrant)] {});  // it may be the caller
  }
}

}  // namespace moontide::rpc
