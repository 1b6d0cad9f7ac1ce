#include "io/inproc.h"
#include "rpc/channel.h"
#include "unit/io_support.h"
#include "wire/engine_messages.h"

namespace moontide::rpc {
namespace {

using io::test::run_until;

// Two channels over a pair of in-process streams.
struct Ends {
  explicit Ends(ChannelLimits limits = {}) : network(reactor) {
    auto pair = io::test::connect_pair(reactor, network, "inproc:rpc");
    left = std::make_unique<Channel>(reactor, std::move(pair.client), limits);
    right = std::make_unique<Channel>(reactor, std::move(pair.server), limits);
  }
  void start(Channel::Handlers on_left, Channel::Handlers on_right) {
    left->start(std::move(on_left));
    right->start(std::move(on_right));
  }
  bool wait(const std::function<bool()>& ready) { return run_until(reactor, ready); }

  io::EpollReactor reactor;
  io::InprocNetwork network;
  std::unique_ptr<Channel> left, right;
};

Channel::Handlers echo() {
  Channel::Handlers handlers;
  handlers.request = [](Incoming request, Responder responder) { responder.reply(std::move(request.payload)); };
  return handlers;
}

TEST_CASE("rpc: both ends call; answers come to their calls in any order") {
  Ends ends;
  std::vector<Responder> kept;
  Channel::Handlers late;
  late.request = [&](Incoming, Responder responder) { kept.push_back(std::move(responder)); };
  ends.start(echo(), std::move(late));
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    ends.left->call(1, Bytes(1), kSecond, [&order, i](Result<Reply> reply) {
      CHECK(reply);
      order.push_back(i);
    });
  }
  REQUIRE(ends.wait([&] { return kept.size() == 3; }));
  for (int i : {2, 0, 1}) kept[static_cast<size_t>(i)].reply(Bytes{});
  std::string text;
  ends.right->call(2, to_bytes(as_bytes("hello")), kSecond,
                   [&](Result<Reply> reply) { text = as_text(reply->payload); });
  REQUIRE(ends.wait([&] { return order.size() == 3 && !text.empty(); }));
  CHECK(order == std::vector{2, 0, 1});
  CHECK(text == "hello");
}

TEST_CASE("rpc: every call has one answer: refused, dropped, timed out, lost, closed") {
  Ends ends;
  std::vector<Responder> kept;
  Channel::Handlers handlers;
  handlers.request = [&](Incoming request, Responder responder) {
    if (request.type == 1) return responder.refuse({Code::kStale, "old"});
    if (request.type == 2) return;  // forgets it
    kept.push_back(std::move(responder));
  };
  ends.start({}, std::move(handlers));
  std::map<int, Code> codes;
  auto call = [&](int number, uint16_t type, int64_t timeout_ns) {
    ends.left->call(type, {}, timeout_ns, [&codes, number](Result<Reply> reply) {
      CHECK_FALSE(codes.contains(number));
      codes[number] = reply ? Code::kOk : reply.error().code;
    });
  };
  call(1, 1, kSecond);
  call(2, 2, kSecond);
  call(3, 3, 20 * kMillisecond);
  REQUIRE(ends.wait([&] { return codes.size() == 3; }));
  CHECK(codes[1] == Code::kStale);
  CHECK(codes[2] == Code::kInternal);
  CHECK(codes[3] == Code::kTimedOut);
  kept.front().reply(Bytes{});  // too late, and harmless
  call(4, 3, kNoTimeout);
  REQUIRE(ends.wait([&] { return kept.size() == 2; }));
  ends.right.reset();
  REQUIRE(ends.wait([&] { return codes.size() == 4; }));
  CHECK(codes[4] == Code::kPeerLost);
  kept.clear();  // responders outlive their channel
  call(5, 3, kSecond);
  REQUIRE(ends.wait([&] { return codes.size() == 5; }));
  CHECK(codes[5] == Code::kPeerLost);
}

TEST_CASE("rpc: closing ends the calls, and nothing is called back but their answers") {
  Ends ends;
  std::vector<Responder> kept;
  Channel::Handlers handlers, own;
  handlers.request = [&](Incoming, Responder responder) { kept.push_back(std::move(responder)); };
  int closed = 0;
  own.closed = [&](Error) { ++closed; };
  ends.start(std::move(own), std::move(handlers));
  Code code = Code::kOk;
  ends.left->call(1, {}, kSecond, [&](Result<Reply> reply) { code = reply.error().code; });
  REQUIRE(ends.wait([&] { return kept.size() == 1; }));
  ends.left->close();
  CHECK(code == Code::kOk);  // never inside the call
  REQUIRE(ends.wait([&] { return code == Code::kCanceled; }));
  CHECK(closed == 0);
  CHECK_FALSE(ends.left->open());
}

TEST_CASE("rpc: a channel may be destroyed by its own callbacks") {
  Ends ends;
  Channel::Handlers handlers;
  handlers.request = [&](Incoming, Responder) { ends.right.reset(); };
  ends.start({}, std::move(handlers));
  bool over = false;
  ends.left->call(1, {}, kSecond, [&](Result<Reply> reply) {
    CHECK(reply.error().code == Code::kPeerLost);
    ends.left.reset();
    over = true;
  });
  CHECK(ends.wait([&] { return over; }));
}

TEST_CASE("rpc: a peer that asks more than is answered waits; bounds refuse, they do not grow (law 10)") {
  Ends ends({.requests_in_max = 4, .requests_out_max = 8, .pending_bytes_max = 1u << 20});
  std::vector<Responder> kept;
  Channel::Handlers handlers;
  handlers.request = [&](Incoming, Responder responder) { kept.push_back(std::move(responder)); };
  ends.start({}, std::move(handlers));
  int answered = 0, refused = 0;
  for (int i = 0; i < 10; ++i) {
    ends.left->call(1, {}, kNoTimeout, [&](Result<Reply> reply) {
      ++answered;
      if (!reply && reply.error().code == Code::kOverloaded) ++refused;
    });
  }
  REQUIRE(ends.wait([&] { return kept.size() == 4 && refused == 2; }));
  for (int i = 0; i < 20; ++i) run_until(ends.reactor, [] { return true; });
  CHECK(kept.size() == 4);
  for (int round = 0; round < 2; ++round) {
    auto batch = std::exchange(kept, {});
    for (auto& responder : batch) responder.reply(Bytes{});
    REQUIRE(ends.wait([&] { return kept.size() == 4 || answered == 10; }));
  }
  ends.left->call(1, Bytes(wire::kFramePayloadMax + 1), kSecond, [&](Result<Reply> reply) {
    CHECK(reply.error().code == Code::kTooLarge);
    ++answered;
  });
  CHECK(ends.wait([&] { return answered == 11; }));
}

TEST_CASE("rpc: garbage ends the connection with a cause and no allocation of what it names") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    io::EpollReactor reactor;
    io::InprocNetwork network(reactor);
    auto pair = io::test::connect_pair(reactor, network, "inproc:rpc");
    Channel channel(reactor, std::move(pair.server));
    Code code = Code::kOk;
    Channel::Handlers handlers = echo();
    handlers.closed = [&](Error cause) { code = cause.code; };
    channel.start(std::move(handlers));
    Bytes garbage(200);
    SeededRandom random(seed);
    random.fill(garbage);
    if (seed % 2 == 0) {  // a header that is right but for one field
      wire::FrameHeader header;
      header.kind = static_cast<wire::FrameKind>(seed % 5);
      header.length = seed % 3 == 0 ? UINT32_MAX : 8;
      header.fd_count = static_cast<uint8_t>(seed % 16);
      std::memcpy(garbage.data(), &header, sizeof header);
    }
    pair.client->write(garbage);
    pair.client->close();
    CHECK(run_until(reactor, [&] { return code != Code::kOk; }));
    CHECK((code == Code::kInvalid || code == Code::kPeerLost));
  }
}

}  // namespace
}  // namespace moontide::rpc
