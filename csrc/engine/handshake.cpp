#include "engine/handshake.h"

#include <unistd.h>

#include <algorithm>

#include "engine/engine.h"
#include "wire/challenge_messages.h"

namespace moontide::engine {
namespace {

std::string range_text(const wire::ProtocolRange& range) {
  return "[" + std::to_string(range.min) + ", " + std::to_string(range.max) + "]";
}

// The highest version that both speak, or both ranges in the refusal.
Result<uint16_t> agree(const wire::ProtocolRange& ours, const wire::ProtocolRange& theirs) {
  uint16_t high = std::min(ours.max, theirs.max);
  if (theirs.min > theirs.max || high < ours.min || high < theirs.min) {
    return fail(Code::kIncompatible, "protocol " + range_text(ours) + " here, " + range_text(theirs) + " there");
  }
  return high;
}

constexpr size_t kAddressMax = 256;
constexpr size_t kSupersededMax = 16;
constexpr int kQuestionsMax = 4;  // of a peer that has not said hello: a probe, a hello, and the same again
constexpr size_t kRailsMax = 16;

bool are_modest(const std::vector<std::string>& rails) {
  return rails.size() <= kRailsMax &&
         std::ranges::all_of(rails, [](const std::string& rail) { return rail.size() <= kAddressMax; });
}

bool runs_as_we_do(const io::Stream& stream) {
  auto credentials = stream.credentials();
  return credentials && credentials->uid == geteuid();
}

std::shared_ptr<memory::GenerationView> view_of(std::vector<io::Fd>& fds) {
  if (fds.size() != 1) return nullptr;
  auto mapping = memory::Mapping::map(fds[0].get(), memory::GenerationTable::kWords * sizeof(uint64_t));
  return mapping ? std::make_shared<memory::GenerationView>(std::move(*mapping)) : nullptr;
}

}  // namespace

// --- opener ---

Opener::Opener(Engine& engine, std::string address, int64_t timeout_ns, Opened opened)
    : engine_(engine),
      engine_alive_(engine.alive()),
      address_(std::move(address)),
      within_(address_ == engine.own_address()),
      deadline_ns_(engine.reactor().now_ns() + timeout_ns),
      opened_(std::move(opened)) {}

int64_t Opener::left_ns() const { return std::max<int64_t>(deadline_ns_ - engine_.reactor().now_ns(), 0); }

void Opener::connect(const std::string& address, std::move_only_function<void(Result<>)> next) {
  engine_.network().connect(
      address, left_ns(),
      [self = shared_from_this(), next = std::move(next)](Result<std::unique_ptr<io::Stream>> stream) mutable {
        if (self->engine_alive_.expired()) return;
        if (!stream) return next(std::unexpected(stream.error()));
        self->channel_ = std::make_unique<rpc::Channel>(self->engine_.reactor(), std::move(*stream));
        self->channel_->start({});  // calls in flight end with PEER_LOST by themselves
        next({});
      });
}

void Opener::start() {
  connect(address_, [self = shared_from_this()](Result<> connected) {
    if (!connected) return self->finish(std::unexpected(connected.error()));
    self->probe();
  });
}

void Opener::probe() {
  channel_->call(wire::kProbe, wire::encode(wire::Probe{engine_.options().protocol}), left_ns(),
                 [self = shared_from_this()](Result<rpc::Reply> reply) {
                   if (self->engine_alive_.expired()) return;
                   if (!reply) return self->finish(std::unexpected(reply.error()));
                   auto peer = wire::decode_prefix<wire::ProbeReply>(reply->payload);
                   if (!peer) return self->finish(std::unexpected(peer.error()));
                   if (auto version = agree(self->engine_.options().protocol, peer->protocol); !version)
                     return self->finish(std::unexpected(version.error()));
                   self->probed(*peer);
                 });
}

void Opener::probed(const wire::ProbeReply& peer) {
  peer_ = peer;
  if (peer.instance == engine_.instance() && !within_) {
    // another name for this engine, or somebody who only says so: either way the link leads back here
    address_ = engine_.own_address();
    within_ = true;
    channel_.reset();
    return start();
  }
  bool local = !within_ && !peer.local_name.empty() && peer.boot_id == engine_.boot_id() &&
               engine_.options().local_reads != LocalReads::kOff;
  if (!local) return hello(false);
  fallback_ = std::move(channel_);
  connect(peer.local_name, [self = shared_from_this()](Result<> connected) {
    // no common local socket (another network namespace), or a process of another user, which gets no descriptors
    if (!connected || !runs_as_we_do(*self->channel_->stream())) {
      self->channel_ = std::move(self->fallback_);
      return self->hello(false);
    }
    self->hello(true);
  });
}

void Opener::hello(bool local) {
  wire::Hello message;
  message.protocol = engine_.options().protocol;
  message.instance = engine_.instance();
  message.address = engine_.address();
  message.local = local;
  superseded_ = engine_.superseded(peer_.instance);
  message.superseded = superseded_;
  message.rails = engine_.rails();
  std::vector<int> fds;
  if (local) fds.push_back(engine_.registry().generations().arena().fd());
  channel_->call(
      wire::kHello, wire::encode(message), left_ns(),
      [self = shared_from_this(), local](Result<rpc::Reply> reply) { self->greeted(local, std::move(reply)); }, fds);
}

void Opener::greeted(bool local, Result<rpc::Reply> reply) {
  if (engine_alive_.expired()) return;
  if (!reply && local && fallback_) {
    channel_ = std::move(fallback_);
    return hello(false);
  }
  if (!reply) return finish(std::unexpected(reply.error()));
  auto answer = wire::decode_prefix<wire::HelloReply>(reply->payload);
  if (!answer) return finish(std::unexpected(answer.error()));
  if (!are_modest(answer->rails)) return finish(fail(Code::kInvalid, "the peer names too many rails"));
  if (answer->instance != peer_.instance)
    return finish(fail(Code::kStale, "the peer was replaced during the handshake"));
  if (auto version = agree(engine_.options().protocol, {answer->protocol, answer->protocol}); !version)
    return finish(std::unexpected(version.error()));
  engine_.superseded_confirmed(superseded_);
  Link::Identity identity;
  identity.version = answer->protocol;
  identity.token = answer->token;
  identity.peer = answer->instance;
  identity.peer_address = address_;
  identity.initiator = true;
  identity.rails = engine_.rails();
  identity.peer_rails = answer->rails;
  identity.same_engine = within_;
  if (local) {
    auto credentials = channel_->stream()->credentials();
    identity.generations = view_of(reply->fds);
    identity.same_host = credentials.has_value() && identity.generations != nullptr;
    if (credentials) identity.credentials = std::move(*credentials);
  }
  if (!engine_.has_room_for_link()) return finish(fail(Code::kOverloaded, "too many links"));
  LinkRef link = engine_.adopt(std::move(channel_), std::move(identity));
  auto guard = std::make_shared<io::Timer>(engine_.reactor());
  guard->start(left_ns(), [link] { link->give_up({Code::kTimedOut, "the peer did not finish the handshake"}); });
  link->start([self = shared_from_this(), link, guard](Result<> ready) {
    guard->stop();
    if (ready) {
      self->finish(link);
    } else {
      self->finish(std::unexpected(ready.error()));
    }
  });
}

void Opener::abort() {
  opened_ = {};
  channel_.reset();  // its calls hold this object
  fallback_.reset();
}

void Opener::finish(Result<LinkRef> link) {
  if (opened_) std::exchange(opened_, {})(std::move(link));
}

// --- acceptor ---

Acceptor::Acceptor(Engine& engine, std::unique_ptr<io::Stream> stream, bool within,
                   std::move_only_function<void()> over)
    : engine_(engine),
      channel_(std::make_unique<rpc::Channel>(engine.reactor(), std::move(stream), rpc::kStrangerLimits)),
      within_(within),
      over_(std::move(over)),
      deadline_(engine.reactor()) {}

void Acceptor::start() {
  deadline_.start(engine_.options().connect_timeout_ns, [this] { finish(); });
  channel_->start({
      .request = [this](rpc::Incoming incoming,
                        rpc::Responder responder) { request(std::move(incoming), std::move(responder)); },
      .notice = {},
      .closed = [this](Error) { finish(); },
  });
}

void Acceptor::request(rpc::Incoming incoming, rpc::Responder responder) {
  if (++asked_ > kQuestionsMax) {  // answering costs this side more than asking costs a stranger
    ++engine_.mutable_counters().refused;
    return finish();
  }
  switch (incoming.type) {
    case wire::kProbe: {
      auto probe = wire::decode_prefix<wire::Probe>(incoming.payload);
      if (!probe) return responder.refuse(probe.error());
      if (auto agreed = agree(engine_.options().protocol, probe->protocol); !agreed)
        return responder.refuse(agreed.error());
      return responder.reply(
          wire::ProbeReply{engine_.options().protocol, engine_.instance(), engine_.boot_id(), engine_.local_name()});
    }
    case wire::kHello:
      return hello(std::move(incoming), std::move(responder));
    case wire::kResume:
      return resume(std::move(incoming), std::move(responder));
    case wire::kDataStream:
      return data_stream(std::move(incoming), std::move(responder));
    case wire::kChallengeHello:
      ++engine_.mutable_counters().refused;
      return responder.refuse({Code::kDenied, wire::kNoSecretHere});
    default:
      return responder.refuse({Code::kInvalid, "say hello first"});
  }
}

void Acceptor::hello(rpc::Incoming incoming, rpc::Responder responder) {
  auto message = wire::decode_prefix<wire::Hello>(incoming.payload);
  if (!message) return responder.refuse(message.error());
  auto version = agree(engine_.options().protocol, message->protocol);
  if (!version) return responder.refuse(version.error());
  if (within_ != (message->instance == engine_.instance())) {
    return responder.refuse({Code::kDenied, "that is the identity of this engine"});
  }
  if (message->address.size() > kAddressMax || message->superseded.size() > kSupersededMax ||
      !are_modest(message->rails)) {
    return responder.refuse({Code::kInvalid, "hello too long"});
  }
  if (!engine_.has_room_for_link()) return responder.refuse({Code::kOverloaded, "too many links"});
  Link::Identity identity;
  identity.version = *version;
  identity.same_engine = within_;
  identity.token = InstanceId::make(engine_.reactor().random());
  identity.peer = message->instance;
  identity.peer_address = message->address;
  identity.rails = engine_.rails();
  identity.peer_rails = message->rails;
  std::vector<int> fds;
  if (message->local) {
    auto credentials = channel_->stream()->credentials();
    if (!credentials) return responder.refuse(credentials.error());
    if (credentials->uid != geteuid()) return responder.refuse({Code::kDenied, "the peer runs as another user"});
    identity.generations = view_of(incoming.fds);
    if (!identity.generations) return responder.refuse({Code::kInvalid, "no generation table came along"});
    identity.same_host = true;
    identity.credentials = std::move(*credentials);
    fds.push_back(engine_.registry().generations().arena().fd());
  }
  // what the peer gave up may still have bytes in sockets here: it is over before the new link exists
  engine_.drop_links(message->superseded);
  InstanceId token = identity.token;
  channel_->limit({});
  LinkRef link = engine_.adopt(std::move(channel_), std::move(identity));
  responder.reply(wire::encode(wire::HelloReply{*version, engine_.instance(), token, engine_.rails()}), fds);
  link->start([](Result<>) {});
  finish();
}

void Acceptor::data_stream(rpc::Incoming incoming, rpc::Responder responder) {
  auto message = wire::decode<wire::DataStreamHello>(incoming.payload);
  if (!message) return responder.refuse(message.error());
  LinkRef link = engine_.link_by_token(message->token);
  if (!link || link->initiator()) return responder.refuse({Code::kNotFound, "no such link"});
  responder.reply(Bytes{});
  link->accept_stream(message->transport, message->id, channel_->detach());
  finish();
}

void Acceptor::resume(rpc::Incoming incoming, rpc::Responder responder) {
  auto message = wire::decode<wire::Resume>(incoming.payload);
  if (!message) return responder.refuse(message.error());
  LinkRef link = engine_.link_by_token(message->token);
  if (!link || link->initiator() || link->control() == nullptr || !link->open())
    return responder.refuse({Code::kNotFound, "no such link"});
  responder.reply(wire::encode(wire::Resumed{link->control()->suspend()}));
  link->control()->resumed(channel_->detach(), message->received);
  finish();
}

void Acceptor::close() {
  deadline_.stop();
  if (channel_) channel_->close();
}

void Acceptor::finish() {
  auto self = shared_from_this();
  deadline_.stop();
  if (channel_) channel_->close();
  if (over_) std::exchange(over_, {})();
}

}  // namespace moontide::engine
