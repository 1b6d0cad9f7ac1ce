#include "rpc/secure_network.h"

#include "io/leave.h"
#include "rpc/lobby.h"

namespace moontide::rpc {

// The connecting side of one challenge.
class SecureNetwork::Visitor final : public std::enable_shared_from_this<Visitor> {
 public:
  Visitor(SecureNetwork& network, uint64_t number, std::string from, std::string address, int64_t timeout_ns,
          Connected connected)
      : network_(network),
        number_(number),
        from_(std::move(from)),
        address_(std::move(address)),
        deadline_ns_(network.reactor_.now_ns() + timeout_ns),
        connected_(std::move(connected)) {}

  void start() {
    network_.inner_.connect_from(from_, address_, left_ns(),
                                 [self = shared_from_this()](Result<std::unique_ptr<io::Stream>> stream) {
                                   if (!self->connected_) return;
                                   if (!stream) return self->finish(std::unexpected(stream.error()));
                                   self->greet(std::move(*stream));
                                 });
  }
  void abort() {
    connected_ = {};
    channel_.reset();  // its calls hold this object
  }

 private:
  int64_t left_ns() const { return std::max<int64_t>(deadline_ns_ - network_.reactor_.now_ns(), 0); }

  void greet(std::unique_ptr<io::Stream> stream) {
    if (network_.security_->tls && encryptable(address_)) {
      stream = io::make_tls_stream(network_.reactor_, std::move(stream), network_.security_->tls,
                                   io::TlsRole::kConnector, {});
    }
    channel_ = std::make_unique<Channel>(network_.reactor_, std::move(stream), challenge_limits());
    channel_->start({.request = {}, .notice = {}, .closed = [this](const Error& cause) { refused(cause); }});
    hello_ = wire::encode(wire::ChallengeHello{{}, network_.purpose_, make_nonce(network_.reactor_.random())});
    channel_->call(wire::kChallengeHello, hello_, left_ns(), [self = shared_from_this()](Result<Reply> reply) {
      if (!self->connected_) return;
      if (!reply) return self->refused(reply.error());
      auto challenge = wire::decode_prefix<wire::ChallengeReply>(reply->payload);
      if (!challenge) return self->refused(challenge.error());
      if (challenge->nonce.size() != wire::kChallengeNonceBytes) {
        return self->refused({Code::kInvalid, "a nonce of " + std::to_string(challenge->nonce.size()) + " bytes"});
      }
      self->reply_ = std::move(reply->payload);
      self->prove();
    });
  }

  void prove() {
    binding_ = channel_->stream()->binding();
    const auto proof = secret().prove(ChallengeRole::kConnector, hello_, reply_, binding_);
    channel_->call(wire::kChallengeProof, wire::encode(wire::ChallengeProof{to_bytes(proof)}), left_ns(),
                   [self = shared_from_this()](Result<Reply> reply) {
                     if (!self->connected_) return;
                     if (!reply) return self->refused(reply.error());
                     auto theirs = wire::decode<wire::ChallengeProof>(reply->payload);
                     if (!theirs) return self->refused(theirs.error());
                     if (!self->secret().accepts(theirs->proof, ChallengeRole::kAcceptor, self->hello_, self->reply_,
                                                 self->binding_)) {
                       return self->refused({Code::kDenied, "the peer does not know the cluster secret"});
                     }
                     ++self->network_.security_->counters.authenticated;
                     self->finish(self->channel_->detach());
                   });
  }

  void refused(const Error& cause) {
    Error error = cause;
    if (cause.code == Code::kPeerLost)
      error.message += " during the challenge (secret_file or tls options may differ there)";
    network_.security_->refuse(address_, error.message);
    finish(fail(error.code, address_ + ": " + error.message));
  }

  void finish(Result<std::unique_ptr<io::Stream>> outcome) {
    auto self = shared_from_this();
    network_.visitors_.erase(number_);
    if (channel_) {  // it may be the caller
      channel_->close();
      network_.reactor_.post([channel = std::shared_ptr<Channel>(std::move(channel_))] {});
    }
    std::exchange(connected_, {})(std::move(outcome));
  }

  const ClusterSecret& secret() const { return *network_.security_->secret; }

  SecureNetwork& network_;
  const uint64_t number_;
  const std::string from_, address_;
  const int64_t deadline_ns_;
  Connected connected_;
  std::unique_ptr<Channel> channel_;
  Bytes hello_, reply_, binding_;
};

SecureNetwork::SecureNetwork(io::Reactor& reactor, io::Network& inner, std::string purpose,
                             std::shared_ptr<Security> security)
    : reactor_(reactor), inner_(inner), purpose_(std::move(purpose)), security_(std::move(security)) {}

SecureNetwork::~SecureNetwork() {
  for (auto& [number, visitor] : std::exchange(visitors_, {})) visitor->abort();
}

Result<std::unique_ptr<io::Listener>> SecureNetwork::listen(const std::string& address, Accepted accepted) {
  if (!security_->secret) return inner_.listen(address, std::move(accepted));
  auto lobby = std::make_shared<Lobby>(reactor_, security_, purpose_, encryptable(address), std::move(accepted));
  TRY(auto listener,
      inner_.listen(address, [lobby](std::unique_ptr<io::Stream> stream) { lobby->receive(std::move(stream)); }));
  return std::unique_ptr<io::Listener>(std::make_unique<LobbyListener>(std::move(listener), std::move(lobby)));
}

void SecureNetwork::connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                                 Connected connected) {
  if (!security_->secret) return inner_.connect_from(from, address, timeout_ns, std::move(connected));
  const uint64_t number = next_visitor_++;
  auto visitor = std::make_shared<Visitor>(*this, number, from, address, timeout_ns, std::move(connected));
  visitors_.emplace(number, visitor);
  visitor->start();
}

Result<io::NewLeave> SecureNetwork::give_leave(const io::PeerCredentials& holder, io::Task over) {
  return inner_.give_leave(holder, std::move(over));
}

}  // namespace moontide::rpc
