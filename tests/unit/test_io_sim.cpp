#include "io/sim.h"
#include "io/sim_network.h"
#include "unit/io_support.h"

namespace moontide::io {
namespace {

using test::pattern;
using test::RecordingSink;

// Two hosts with one connection from "a" to "b".
struct Net {
  explicit Net(uint64_t seed) : world(seed), fabric(world) {
    listener = *network_b.listen("sim:b:0", [this](std::unique_ptr<Stream> stream) { server = std::move(stream); });
  }
  void connect() {
    network_a.connect(listener->address(), 10 * kSecond, [this](Result<std::unique_ptr<Stream>> stream) {
      REQUIRE(stream);
      client = std::move(*stream);
    });
    REQUIRE(world.run_until([&] { return client && server; }, 20 * kSecond));
  }
  SimWorld world;
  SimFabric fabric;
  SimProcess& a = world.start_process("a");
  SimProcess& b = world.start_process("b");
  SimNetwork network_a{fabric, a};
  SimNetwork network_b{fabric, b};
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Stream> client;
  std::unique_ptr<Stream> server;
};

// Timers, streams, a pause and a cut; returns the trace.
uint64_t busy_run(uint64_t seed, Bytes& received) {
  Net net(seed);
  net.connect();
  RecordingSink sink(1000);
  net.server->start(sink);
  const Bytes bytes = pattern(300'000, 5);
  bool sent = false;
  net.client->write_reference(bytes, [&](Result<> outcome) { sent = outcome.has_value(); });
  net.world.after(kMillisecond, [&] { net.b.pause(); });
  net.world.after(3 * kMillisecond, [&] { net.b.resume(); });
  net.world.after(4 * kMillisecond, [&] { net.fabric.cut("a", "b"); });
  net.world.after(9 * kMillisecond, [&] { net.fabric.heal_all(); });
  REQUIRE(net.world.run_until([&] { return sent && sink.data.size() == bytes.size(); }, 60 * kSecond));
  CHECK(sink.data == bytes);
  received = sink.data;
  net.world.note(net.a.random().next());
  return net.world.trace();
}

TEST_CASE("sim: the same seed gives the same trace, another seed another, the bytes are always right") {
  Bytes one;
  Bytes two;
  std::vector<uint64_t> traces;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    traces.push_back(busy_run(seed, one));
    CHECK(busy_run(seed, two) == traces.back());
  }
  std::sort(traces.begin(), traces.end());
  CHECK(std::unique(traces.begin(), traces.end()) == traces.end());
}

TEST_CASE("sim: timers follow the local clock; drift, stop and step change when they fire") {
  SimWorld world(3);
  SimProcess& process = world.start_process("a");
  auto fires_after = [&](const std::function<void()>& meanwhile) {
    bool fired = false;
    const int64_t begin_ns = world.time_ns();
    process.call_after(kSecond, [&] { fired = true; });
    world.after(kMillisecond, [&] { meanwhile(); });
    REQUIRE(world.run_until([&] { return fired; }, 100 * kSecond));
    return world.time_ns() - begin_ns;
  };
  const int64_t slack_ns = 5 * kMillisecond;
  CHECK(fires_after([] {}) >= kSecond);
  CHECK(fires_after([] {}) <= kSecond + slack_ns);
  CHECK(fires_after([&] { process.set_drift_ppm(1'000'000); }) <= kSecond / 2 + slack_ns);
  CHECK(fires_after([&] { process.set_drift_ppm(-500'000); }) >= 2 * kSecond - slack_ns);
  process.set_drift_ppm(0);
  CHECK(fires_after([&] { process.step_clock(10 * kSecond); }) <= slack_ns);
  const int64_t before_ns = process.now_ns();
  const int64_t stopped = fires_after([&] {
    process.set_drift_ppm(-1'000'000);
    world.after(5 * kSecond, [&] { process.set_drift_ppm(0); });
  });
  CHECK(stopped >= 6 * kSecond - slack_ns);
  CHECK(process.now_ns() - before_ns <= kSecond + slack_ns);
}

TEST_CASE("sim: a paused process runs nothing and catches up; a crashed one never runs again") {
  SimWorld world(4);
  SimProcess& process = world.start_process("a");
  int ran = 0;
  process.pause();
  process.post([&] { ++ran; });
  process.call_after(kMillisecond, [&] { ++ran; });
  process.deliver([&] { ++ran; });
  world.run_for(10 * kSecond);
  CHECK(ran == 0);
  process.resume();
  CHECK(world.run_until([&] { return ran == 3; }, kSecond));
  auto kept = std::make_shared<int>(1);
  bool told = false;
  process.on_crash([&] { told = true; });
  process.post([&ran, kept] { ++ran; });
  process.crash();
  process.post([&] { ++ran; });
  process.call_after(0, [&] { ++ran; });
  process.resume();
  world.run_for(10 * kSecond);
  CHECK(told);
  CHECK(ran == 3);
  CHECK(kept.use_count() == 2);
}

TEST_CASE("sim: a cut holds bytes back in its direction only, healing delivers them") {
  Net net(5);
  net.connect();
  RecordingSink at_server;
  RecordingSink at_client;
  net.server->start(at_server);
  net.client->start(at_client);
  net.fabric.cut("a", "b");
  net.client->write(as_bytes("held"));
  net.server->write(as_bytes("through"));
  net.world.run_for(30 * kSecond);
  CHECK(at_server.text() == "");
  CHECK(at_client.text() == "through");
  net.fabric.heal("a", "b");
  CHECK(net.world.run_until([&] { return at_server.text() == "held"; }, kSecond));
}

TEST_CASE("sim: connecting is refused, times out behind a cut, and succeeds once healed in time") {
  Net net(6);
  std::vector<Code> codes;
  auto attempt = [&](const std::string& address, int64_t timeout_ns) {
    net.network_a.connect(address, timeout_ns, [&](Result<std::unique_ptr<Stream>> stream) {
      codes.push_back(stream ? Code::kOk : stream.error().code);
      if (stream) net.client = std::move(*stream);
    });
    const size_t expected = codes.size() + 1;
    CHECK(net.world.run_until([&] { return codes.size() == expected; }, 20 * kSecond));
    return codes.back();
  };
  CHECK(attempt("sim:b:9", kSecond) == Code::kUnavailable);
  CHECK(attempt("sim:nowhere:1", kSecond) == Code::kUnavailable);
  CHECK(attempt("127.0.0.1:80", kSecond) == Code::kInvalid);
  net.fabric.cut("b", "a");
  CHECK(attempt(net.listener->address(), kSecond) == Code::kTimedOut);
  CHECK_FALSE(net.server);
  net.world.after(2 * kSecond, [&] { net.fabric.heal_all(); });
  CHECK(attempt(net.listener->address(), 10 * kSecond) == Code::kOk);
  net.world.run_for(30 * kSecond);
  CHECK(codes.size() == 5);
  CHECK(net.network_b.listen(net.listener->address(), [](std::unique_ptr<Stream>) {}).error().code ==
        Code::kUnavailable);
  CHECK(net.network_b.listen("sim:a:1", [](std::unique_ptr<Stream>) {}).error().code == Code::kInvalid);
}

TEST_CASE("sim: the peers of a crashed process learn of it, those of a dark machine when they send") {
  bool dark = false;
  SUBCASE("process") {}
  SUBCASE("machine") { dark = true; }
  Net net(7);
  net.connect();
  RecordingSink sink;
  net.client->start(sink);
  RecordingSink unused;
  net.server->start(unused);
  net.server->write(as_bytes("last words"));
  net.world.run_for(kSecond);
  net.network_b.crash_goes_dark(dark);
  net.b.crash();
  net.world.run_for(60 * kSecond);
  CHECK(sink.text() == "last words");
  CHECK(sink.closes == (dark ? 0 : 1));
  if (dark) {
    int failed = 0;
    const Bytes large = pattern(1u << 20, 1);
    net.client->write_reference(large, [&](Result<> outcome) { failed += !outcome; });
    CHECK(net.world.run_until([&] { return failed == 1 && sink.closes == 1; }, 60 * kSecond));
  }
  CHECK(sink.error.code == Code::kPeerLost);
  // The host comes back, and with it the address.
  SimProcess& again = net.world.start_process("b");
  SimNetwork network_again(net.fabric, again);
  std::unique_ptr<Stream> accepted;
  auto listener = network_again.listen(net.listener->address(),
                                       [&](std::unique_ptr<Stream> stream) { accepted = std::move(stream); });
  REQUIRE(listener);
  net.network_a.connect((*listener)->address(), kSecond,
                        [&](Result<std::unique_ptr<Stream>> stream) { net.client = std::move(*stream); });
  CHECK(net.world.run_until([&] { return accepted != nullptr; }, kSecond));
}

TEST_CASE("sim: a paused process takes connections and bytes, and reads them when it goes on") {
  Net net(8);
  net.b.pause();
  net.network_a.connect(net.listener->address(), 10 * kSecond,
                        [&](Result<std::unique_ptr<Stream>> stream) { net.client = std::move(*stream); });
  REQUIRE(net.world.run_until([&] { return net.client != nullptr; }, kSecond));
  const Bytes large = pattern(1u << 20, 1);
  bool sent = false;
  net.client->write_reference(large, [&](Result<> outcome) { sent = outcome.has_value(); });
  net.world.run_for(10 * kSecond);
  CHECK_FALSE(net.server);
  CHECK_FALSE(sent);
  CHECK(net.client->pending() > 0);
  CHECK(net.client->pending() < large.size());
  net.b.resume();
  REQUIRE(net.world.run_until([&] { return net.server != nullptr; }, kSecond));
  RecordingSink sink(64u << 10);
  net.server->start(sink);
  CHECK(net.world.run_until([&] { return sent && sink.data.size() == large.size(); }, 10 * kSecond));
  CHECK(sink.data == large);
}

TEST_CASE("sim: closing drops what was not taken yet, and the peer sees the end after what was") {
  Net net(9);
  net.connect();
  RecordingSink sink;
  net.server->start(sink);
  const Bytes large = pattern(4u << 20, 1);
  net.client->write_reference(large, [](Result<>) { FAIL("dropped with the stream"); });
  net.client->close();
  CHECK(net.world.run_until([&] { return sink.closes == 1; }, kSecond));
  CHECK(sink.data.size() < large.size());
  CHECK(std::equal(sink.data.begin(), sink.data.end(), large.begin()));
}

TEST_CASE("sim: the stream may be destroyed and its sink switched from inside callbacks") {
  Net net(10);
  net.connect();
  RecordingSink first(3, 3);
  RecordingSink second;
  first.on_arrived = [&] {
    if (first.data.size() == 3) net.server->start(second);
  };
  second.on_arrived = [&] { net.server.reset(); };
  net.server->start(first);
  net.client->write(as_bytes("abcdef"));
  RecordingSink at_client;
  net.client->start(at_client);
  CHECK(net.world.run_until([&] { return at_client.closes == 1; }, kSecond));
  CHECK(first.text() == "abc");
  CHECK(second.text().size() >= 1);
}

}  // namespace
}  // namespace moontide::io
