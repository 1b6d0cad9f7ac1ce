// The cluster secret's challenge: who passes, who does not, and what strangers can and cannot do at the door.
#include "io/inproc.h"
#include "rpc/channel.h"
#include "rpc/secure_network.h"
#include "unit/io_support.h"
#include "wire/challenge_messages.h"

namespace moontide::rpc {
namespace {

using io::Stream;
using io::test::run_until;

std::shared_ptr<Security> with_secret(std::string_view secret) {
  auto security = std::make_shared<Security>();
  if (!secret.empty()) security->secret = *ClusterSecret::create(as_bytes(secret));
  security->timeout_ns = kSecond;
  return security;
}

constexpr std::string_view kSecret = "sixteen bytes and more";

// One port behind a secret, and whoever connects to it. `address` decides over what.
struct Door {
  explicit Door(std::string_view secret = kSecret, const std::string& address = "127.0.0.1:0",
                std::string purpose = "engine")
      : security(with_secret(secret)), network(reactor, sockets, std::move(purpose), security) {
    auto made = network.listen(address, [this](std::unique_ptr<Stream> stream) {
      channels.push_back(std::make_unique<Channel>(reactor, std::move(stream)));
      Channel::Handlers handlers;
      handlers.request = [this](Incoming request, Responder responder) {
        ++served;
        responder.reply(std::move(request.payload));
      };
      channels.back()->start(std::move(handlers));
    });
    REQUIRE_MESSAGE(made, (made ? "" : made.error().text()));
    listener = std::move(*made);
  }
  bool until(const std::function<bool()>& ready) { return run_until(reactor, ready); }

  // The outcome of one connect, and of one call on the channel that it gave.
  Result<Bytes> visit(io::Network& with, Bytes payload = Bytes(3)) {
    std::optional<Result<Bytes>> outcome;
    std::unique_ptr<Channel> channel;
    with.connect(listener->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
      if (!stream) {
        outcome = std::unexpected(stream.error());
        return;
      }
      channel = std::make_unique<Channel>(reactor, std::move(*stream));
      channel->start({});
      channel->call(7, payload, kSecond, [&](Result<Reply> reply) {
        outcome = reply ? Result<Bytes>(std::move(reply->payload)) : std::unexpected(reply.error());
      });
    });
    REQUIRE(until([&] { return outcome.has_value(); }));
    return *outcome;
  }
  Result<Bytes> visit_with(std::string_view secret, std::string purpose = "engine") {
    visitor = with_secret(secret);
    SecureNetwork theirs(reactor, sockets, std::move(purpose), visitor);
    return visit(theirs);
  }
  // A connection on which the test speaks itself.
  std::unique_ptr<Channel> knock() {
    std::unique_ptr<Channel> channel;
    sockets.connect(listener->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
      REQUIRE(stream);
      channel = std::make_unique<Channel>(reactor, std::move(*stream));
      channel->start({});
    });
    REQUIRE(until([&] { return channel != nullptr; }));
    return channel;
  }
  Result<Bytes> ask(Channel& channel, uint16_t type, Bytes payload) {
    std::optional<Result<Bytes>> outcome;
    channel.call(type, std::move(payload), kSecond, [&](Result<Reply> reply) {
      outcome = reply ? Result<Bytes>(std::move(reply->payload)) : std::unexpected(reply.error());
    });
    REQUIRE(until([&] { return outcome.has_value(); }));
    return *outcome;
  }
  std::unique_ptr<io::test::RecordingSink> send_raw(ByteView bytes, std::unique_ptr<Stream>& stream) {
    auto sink = std::make_unique<io::test::RecordingSink>();
    sockets.connect(listener->address(), kSecond, [&](Result<std::unique_ptr<Stream>> made) {
      REQUIRE(made);
      stream = std::move(*made);
      stream->start(*sink);
      stream->write(bytes);
    });
    REQUIRE(until([&] { return stream != nullptr; }));
    return sink;
  }

  io::EpollReactor reactor;
  io::SocketNetwork sockets{reactor};
  std::shared_ptr<Security> security, visitor;
  SecureNetwork network;
  std::unique_ptr<io::Listener> listener;
  std::vector<std::unique_ptr<Channel>> channels;
  int served = 0;
};

bool mentions(const Error& error, std::string_view text) { return error.message.find(text) != std::string::npos; }

Bytes hello_of(Random& random, std::string purpose = "engine") {
  Bytes nonce(wire::kChallengeNonceBytes);
  random.fill(nonce);
  return wire::encode(wire::ChallengeHello{{}, std::move(purpose), nonce});
}

TEST_CASE("secret: both have it, over tcp and local sockets") {
  for (const std::string address : {"127.0.0.1:0", "[::1]:0", "unix:@moontide-test-door"}) {
    CAPTURE(address);
    Door door(kSecret, address);
    auto outcome = door.visit_with(kSecret);
    REQUIRE_MESSAGE(outcome, (outcome ? "" : outcome.error().text()));
    CHECK(outcome->size() == 3);
    CHECK(door.security->counters.authenticated == 1);
    CHECK(door.visitor->counters.authenticated == 1);
    CHECK(door.security->counters.refused + door.visitor->counters.refused == 0);
  }
}

TEST_CASE("secret: a connection leaves by the address it was asked to, with and without one") {
  for (std::string_view secret : {kSecret, std::string_view()}) {
    Door door(secret);
    SecureNetwork theirs(door.reactor, door.sockets, "engine", with_secret(secret));
    std::string from;
    theirs.connect_from("127.0.0.2:0", door.listener->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
      from = stream ? (*stream)->local_address() : stream.error().text();
    });
    REQUIRE(door.until([&] { return !from.empty(); }));
    CHECK(from.starts_with("127.0.0.2:"));
  }
}

TEST_CASE("secret: another one is refused at both sides, with the reason") {
  Door door;
  auto outcome = door.visit_with("another secret, longer");
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code == Code::kDenied);
  CHECK(mentions(outcome.error(), "the cluster secrets differ"));
  CHECK(door.security->counters.refused == 1);
  CHECK(door.security->counters.last_refusal.find("the cluster secrets differ") != std::string::npos);
  CHECK(door.visitor->counters.refused == 1);
  CHECK(door.channels.empty());
  CHECK(door.served == 0);
}

TEST_CASE("secret: one side without is refused, with the reason") {
  Door door;
  auto outcome = door.visit(door.sockets);
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code == Code::kDenied);
  CHECK(mentions(outcome.error(), "a cluster secret is required here"));
  CHECK(door.security->counters.refused == 1);
  CHECK(door.served == 0);

  Door open("");
  auto other = open.visit_with(kSecret);  // the echo there answers the hello with the hello
  REQUIRE_FALSE(other);
  CHECK(open.visitor->counters.refused == 1);
}

TEST_CASE("secret: a connection means the same at both ends") {
  Door door(kSecret, "127.0.0.1:0", "master");
  auto outcome = door.visit_with(kSecret, "engine");
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code == Code::kDenied);
  CHECK(mentions(outcome.error(), "port of a moontide master"));
  CHECK(door.visit_with(kSecret, "master"));
}

TEST_CASE("secret: a proof fits one role, one pair of nonces, one purpose, one channel") {
  auto secret = *ClusterSecret::create(as_bytes(kSecret));
  auto other = *ClusterSecret::create(as_bytes("another secret, longer"));
  SeededRandom random(1);
  const Bytes hello = hello_of(random), hello2 = hello_of(random), reply(40, std::byte{1}), reply2(40, std::byte{2});
  const Bytes binding(32, std::byte{3});
  const auto proof = secret.prove(ChallengeRole::kConnector, hello, reply, binding);
  CHECK(secret.accepts(proof, ChallengeRole::kConnector, hello, reply, binding));
  CHECK_FALSE(secret.accepts(proof, ChallengeRole::kAcceptor, hello, reply, binding));
  CHECK_FALSE(secret.accepts(proof, ChallengeRole::kConnector, hello2, reply, binding));
  CHECK_FALSE(secret.accepts(proof, ChallengeRole::kConnector, hello, reply2, binding));
  CHECK_FALSE(secret.accepts(proof, ChallengeRole::kConnector, hello, reply, {}));
  CHECK_FALSE(other.accepts(proof, ChallengeRole::kConnector, hello, reply, binding));
  CHECK_FALSE(secret.accepts({}, ChallengeRole::kConnector, hello, reply, binding));
  CHECK(ClusterSecret::create(as_bytes("fifteen bytes..")).error().code == Code::kInvalid);
}

TEST_CASE("secret: what was recorded opens nothing") {
  Door door;
  auto secret = *door.security->secret;
  SeededRandom random(2);
  const Bytes hello = hello_of(random);
  auto first = door.knock();
  auto reply = door.ask(*first, wire::kChallengeHello, hello);
  REQUIRE(reply);
  const auto proof =
      wire::encode(wire::ChallengeProof{to_bytes(secret.prove(ChallengeRole::kConnector, hello, *reply, {}))});
  REQUIRE(door.ask(*first, wire::kChallengeProof, proof));
  CHECK(door.security->counters.authenticated == 1);
  auto second = door.knock();
  auto fresh = door.ask(*second, wire::kChallengeHello, hello);
  REQUIRE(fresh);
  CHECK(*fresh != *reply);
  auto refused = door.ask(*second, wire::kChallengeProof, proof);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kDenied);
  CHECK(door.channels.size() == 1);
}

TEST_CASE("secret: an acceptor's own answers sent back to it open nothing") {
  Door door;
  SeededRandom random(3);
  // the stranger learns a nonce of the door on one connection, uses it as its own on another, and sends back proofs
  auto first = door.knock();
  auto reply = door.ask(*first, wire::kChallengeHello, hello_of(random));
  REQUIRE(reply);
  auto challenge = wire::decode<wire::ChallengeReply>(*reply);
  REQUIRE(challenge);
  auto second = door.knock();
  REQUIRE(door.ask(*second, wire::kChallengeHello, wire::encode(wire::ChallengeHello{{}, "engine", challenge->nonce})));
  auto refused = door.ask(*second, wire::kChallengeProof, wire::encode(wire::ChallengeProof{challenge->nonce}));
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kDenied);
  // nothing that could be tried secrets on was given: proofs come after proofs only
  CHECK(door.security->counters.authenticated == 0);
}

TEST_CASE("secret: an impostor that listens learns no secret and is found out") {
  io::EpollReactor reactor;
  io::SocketNetwork sockets(reactor);
  std::vector<std::unique_ptr<Channel>> channels;
  for (bool echo_proof : {false, true}) {
    CAPTURE(echo_proof);
    auto listener = sockets.listen("127.0.0.1:0", [&](std::unique_ptr<Stream> stream) {
      channels.push_back(std::make_unique<Channel>(reactor, std::move(stream)));
      Channel::Handlers handlers;
      handlers.request = [echo_proof](Incoming request, Responder responder) {
        if (request.type == wire::kChallengeHello) return responder.reply(wire::ChallengeReply{1, Bytes(32)});
        responder.reply(
            wire::ChallengeProof{echo_proof ? wire::decode<wire::ChallengeProof>(request.payload)->proof : Bytes(32)});
      };
      channels.back()->start(std::move(handlers));
    });
    REQUIRE(listener);
    auto security = with_secret(kSecret);
    SecureNetwork network(reactor, sockets, "engine", security);
    std::optional<Error> error;
    network.connect((*listener)->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
      error = stream ? Error{Code::kOk, ""} : stream.error();
    });
    REQUIRE(run_until(reactor, [&] { return error.has_value(); }));
    CHECK(error->code == Code::kDenied);
    CHECK(mentions(*error, "the peer does not know the cluster secret"));
    CHECK(security->counters.refused == 1);
  }
}

TEST_CASE("secret: malformed challenges end the connection and are counted") {
  Door door;
  SeededRandom random(4);
  const Bytes good = hello_of(random);
  uint64_t refused = 0;
  auto refuses = [&](Bytes hello) {
    auto channel = door.knock();
    auto outcome = door.ask(*channel, wire::kChallengeHello, std::move(hello));
    CHECK_FALSE(outcome);
    CHECK(door.security->counters.refused == ++refused);
  };
  for (size_t size = 0; size < good.size(); ++size)
    refuses(Bytes(good.begin(), good.begin() + static_cast<long>(size)));
  refuses(wire::encode(wire::ChallengeHello{{9, 12}, "engine", Bytes(32)}));
  refuses(wire::encode(wire::ChallengeHello{{}, "engine", Bytes(31)}));
  refuses(wire::encode(wire::ChallengeHello{{}, std::string(900, 'x'), Bytes(32)}));
  auto hasty = door.knock();  // a proof before any challenge
  CHECK_FALSE(door.ask(*hasty, wire::kChallengeProof, wire::encode(wire::ChallengeProof{Bytes(32)})));
  auto stubborn = door.knock();  // a second hello for another nonce
  REQUIRE(door.ask(*stubborn, wire::kChallengeHello, good));
  CHECK_FALSE(door.ask(*stubborn, wire::kChallengeHello, good));
  CHECK_FALSE(door.ask(*stubborn, wire::kChallengeProof, wire::encode(wire::ChallengeProof{Bytes(32)})));
  CHECK(door.channels.empty());
  CHECK(door.served == 0);
}

TEST_CASE("secret: garbage and long frames are refused before there is room for them") {
  Door door;
  SeededRandom random(5);
  Bytes noise(4096);
  random.fill(noise);
  std::vector<Bytes> openings = {noise};
  for (uint32_t length : {1025u, 1u << 24, 0x80000000u, 0xffffffffu}) {
    wire::FrameHeader header{.length = length, .kind = wire::FrameKind::kRequest, .type = wire::kChallengeHello};
    openings.push_back(to_bytes(std::as_bytes(std::span(&header, 1))));
  }
  for (const Bytes& opening : openings) {
    std::unique_ptr<Stream> stream;
    const uint64_t before = door.security->counters.refused;
    auto sink = door.send_raw(opening, stream);
    CHECK(door.until([&] { return sink->closes == 1; }));
    CHECK(door.security->counters.refused == before + 1);
  }
  CHECK(door.visit_with(kSecret));
}

TEST_CASE("secret: who is slow is out at the deadline, who connects again and again makes room") {
  Door door;
  door.security->timeout_ns = 50 * kMillisecond;
  SeededRandom random(6);
  // half a hello, and then nothing
  wire::FrameHeader header{.length = 60, .kind = wire::FrameKind::kRequest, .type = wire::kChallengeHello};
  std::unique_ptr<Stream> stream;
  auto sink = door.send_raw(std::as_bytes(std::span(&header, 1)), stream);
  CHECK(door.until([&] { return sink->closes == 1; }));
  CHECK(door.security->counters.refused == 1);
  CHECK(door.security->counters.last_refusal.find("in time") != std::string::npos);

  door.security->timeout_ns = 60 * kSecond;
  door.security->waiting_max = 4;
  std::vector<std::unique_ptr<Stream>> silent(12);
  std::vector<std::unique_ptr<io::test::RecordingSink>> sinks;
  for (auto& each : silent) sinks.push_back(door.send_raw(std::as_bytes(std::span(&header, 1)), each));
  CHECK(door.until([&] { return door.security->counters.refused == 9; }));
  CHECK(door.visit_with(kSecret));
  CHECK(door.until([&] { return sinks.front()->closes == 1; }));
}

TEST_CASE("secret: listeners and networks go while peers are at the door") {
  auto door = std::make_unique<Door>();
  SeededRandom random(7);
  auto inside = door->knock();
  REQUIRE(door->ask(*inside, wire::kChallengeHello, hello_of(random)));
  int called = 0;
  {
    SecureNetwork theirs(door->reactor, door->sockets, "engine", with_secret(kSecret));
    theirs.connect(door->listener->address(), kSecond, [&](Result<std::unique_ptr<Stream>>) { ++called; });
  }
  door->listener.reset();
  CHECK_FALSE(door->ask(*inside, wire::kChallengeProof, wire::encode(wire::ChallengeProof{Bytes(32)})));
  CHECK(called == 0);
}

TEST_CASE("secret: a listener may end itself when a peer comes in") {
  io::EpollReactor reactor;
  io::InprocNetwork inner(reactor);
  SecureNetwork network(reactor, inner, "engine", with_secret(kSecret));
  std::unique_ptr<io::Listener> listener;
  std::unique_ptr<Stream> accepted, connected;
  io::test::RecordingSink sinks[2];
  listener = *network.listen("inproc:one", [&](std::unique_ptr<Stream> stream) {
    accepted = std::move(stream);
    accepted->start(sinks[0]);
    listener.reset();
  });
  network.connect("inproc:one", kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
    REQUIRE(stream);
    connected = std::move(*stream);
    connected->start(sinks[1]);
    connected->write(as_bytes("after"));
  });
  REQUIRE(run_until(reactor, [&] { return sinks[0].text() == "after"; }));
  CHECK(listener == nullptr);
}

}  // namespace
}  // namespace moontide::rpc
