// What an engine sees of itself: records of peers, times per stage, names of requests, what is slow.
#include "engine/dump.h"
#include "engine/engine.h"
#include "io/inproc.h"
#include "transport/builtin.h"
#include "unit/io_support.h"

namespace moontide::engine {
namespace {

using io::test::run_until;

constexpr uint64_t kBytes = 3u << 20;

// Two engines on one reactor, of which either may speak an older protocol.
struct Two {
  explicit Two(LocalReads local_reads, wire::ProtocolRange caller_speaks = {})
      : sockets(reactor), inproc(reactor), network(inproc, sockets) {
    caller = make(local_reads, caller_speaks);
    owner = make(local_reads, {});
    source = *memory::Arena::create(kBytes, "source");
    target = *memory::Arena::create(kBytes, "target");
    REQUIRE(caller->add_region(source->data(), kBytes, memory::kReadable, "source", source));
    remote = (*owner->add_region(target->data(), kBytes, memory::kReadable | memory::kWritable, "target", target))->id;
  }
  ~Two() {
    caller.reset();
    owner.reset();
  }

  std::unique_ptr<Engine> make(LocalReads local_reads, wire::ProtocolRange protocol) {
    EngineOptions options;
    options.local_reads = local_reads;
    options.protocol = protocol;
    auto transports = [](memory::Registry& registry, const EngineOptions& chosen) {
      const bool here = chosen.local_reads != LocalReads::kOff;
      return transport::builtin(registry, {.shm = here, .cma = here});
    };
    return std::move(*Engine::create(reactor, network, options, transports));
  }

  TransferRef write(TransferOptions options = {}) {
    if (!link) {
      caller->open(owner->address(), 5 * kSecond, [this](Result<LinkRef> opened) { link = *opened; });
      REQUIRE(run_until(reactor, [&] { return link && link->region(remote); }));
    }
    Record record{2, 0, reinterpret_cast<uint64_t>(source->data()), caller->handle(link, remote), 0, kBytes};
    auto transfer = caller->submit(std::span(&record, 1), std::move(options));
    REQUIRE(transfer);
    return *transfer;
  }
  bool run(const std::function<bool()>& ready) { return run_until(reactor, ready); }

  io::EpollReactor reactor;
  io::SocketNetwork sockets;
  io::InprocNetwork inproc;
  io::RoutedNetwork network;
  std::unique_ptr<Engine> caller, owner;
  std::shared_ptr<memory::Arena> source, target;
  uint32_t remote = 0;
  LinkRef link;
};

const PathSeen* seen_path(const Engine& engine, std::string_view name) {
  for (const auto& [id, peer] : engine.observer().peers()) {
    for (const auto& path : peer->paths) {
      if (path.name == name) return &path;
    }
  }
  return nullptr;
}

TEST_CASE("observer: stages, bytes and connects are counted where they happen") {
  Two two(LocalReads::kOff);
  auto transfer = two.write();
  REQUIRE(two.run([&] { return transfer->quiet(); }));
  CHECK(transfer->error().code == Code::kOk);
  const PathSeen* tcp = seen_path(*two.caller, "tcp");
  REQUIRE(tcp);
  CHECK(tcp->bytes_written == kBytes);
  CHECK(tcp->slices == 3);
  CHECK(tcp->stages[static_cast<size_t>(Stage::kQueue)]->count() == 3);
  CHECK(tcp->stages[static_cast<size_t>(Stage::kWire)]->count() == 3);
  CHECK_FALSE(tcp->stages[static_cast<size_t>(Stage::kCopy)]);
  CHECK(two.caller->observer().connect_ns().count() == 1);
  CHECK(two.caller->observer().connecting().empty());
  CHECK(two.caller->observer().transfer_ns().count() == 1);
  CHECK(two.caller->observer().transfer_ns().sum() >= tcp->stages[static_cast<size_t>(Stage::kWire)]->max());
}

TEST_CASE("observer: a write to a peer of this host is seen at both ends under one name") {
  Two two(LocalReads::kAuto);
  TransferOptions options;
  options.trace = "prefill-42";
  two.owner->observer().watch_slow(1, {});
  auto transfer = two.write(std::move(options));
  REQUIRE(two.run([&] { return transfer->quiet(); }));
  CHECK(transfer->error().code == Code::kOk);
  auto there = two.owner->observer().take_events().events;
  CHECK(there.size() >= 3);
  for (const auto& event : there) {
    CHECK(event.kind == "pull");
    CHECK(event.trace == "prefill-42");
    CHECK(event.peer == two.caller->address());
  }
  CHECK(seen_path(*two.caller, "pull")->bytes_written == kBytes);
  CHECK(seen_path(*two.owner, "shm")->stages[static_cast<size_t>(Stage::kCopy)]->count() == 3);
}

TEST_CASE("observer: a peer of the version before is served, without names") {
  Two two(LocalReads::kAuto, {1, 1});
  TransferOptions options;
  options.trace = "prefill-42";
  two.owner->observer().watch_slow(1, {});
  auto transfer = two.write(std::move(options));
  REQUIRE(two.run([&] { return transfer->quiet(); }));
  CHECK(two.link->version() == 1);
  CHECK(transfer->error().code == Code::kOk);
  CHECK(seen_path(*two.caller, "pull")->bytes_written == kBytes);
  auto there = two.owner->observer().take_events().events;
  CHECK(there.size() >= 3);
  for (const auto& event : there) CHECK(event.trace.size() == 16);
}

TEST_CASE("observer: what is under way is in the dump with its stage, its bytes and its age") {
  Two two(LocalReads::kOff);
  auto transfer = two.write();
  auto before = dump(*two.caller, 10);
  REQUIRE(before.transfers.size() == 1);
  CHECK(before.transfers[0].bytes_total == kBytes);
  CHECK(before.transfers[0].slices_left == 3);
  REQUIRE(before.transfers[0].slices.size() >= 1);
  CHECK(before.transfers[0].slices[0].path == "tcp");
  CHECK(before.transfers[0].slices[0].address == two.owner->address());
  CHECK(oldest_transfer_ns(*two.caller) > 0);
  CHECK(dump(*two.caller, 0).transfers_left_out == 1);
  REQUIRE(two.run([&] { return transfer->quiet(); }));
  CHECK(dump(*two.caller, 10).transfers.empty());
  CHECK(oldest_transfer_ns(*two.caller) == 0);
}

TEST_CASE("observer: names that do not belong into a log are refused") {
  CHECK(is_trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"));
  CHECK_FALSE(is_trace("two words"));
  CHECK_FALSE(is_trace("line\n"));
  CHECK_FALSE(is_trace(std::string(kTraceBytesMax + 1, 'x')));
  Two two(LocalReads::kOff);
  REQUIRE(two.write()->trace().size() == 16);
  Record record{};
  auto refused = two.caller->submit(std::span(&record, 1), {.trace = "two words"});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kInvalid);
}

TEST_CASE("observer: slow transfers become events, once while they go on and once when they are over") {
  Two two(LocalReads::kOff);
  int woken = 0;
  two.caller->observer().watch_slow(1, [&] { ++woken; });
  TransferOptions options;
  options.trace = "slow-one";
  auto transfer = two.write(std::move(options));
  transfer->check_slow(two.reactor.now_ns());
  transfer->check_slow(two.reactor.now_ns());
  REQUIRE(two.run([&] { return transfer->quiet(); }));
  auto taken = two.caller->observer().take_events();
  REQUIRE(taken.events.size() == 2);
  CHECK(woken == 1);
  CHECK_FALSE(taken.events[0].over);
  CHECK(taken.events[0].trace == "slow-one");
  CHECK(taken.events[0].path == "tcp");
  CHECK(taken.events[0].peer == two.owner->address());
  CHECK((taken.events[0].stage == "queue" || taken.events[0].stage == "wire"));
  CHECK(taken.events[1].over);
  CHECK(taken.events[1].code == Code::kOk);
  CHECK(taken.events[1].bytes_moved == kBytes);
  CHECK(two.caller->observer().take_events().events.empty());
}

TEST_CASE("observer: a long transfer that moves well is not slow, a trickle and one that stands still are") {
  io::EpollReactor reactor;
  Observer observer(reactor);
  constexpr uint64_t kGiB = uint64_t{1} << 30, kMiB = 1u << 20;
  CHECK_FALSE(observer.is_slow(100 * kSecond, 0, kGiB));  // nobody asked
  observer.watch_slow(kSecond, {});
  CHECK_FALSE(observer.is_slow(kSecond - 1, kSecond - 1, 0));
  CHECK(observer.is_slow(kSecond, kSecond, 0));
  CHECK_FALSE(observer.is_slow(100 * kSecond, kMillisecond, 100 * kGiB));
  CHECK(observer.is_slow(100 * kSecond, kSecond, 100 * kGiB));
  CHECK(observer.is_slow(100 * kSecond, kMillisecond, 100 * 63 * kMiB));
  CHECK_FALSE(observer.is_slow(100 * kSecond, kMillisecond, 100 * 64 * kMiB));
  observer.watch_slow(10 * kSecond, {});
  CHECK_FALSE(observer.is_slow(100 * kSecond, kMillisecond, 10 * 64 * kMiB));
}

TEST_CASE("observer: what was called slow while it went on is called over, what never was is not") {
  Two two(LocalReads::kOff);
  two.caller->observer().watch_slow(kSecond, {});
  auto quick = two.write({});
  quick->check_slow(two.reactor.now_ns());
  REQUIRE(two.run([&] { return quick->quiet(); }));
  CHECK(two.caller->observer().take_events().events.empty());
  auto slow = two.write({});
  slow->check_slow(two.reactor.now_ns() + 2 * kSecond);
  REQUIRE(two.run([&] { return slow->quiet(); }));
  auto taken = two.caller->observer().take_events();
  REQUIRE(taken.events.size() == 2);
  CHECK(taken.events[1].over);
  CHECK(taken.events[1].number == slow->number());
}

TEST_CASE("observer: events that nobody takes are bounded and counted") {
  io::EpollReactor reactor;
  Observer observer(reactor);
  observer.watch_slow(1, {});
  for (size_t i = 0; i < Observer::kEventsMax + 10; ++i) {
    SlowEvent event;
    event.number = i;
    observer.report(std::move(event));
  }
  auto taken = observer.take_events();
  CHECK(taken.events.size() == Observer::kEventsMax);
  CHECK(taken.events.front().number == 0);
  CHECK(taken.dropped == 10);
  CHECK(observer.slow_count() == Observer::kEventsMax + 10);
  CHECK(observer.take_events().dropped == 0);
}

TEST_CASE("observer: peers are bounded; the oldest without a link are one record, and nothing is lost") {
  io::EpollReactor reactor;
  Observer observer(reactor);
  auto kept = observer.peer({1, 1}, "kept:1");  // has a link until the end
  kept->path("tcp").bytes_read = 5;
  constexpr uint64_t kMany = 500;
  for (uint64_t n = 2; n <= kMany; ++n) {
    auto peer = observer.peer({n, n}, "peer:" + std::to_string(n));
    peer->path("tcp").bytes_read += n;
    peer->path("tcp").timed(Stage::kWire).record(static_cast<int64_t>(n));
    ++count_of(peer->path("tcp").failures, Code::kPeerLost);
    CHECK(observer.peers().size() <= Observer::kPeersMax);
  }
  CHECK(observer.peers().contains({1, 1}));
  CHECK(observer.peers().contains({kMany, kMany}));
  CHECK_FALSE(observer.peers().contains({2, 2}));
  uint64_t bytes = 0, times = 0, failures = 0, links = 0;
  auto add = [&](const PeerSeen& peer) {
    links += peer.links;
    for (const auto& path : peer.paths) {
      bytes += path.bytes_read;
      failures += path.failures[static_cast<size_t>(Code::kPeerLost)];
      if (const auto& wire = path.stages[static_cast<size_t>(Stage::kWire)]) times += wire->count();
    }
  };
  for (const auto& [id, peer] : observer.peers()) add(*peer);
  add(observer.other());
  CHECK(bytes == 5 + kMany * (kMany + 1) / 2 - 1);
  CHECK(times == kMany - 1);
  CHECK(failures == kMany - 1);
  CHECK(links == kMany);
}

TEST_CASE("observer: when all peers have links, further ones share a record") {
  io::EpollReactor reactor;
  Observer observer(reactor);
  std::vector<PeerSeenRef> linked;
  for (uint64_t n = 1; n <= Observer::kPeersMax + 5; ++n) linked.push_back(observer.peer({n, n}, "peer"));
  CHECK(observer.peers().size() == Observer::kPeersMax);
  CHECK(linked.back().get() == &observer.other());
  CHECK(observer.other().address.empty());
  linked.front().reset();
  linked.push_back(observer.peer({1000, 1000}, "new"));
  CHECK(observer.peers().contains({1000, 1000}));
  CHECK_FALSE(observer.peers().contains({1, 1}));
}

}  // namespace
}  // namespace moontide::engine
