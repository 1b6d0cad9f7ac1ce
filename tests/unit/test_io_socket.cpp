#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "io/leave.h"
#include "io/socket_address.h"
#include "unit/io_support.h"

namespace moontide::io {
namespace {

using test::connect_pair;
using test::Pair;
using test::pattern;
using test::RecordingSink;
using test::run_until;

std::string unique_local() { return "unix:@moontide-test-" + std::to_string(getpid()) + "-" + std::to_string(rand()); }

int open_descriptors() {
  int count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

TEST_CASE("addresses: what is read, written and refused") {
  CHECK(parse_socket_address("127.0.0.1:7700")->text() == "127.0.0.1:7700");
  CHECK(parse_socket_address("localhost:0")->text() == "127.0.0.1:0");
  CHECK(parse_socket_address("[::1]:65535")->text() == "[::1]:65535");
  CHECK(parse_socket_address("unix:@a-name")->text() == "unix:@a-name");
  for (const char* own : {"127.0.0.1:1", "127.9.9.9:1", "localhost:1", "[::1]:1", "[::ffff:127.0.0.1]:1"}) {
    CAPTURE(own);
    CHECK(parse_socket_address(own)->loopback);
  }
  for (const char* wide : {"0.0.0.0:1", "192.168.1.1:1", "[::]:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1"}) {
    CAPTURE(wide);
    CHECK_FALSE(parse_socket_address(wide)->loopback);
  }
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:-1", ":1",
                          "example.org:1", "[::1:1", "unix:@", "1.2.3:4", "127.0.0.1:1 "}) {
    CAPTURE(bad);
    auto address = parse_socket_address(bad);
    REQUIRE_FALSE(address);
    CHECK(address.error().code == Code::kInvalid);
  }
  CHECK(parse_socket_address("unix:@" + std::string(200, 'x')).error().code == Code::kInvalid);
}

TEST_CASE("64 MiB arrive in the sink's memory, over tcp and a local socket") {
  // Gives the rest of one large buffer: payload lands there without a copy in between.
  struct BufferSink final : StreamSink {
    explicit BufferSink(size_t size) : buffer(size) {}
    MutableBytes want() override { return MutableBytes(buffer).subspan(filled); }
    void arrived(size_t count) override { filled += count; }
    void closed(Error) override { ended = true; }
    Bytes buffer;
    size_t filled = 0;
    bool ended = false;
  };
  EpollReactor reactor;
  SocketNetwork network(reactor);
  std::string address;
  SUBCASE("tcp") { address = "127.0.0.1:0"; }
  SUBCASE("local") { address = unique_local(); }
  Pair pair = connect_pair(reactor, network, address);
  constexpr size_t kSize = 64u << 20;
  const Bytes sent_bytes = pattern(kSize, 1);
  BufferSink sink(kSize);
  pair.server->start(sink);
  int sent = 0;
  pair.client->write_reference(sent_bytes, [&](Result<> outcome) {
    CHECK(outcome);
    ++sent;
  });
  CHECK(sent == 0);
  CHECK(pair.client->pending() > 0);
  CHECK(run_until(reactor, [&] { return sink.filled == kSize && sent == 1; }, 60 * kSecond));
  CHECK(pair.client->pending() == 0);
  CHECK(sink.buffer == sent_bytes);
  CHECK_FALSE(sink.ended);
}

TEST_CASE("what is written in one turn goes out at its end, in order, and not before") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  std::string address;
  SUBCASE("tcp") { address = "127.0.0.1:0"; }
  SUBCASE("local") { address = unique_local(); }
  Pair pair = connect_pair(reactor, network, address);
  RecordingSink sink;
  pair.server->start(sink);
  const Bytes long_one = pattern(100u << 10, 1);
  size_t waiting = 0;
  reactor.post([&] {
    pair.client->write(as_bytes("first "));
    pair.client->write(as_bytes("second "));
    waiting = pair.client->pending();
    pair.client->write(long_one);
    pair.client->write_reference(as_bytes("third"), [](Result<> outcome) { CHECK(outcome); });
  });
  REQUIRE(run_until(reactor, [&] { return sink.data.size() == 18 + long_one.size(); }));
  CHECK(waiting == 13);
  CHECK(sink.text().starts_with("first second "));
  CHECK(sink.text().ends_with("third"));
  CHECK(pair.client->pending() == 0);
}

TEST_CASE("outside of turns a write goes out at once, or where it is gathered by the next turn or when let go") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "127.0.0.1:0");
  RecordingSink sink;
  pair.server->start(sink);
  pair.client->write(as_bytes("a"));
  CHECK(pair.client->pending() == 0);
  reactor.gather(true);
  pair.client->write(as_bytes("b"));
  pair.client->write(as_bytes("c"));
  reactor.gather(false);
  CHECK(pair.client->pending() == 2);
  pair.client->write(as_bytes("d"));  // behind those that wait
  CHECK(pair.client->pending() == 3);
  reactor.let_go();
  CHECK(pair.client->pending() == 0);
  reactor.gather(true);
  pair.client->write(as_bytes("e"));
  reactor.gather(false);
  CHECK(reactor.prepare_wait(INT64_MAX) == INT64_MIN);  // nobody sleeps over it
  REQUIRE(run_until(reactor, [&] { return sink.data.size() == 5; }));
  CHECK(sink.text() == "abcde");
}

TEST_CASE("a stream that is closed in the turn of its last words has said them, and is asked for nothing later") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "127.0.0.1:0");
  RecordingSink sink;
  pair.server->start(sink);
  reactor.post([&] {
    pair.client->write(as_bytes("good bye"));
    pair.client.reset();
  });
  REQUIRE(run_until(reactor, [&] { return sink.closes == 1; }));
  CHECK(sink.text() == "good bye");
}

TEST_CASE("many small writes keep their order and every reference is given back once, in order") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "127.0.0.1:0");
  Bytes expected;
  std::vector<Bytes> pieces;
  std::vector<int> given_back;
  for (int i = 0; i < 3000; ++i) pieces.push_back(pattern(1 + static_cast<size_t>(i) % 4000, static_cast<uint64_t>(i)));
  for (int i = 0; i < 3000; ++i) {
    const Bytes& piece = pieces[static_cast<size_t>(i)];
    expected.insert(expected.end(), piece.begin(), piece.end());
    if (i % 3 == 0) {
      pair.client->write_reference(piece, [&, i](Result<> outcome) {
        CHECK(outcome);
        given_back.push_back(i);
      });
    } else {
      pair.client->write(piece);
    }
  }
  RecordingSink sink(100);
  pair.server->start(sink);
  CHECK(run_until(reactor, [&] { return sink.data.size() == expected.size() && given_back.size() == 1000; }));
  CHECK(sink.data == expected);
  CHECK(std::is_sorted(given_back.begin(), given_back.end()));
}

TEST_CASE("a sink without room pauses the stream, resume() goes on, also after the peer has gone") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  std::string address;
  SUBCASE("tcp") { address = "127.0.0.1:0"; }
  SUBCASE("local") { address = unique_local(); }
  Pair pair = connect_pair(reactor, network, address);
  RecordingSink sink(4, 10);
  pair.server->start(sink);
  pair.client->write(as_bytes("0123456789abcdefghij"));
  CHECK(run_until(reactor, [&] { return sink.data.size() == 10; }));
  pair.client.reset();
  bool later = false;
  reactor.call_after(5 * kMillisecond, [&] { later = true; });
  CHECK(run_until(reactor, [&] { return later; }));
  CHECK(sink.text() == "0123456789");
  CHECK(sink.closes == 0);
  sink.set_capacity(100);
  pair.server->resume();
  CHECK(run_until(reactor, [&] { return sink.closes == 1; }));
  CHECK(sink.text() == "0123456789abcdefghij");
  CHECK(sink.error.code == Code::kPeerLost);
}

TEST_CASE("a paused stream whose peer died says so and burns no turns") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, unique_local());
  RecordingSink sink(4, 0);
  pair.server->start(sink);
  pair.client->write(as_bytes("unread"));
  bool later = false;
  reactor.call_after(kMillisecond, [&] { later = true; });
  REQUIRE(run_until(reactor, [&] { return later; }));
  pair.client.reset();
  later = false;
  reactor.call_after(20 * kMillisecond, [&] { later = true; });
  EpollReactor::Harvest harvest;
  int turns = 0;
  while (!later) {
    reactor.wait(reactor.prepare_wait(INT64_MAX), harvest);
    reactor.dispatch(harvest);
    ++turns;
  }
  CHECK(turns < 10);
  CHECK(sink.closes == 0);
}

TEST_CASE("the stream may be handed to another sink from inside a callback") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "127.0.0.1:0");
  RecordingSink first(4, 8);
  RecordingSink second(1000);
  first.on_arrived = [&] {
    if (first.data.size() == 8) pair.server->start(second);
  };
  pair.client->write(as_bytes("headers.and then the payload"));
  pair.server->start(first);
  CHECK(run_until(reactor, [&] { return second.data.size() == 20; }));
  CHECK(first.text() == "headers.");
  CHECK(second.text() == "and then the payload");
  // And from outside, while the old one is paused with bytes read ahead.
  RecordingSink third(1000);
  second.set_capacity(second.data.size() + 2);
  pair.client->write(as_bytes("xyz more"));
  CHECK(run_until(reactor, [&] { return second.data.size() == 22; }));
  pair.server->start(third);
  CHECK(third.data.empty());
  CHECK(run_until(reactor, [&] { return third.data.size() == 6; }));
  CHECK(third.text() == "z more");
}

TEST_CASE("the stream may be destroyed from inside each callback of its sink") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  const int before = open_descriptors();
  for (const char* where : {"want", "arrived", "fds", "closed", "sent"}) {
    CAPTURE(where);
    Pair pair = connect_pair(reactor, network, unique_local());
    struct Destroyer final : StreamSink {
      MutableBytes want() override {
        if (where == "want" && ++wants == 2) drop();
        return buffer;
      }
      void arrived(size_t) override {
        CHECK_FALSE(dropped);
        if (where == "arrived") drop();
      }
      void arrived_fds(std::vector<Fd>) override {
        CHECK_FALSE(dropped);
        if (where == "fds") drop();
      }
      void closed(Error) override {
        CHECK_FALSE(dropped);
        drop();
      }
      void drop() {
        dropped = true;
        stream->reset();
      }
      std::string where;
      std::unique_ptr<Stream>* stream = nullptr;
      std::byte buffer[4];
      int wants = 0;
      bool dropped = false;
    } sink;
    sink.where = where;
    sink.stream = &pair.server;
    pair.server->start(sink);
    REQUIRE(pair.client->write_with_fds(as_bytes("some bytes with a descriptor"), {0}));
    if (sink.where == "closed") pair.client.reset();
    if (sink.where == "sent") {
      pair.server->write_reference(as_bytes("a"), [&](Result<>) { sink.drop(); });
      pair.server->write_reference(as_bytes("b"), [&](Result<>) { FAIL("called after the stream was destroyed"); });
    }
    CHECK(run_until(reactor, [&] { return sink.dropped; }));
    bool later = false;
    reactor.call_after(kMillisecond, [&] { later = true; });
    CHECK(run_until(reactor, [&] { return later; }));
  }
  CHECK(open_descriptors() == before);
}

TEST_CASE("bytes sent before the end arrive before it; what is queued is given back with the cause") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, "127.0.0.1:0");
  RecordingSink sink;
  pair.client->start(sink);
  const Bytes large = pattern(32u << 20, 7);
  int failed = 0;
  pair.client->write_reference(large, [&](Result<> outcome) {
    REQUIRE_FALSE(outcome);
    CHECK(outcome.error().code == Code::kPeerLost);
    ++failed;
  });
  pair.server.reset();
  CHECK(run_until(reactor, [&] { return failed == 1 && sink.closes == 1; }));
  CHECK(pair.client->pending() == 0);
  pair.client->write(as_bytes("dropped"));
  pair.client->write_reference(as_bytes("late"), [&](Result<> outcome) {
    CHECK_FALSE(outcome);
    ++failed;
  });
  CHECK(run_until(reactor, [&] { return failed == 2; }));
}

TEST_CASE("descriptors travel with their bytes over local sockets, and none is lost or leaked") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  const int before = open_descriptors();
  {
    Pair pair = connect_pair(reactor, network, unique_local());
    int pipes[2];
    REQUIRE(pipe2(pipes, O_CLOEXEC) == 0);
    Fd reader(pipes[0]);
    Fd writer(pipes[1]);
    RecordingSink sink;
    pair.server->start(sink);
    pair.client->write(as_bytes("before "));
    REQUIRE(pair.client->write_with_fds(as_bytes("with "), {reader.get(), writer.get()}));
    REQUIRE(pair.client->write_with_fds(as_bytes("again "), {reader.get()}));
    pair.client->write(as_bytes("after"));
    CHECK(run_until(reactor, [&] { return sink.data.size() == 23; }));
    CHECK(sink.text() == "before with again after");
    REQUIRE(sink.fds.size() == 3);
    CHECK((fcntl(sink.fds[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
    REQUIRE(::write(sink.fds[1].get(), "x", 1) == 1);
    char got = 0;
    REQUIRE(::read(reader.get(), &got, 1) == 1);
    CHECK(got == 'x');
    CHECK(pair.client->write_with_fds(as_bytes("x"), std::vector<int>(17, 0)).error().code == Code::kInvalid);
    CHECK(pair.client->write_with_fds({}, {0}).error().code == Code::kInvalid);
    CHECK(pair.client->write_with_fds(as_bytes("x"), {-1}).error().code == Code::kOverloaded);
    // Queued ones of a stream that ends, and arrived ones that nobody took.
    const Bytes large = pattern(8u << 20, 3);
    pair.client->write(large);
    REQUIRE(pair.client->write_with_fds(as_bytes("never"), {0, 1, 2}));
  }
  CHECK(open_descriptors() == before);
  Pair tcp = connect_pair(reactor, network, "127.0.0.1:0");
  CHECK(tcp.client->write_with_fds(as_bytes("x"), {0}).error().code == Code::kUnsupported);
}

TEST_CASE("a local peer is named by the kernel, with a pidfd") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  Pair pair = connect_pair(reactor, network, unique_local());
  auto credentials = pair.server->credentials();
  REQUIRE(credentials);
  CHECK(credentials->pid == getpid());
  CHECK(credentials->uid == getuid());
  CHECK(static_cast<bool>(credentials->pidfd));
  CHECK(pair.client->peer_address() == pair.listener->address());
  Pair tcp = connect_pair(reactor, network, "[::1]:0");
  CHECK(tcp.client->credentials().error().code == Code::kUnsupported);
  CHECK(tcp.client->peer_address() == tcp.listener->address());
  CHECK(tcp.server->peer_address() == tcp.client->local_address());
}

TEST_CASE("a leave is over when its holder ends it, whoever has copies of its descriptor, and when the holder dies") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  int over = 0;
  auto give = [&](pid_t holder) {
    PeerCredentials credentials;
    credentials.pid = holder;
    credentials.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, holder, 0)));
    REQUIRE(credentials.pidfd);
    auto leave = network.give_leave(credentials, [&] { ++over; });
    REQUIRE(leave);
    return std::move(*leave);
  };

  SUBCASE("ended") {
    NewLeave leave = give(getpid());
    Fd copy(dup(leave.holders.get()));
    auto held = std::make_unique<HeldLeave>(std::move(leave.holders));
    CHECK_FALSE(run_until(reactor, [&] { return over > 0; }, 20 * kMillisecond));
    held.reset();
    CHECK(run_until(reactor, [&] { return over > 0; }));
    CHECK_FALSE(run_until(reactor, [&] { return over > 1; }, 20 * kMillisecond));
  }
  SUBCASE("a child that ends does not end its parent's leave") {
    NewLeave leave = give(getpid());
    auto held = std::make_unique<HeldLeave>(std::move(leave.holders));
    pid_t child = fork();
    if (child == 0) {
      held.reset();
      _exit(0);
    }
    waitpid(child, nullptr, 0);
    CHECK_FALSE(run_until(reactor, [&] { return over > 0; }, 20 * kMillisecond));
    held.reset();
    CHECK(run_until(reactor, [&] { return over == 1; }));
  }
  SUBCASE("the holder dies") {
    pid_t holder = fork();
    if (holder == 0) {
      pause();
      _exit(0);
    }
    NewLeave leave = give(holder);
    Fd copy(dup(leave.holders.get()));
    leave.holders.reset();
    CHECK_FALSE(run_until(reactor, [&] { return over > 0; }, 20 * kMillisecond));
    kill(holder, SIGKILL);
    CHECK(run_until(reactor, [&] { return over == 1; }));
    waitpid(holder, nullptr, 0);
  }
  SUBCASE("the giver does not care any more") {
    NewLeave leave = give(getpid());
    leave.given.reset();
    leave.holders.reset();
    CHECK_FALSE(run_until(reactor, [&] { return over > 0; }, 20 * kMillisecond));
  }
}

TEST_CASE("connecting: refused, malformed and foreign addresses end in a later turn with their cause") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  std::string free_port;
  {
    auto listener = network.listen("127.0.0.1:0", [](std::unique_ptr<Stream>) {});
    REQUIRE(listener);
    free_port = (*listener)->address();
    auto second = network.listen(free_port, [](std::unique_ptr<Stream>) {});
    REQUIRE_FALSE(second);
    CHECK(second.error().code == Code::kUnavailable);
    CHECK(second.error().message.find(free_port) != std::string::npos);
  }
  const std::vector<std::pair<std::string, Code>> cases = {{free_port, Code::kUnavailable},
                                                           {"unix:@nobody-listens-here", Code::kUnavailable},
                                                           {"nonsense", Code::kInvalid},
                                                           {"10.1.2.3:80", Code::kDenied}};
  for (const auto& [address, expected] : cases) {
    CAPTURE(address);
    int calls = 0;
    Code code = Code::kOk;
    network.connect(address, kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
      ++calls;
      code = stream ? Code::kOk : stream.error().code;
    });
    CHECK(calls == 0);
    CHECK(run_until(reactor, [&] { return calls == 1; }));
    CHECK(code == expected);
    CHECK(network.connecting() == 0);
  }
  CHECK(network.listen("0.0.0.0:0", [](std::unique_ptr<Stream>) {}).error().code == Code::kDenied);
  CHECK(network.listen("[::]:0", [](std::unique_ptr<Stream>) {}).error().code == Code::kDenied);
}

TEST_CASE("connecting to a listener that never accepts ends at the timeout") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  const std::string address = unique_local();
  auto parsed = parse_socket_address(address);
  REQUIRE(parsed);
  Fd full(socket(AF_UNIX, SOCK_STREAM, 0));
  REQUIRE(bind(full.get(), parsed->raw(), parsed->size) == 0);
  REQUIRE(listen(full.get(), 0) == 0);
  std::vector<std::unique_ptr<Stream>> streams;
  int timed_out = 0;
  for (int i = 0; i < 3; ++i) {
    network.connect(address, 30 * kMillisecond, [&](Result<std::unique_ptr<Stream>> stream) {
      if (stream) {
        streams.push_back(std::move(*stream));
      } else {
        CHECK(stream.error().code == Code::kTimedOut);
        ++timed_out;
      }
    });
  }
  CHECK(run_until(reactor, [&] { return streams.size() + static_cast<size_t>(timed_out) == 3; }));
  CHECK(timed_out >= 1);
}

TEST_CASE("out of descriptors: accepting pauses without spinning and goes on later") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  std::vector<std::unique_ptr<Stream>> accepted;
  auto listener = network.listen(unique_local(), [&](std::unique_ptr<Stream> s) { accepted.push_back(std::move(s)); });
  REQUIRE(listener);
  std::unique_ptr<Stream> client;
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const rlimit old = limit;
  network.connect((*listener)->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
    REQUIRE(stream);
    client = std::move(*stream);
  });
  const int highest = dup(0);
  ::close(highest);
  limit.rlim_cur = static_cast<rlim_t>(highest);
  REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  const bool paused = run_until(reactor, [&] { return network.counters().accept_pauses >= 1; });
  bool later = false;
  reactor.call_after(20 * kMillisecond, [&] { later = true; });
  const bool waited = run_until(reactor, [&] { return later; });
  const uint64_t pauses = network.counters().accept_pauses;
  setrlimit(RLIMIT_NOFILE, &old);
  CHECK(paused);
  CHECK(waited);
  CHECK(pauses <= 2);
  CHECK(accepted.empty());
  CHECK(run_until(reactor, [&] { return accepted.size() == 1 && client; }));
}

TEST_CASE("streams above the limit of a listener are closed and counted") {
  EpollReactor reactor;
  SocketOptions options;
  options.accepted_max = 2;
  SocketNetwork network(reactor, options);
  std::vector<std::unique_ptr<Stream>> accepted;
  auto listener = network.listen("127.0.0.1:0", [&](std::unique_ptr<Stream> s) { accepted.push_back(std::move(s)); });
  REQUIRE(listener);
  std::vector<std::unique_ptr<Stream>> clients;
  std::vector<RecordingSink> sinks(3);
  auto connect = [&] {
    const size_t wanted = clients.size() + 1;
    network.connect((*listener)->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
      REQUIRE(stream);
      (*stream)->start(sinks[clients.size()]);
      clients.push_back(std::move(*stream));
    });
    REQUIRE(run_until(reactor, [&] { return clients.size() == wanted; }));
  };
  for (int i = 0; i < 3; ++i) connect();
  CHECK(run_until(reactor, [&] { return sinks[2].closes == 1; }));
  CHECK(network.counters().refused == 1);
  CHECK(accepted.size() == 2);
  CHECK(sinks[0].closes == 0);
}

TEST_CASE("a listener may be destroyed by what it calls") {
  EpollReactor reactor;
  SocketNetwork network(reactor);
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Stream> server;
  listener = *network.listen("127.0.0.1:0", [&](std::unique_ptr<Stream> stream) {
    server = std::move(stream);
    listener.reset();
  });
  bool connected = false;
  network.connect(listener->address(), kSecond, [&](Result<std::unique_ptr<Stream>>) { connected = true; });
  CHECK(run_until(reactor, [&] { return server && connected; }));
  CHECK_FALSE(listener);
}

}  // namespace
}  // namespace moontide::io
