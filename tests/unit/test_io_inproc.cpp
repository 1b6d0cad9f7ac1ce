#include "io/inproc.h"
#include "io/sim.h"
#include "unit/io_support.h"

namespace moontide::io {
namespace {

using test::connect_pair;
using test::Pair;
using test::pattern;
using test::RecordingSink;
using test::run_until;

TEST_CASE("inproc: bytes arrive in order, references are given back once they were copied") {
  EpollReactor reactor;
  InprocNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "inproc:a");
  RecordingSink sink(1000);
  pair.server->start(sink);
  const Bytes large = pattern(5u << 20, 1);
  int sent = 0;
  pair.client->write(as_bytes("first "));
  pair.client->write(as_bytes("second "));
  pair.client->write_reference(large, [&](Result<> outcome) {
    CHECK(outcome);
    ++sent;
  });
  pair.client->write(as_bytes(" last"));
  CHECK(pair.client->pending() == large.size() + 18);
  CHECK(sink.data.empty());
  CHECK(run_until(reactor, [&] { return sink.data.size() == large.size() + 18 && sent == 1; }));
  CHECK(sink.text().substr(0, 13) == "first second ");
  CHECK(sink.text().substr(13 + large.size()) == " last");
  CHECK(std::equal(large.begin(), large.end(), sink.data.begin() + 13));
  CHECK(pair.client->pending() == 0);
  CHECK(pair.client->write_with_fds(as_bytes("x"), {0}).error().code == Code::kUnsupported);
  CHECK(pair.client->credentials().error().code == Code::kUnsupported);
}

TEST_CASE("inproc: after close() of the writer its copies arrive, its references and what followed do not") {
  EpollReactor reactor;
  InprocNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "inproc:a");
  RecordingSink sink;
  pair.server->start(sink);
  {
    const Bytes gone = pattern(100, 2);
    pair.client->write(as_bytes("copied"));
    pair.client->write_reference(gone, [](Result<>) { FAIL("dropped with the stream"); });
    pair.client->write(as_bytes("after"));
    pair.client->close();
  }
  CHECK(run_until(reactor, [&] { return sink.closes == 1; }));
  CHECK(sink.text() == "copied");
  CHECK(sink.error.code == Code::kPeerLost);
  int failed = 0;
  pair.server->write_reference(as_bytes("x"), [&](Result<> outcome) { failed += !outcome; });
  CHECK(run_until(reactor, [&] { return failed == 1; }));
}

TEST_CASE("inproc: references unread by a closing reader are given back with the cause") {
  EpollReactor reactor;
  InprocNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "inproc:a");
  const Bytes bytes = pattern(100, 2);
  int failed = 0;
  pair.client->write_reference(bytes, [&](Result<> outcome) { failed += !outcome; });
  pair.server.reset();
  CHECK(run_until(reactor, [&] { return failed == 1; }));
}

TEST_CASE("inproc: pausing, switching the sink, destroying the stream in a callback") {
  EpollReactor reactor;
  InprocNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "inproc:a");
  RecordingSink first(3, 6);
  RecordingSink second;
  pair.server->start(first);
  pair.client->write(as_bytes("0123456789"));
  CHECK(run_until(reactor, [&] { return first.data.size() == 6; }));
  pair.server->start(second);
  CHECK(run_until(reactor, [&] { return second.data.size() == 4; }));
  CHECK(second.text() == "6789");
  second.on_arrived = [&] { pair.server.reset(); };
  pair.client->write(as_bytes("x"));
  pair.client->write(as_bytes("y"));
  CHECK(run_until(reactor, [&] { return pair.server == nullptr; }));
}

TEST_CASE("inproc: names are unique while listened on, absent ones refuse, other addresses are routed on") {
  EpollReactor reactor;
  InprocNetwork inproc(reactor);
  SocketNetwork sockets(reactor);
  RoutedNetwork network(inproc, sockets);
  auto listener = network.listen("inproc:a", [](std::unique_ptr<Stream>) {});
  REQUIRE(listener);
  CHECK(network.listen("inproc:a", [](std::unique_ptr<Stream>) {}).error().code == Code::kUnavailable);
  CHECK(network.listen("inproc:", [](std::unique_ptr<Stream>) {}).error().code == Code::kInvalid);
  listener->reset();
  Code code = Code::kOk;
  network.connect("inproc:a", kSecond, [&](Result<std::unique_ptr<Stream>> stream) { code = stream.error().code; });
  CHECK(code == Code::kOk);
  CHECK(run_until(reactor, [&] { return code == Code::kUnavailable; }));
  Pair tcp = connect_pair(reactor, network, "127.0.0.1:0");
  CHECK(tcp.listener->address().starts_with("127.0.0.1:"));
}

TEST_CASE("inproc runs on a simulated process too") {
  SimWorld world(1);
  SimProcess& process = world.start_process("a");
  InprocNetwork network(process);
  std::unique_ptr<Stream> server;
  std::unique_ptr<Stream> client;
  auto listener = network.listen("inproc:a", [&](std::unique_ptr<Stream> stream) { server = std::move(stream); });
  network.connect("inproc:a", kSecond, [&](Result<std::unique_ptr<Stream>> stream) { client = std::move(*stream); });
  REQUIRE(world.run_until([&] { return client && server; }, kSecond));
  RecordingSink sink(2);
  server->start(sink);
  client->write(as_bytes("hello"));
  CHECK(world.run_until([&] { return sink.text() == "hello"; }, kSecond));
}

}  // namespace
}  // namespace moontide::io
