// Transfers over transports that fail by the dice: each fault by itself has the effect that it is for, and under all of
// them at once every transfer has one outcome and one quiet, what is retried lands right, and nothing is left behind.
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/machine.h"
#include "transport/fault/fault.h"
#include "transport/self/self.h"
#include "transport/sim/sim.h"
#include "transport/tcp/tcp.h"

namespace moontide::sim {
namespace {

using engine::Record;
using engine::TransferRef;
using transport::FaultDice;
using transport::FaultTransport;

constexpr uint32_t kRead = 1, kWrite = 2;
constexpr uint64_t kSize = 3'000'000;  // three slices
constexpr std::byte kAfter{9};

// Two engines whose sim and tcp transports have faults of their own; no faults below them.
struct Scene {
  explicit Scene(uint64_t seed, Paths paths = Paths::kTcp)
      : universe(seed, paths), tcp(std::make_shared<FaultDice>(seed)), one_sided(std::make_shared<FaultDice>(~seed)) {
    universe.hub.faults() = {.late_one_in = 0, .very_late_one_in = 0, .fail_one_in = 0};
    reader = make(reader_machine);
    owner = make(owner_machine);
    theirs.resize(kSize, std::byte{7});
    ours.resize(kSize, std::byte{1});
    remote = *owner->add_region(theirs.data(), kSize, memory::kReadable | memory::kWritable, "theirs");
    local = *reader->add_region(ours.data(), kSize, memory::kReadable, "ours");
    reader->open(owner->address(), 10 * kSecond, [this](Result<engine::LinkRef> opened) { link = *opened; });
    REQUIRE(run_until([&] { return link != nullptr && link->region(remote->id) != nullptr; }));
    handle = reader->handle(link, remote->id);
  }
  ~Scene() {
    link.reset();
    reader.reset();
    owner.reset();
  }

  bool run_until(const std::function<bool()>& ready) { return universe.world.run_until(ready, 300 * kSecond); }
  Record record(uint32_t op, uint64_t offset = 0, uint64_t length = kSize) const {
    return {op, 0, reinterpret_cast<uint64_t>(ours.data()) + offset, handle, offset, length};
  }
  TransferRef run(const Record& wanted) {
    auto transfer = *reader->submit(std::span(&wanted, 1), {});
    REQUIRE(run_until([&] { return transfer->quiet(); }));
    return transfer;
  }
  std::unique_ptr<engine::Engine> make(Machine& machine) {
    auto transports = [this, &machine](memory::Registry& registry, const engine::EngineOptions& options) {
      transport::TransportList list;
      list.push_back(std::make_unique<transport::SelfTransport>(registry));
      if (universe.paths != Paths::kTcp) {
        auto inner = std::make_unique<transport::SimTransport>(universe.hub, machine.process(), registry);
        list.push_back(std::make_unique<FaultTransport>(std::move(inner), one_sided));
      }
      auto inner = std::make_unique<transport::TcpTransport>(options.tcp_streams);
      list.push_back(std::make_unique<FaultTransport>(std::move(inner), tcp));
      return list;
    };
    return *engine::Engine::create(machine.process(), machine.network(), machine.engine_options(), transports);
  }

  Universe universe;
  std::shared_ptr<FaultDice> tcp, one_sided;
  Machine reader_machine{universe, "reader"};
  Machine owner_machine{universe, "owner"};
  Bytes theirs, ours;
  std::unique_ptr<engine::Engine> reader, owner;
  memory::RegionRef remote, local;
  engine::LinkRef link;
  uint64_t handle = 0;
};

bool all_are(ByteView bytes, std::byte value) {
  return std::ranges::all_of(bytes, [=](std::byte b) { return b == value; });
}

TEST_CASE("fault: refusals are retried, and end the transfer with their code when they do not end") {
  Scene scene(1);
  scene.tcp->faults.refuse_one_in = 4;
  CHECK(scene.run(scene.record(kRead))->results()[0] == Code::kOk);
  CHECK(all_are(scene.ours, std::byte{7}));
  scene.tcp->faults.refuse_one_in = 1;
  scene.tcp->refused = 0;
  auto never = scene.run(scene.record(kWrite, 0, 10));
  CHECK(never->results()[0] == Code::kUnavailable);
  CHECK(scene.tcp->refused == 4);
  scene.tcp->faults.code = Code::kDenied;
  scene.tcp->refused = 0;
  CHECK(scene.run(scene.record(kRead, 0, 10))->results()[0] == Code::kDenied);
  CHECK(scene.tcp->refused == 1);  // no other path makes a denial right
}

TEST_CASE("fault: a failure before or after the bytes moved is tried again, and the bytes are right") {
  for (uint32_t op : {kRead, kWrite}) {
    Scene scene(2);
    const auto before = scene.reader->counters().retries;
    scene.tcp->faults.fail_before_one_in = 3;
    scene.tcp->faults.fail_after_one_in = 3;
    constexpr uint64_t kLength = 100'000;
    MutableBytes target = MutableBytes(op == kRead ? scene.ours : scene.theirs).first(kLength);
    uint64_t done = 0;
    for (int i = 0; i < 20; ++i) {
      std::ranges::fill(target, std::byte{0});
      if (scene.run(scene.record(op, 0, kLength))->results()[0] != Code::kOk) continue;
      ++done;
      CHECK(all_are(target, op == kRead ? std::byte{7} : std::byte{1}));
    }
    CHECK(done >= 10);
    CHECK(scene.tcp->failed_before > 5);
    CHECK(scene.tcp->failed_after > 5);
    CHECK(scene.reader->counters().retries - before > 10);
  }
}

TEST_CASE("fault: a completion that is told late is waited for") {
  Scene scene(3);
  scene.tcp->faults.delay_one_in = 1;
  scene.tcp->faults.delay_most_ns = kSecond;
  const int64_t began_ns = scene.universe.world.time_ns();
  CHECK(scene.run(scene.record(kRead))->results()[0] == Code::kOk);
  CHECK(scene.tcp->delayed == 3);
  CHECK(scene.universe.world.time_ns() - began_ns > 100 * kMillisecond);
}

TEST_CASE("fault: what waits behind hostages ends at its deadline, and moves where somebody moves") {
  Scene scene(11);
  scene.tcp->faults.keep_one_in = 1;
  std::vector<TransferRef> hostages;
  const Record whole = scene.record(kRead);
  auto& paths = scene.link->scheduler().paths();
  auto path = std::ranges::find_if(paths, [](const auto& p) { return p.endpoint->transport() == "tcp"; });
  REQUIRE(path != paths.end());
  while (path->endpoint->room(false) > 0 && hostages.size() < 100) {
    hostages.push_back(*scene.reader->submit(std::span(&whole, 1), {}));
    scene.universe.world.run_for(kMillisecond);
  }
  REQUIRE(hostages.size() < 100);
  const Record small = scene.record(kRead, 0, 10);
  auto waiting = *scene.reader->submit(std::span(&small, 1), {});
  CHECK(scene.run_until([&] { return waiting->quiet(); }));
  CHECK(waiting->results()[0] == Code::kTimedOut);
  CHECK(std::ranges::all_of(hostages, [](auto& h) { return h->done(); }));
  CHECK(std::ranges::count_if(hostages, [](auto& h) { return !h->quiet(); }) > 1);  // all that were posted
  scene.link->close({Code::kPeerLost, "test"});
  CHECK(scene.run_until([&] { return std::ranges::all_of(hostages, [](auto& h) { return h->quiet(); }); }));
}

TEST_CASE("fault: progress that stalls ends at the deadline on progress, and the memory is handed back") {
  for (uint32_t op : {kRead, kWrite}) {
    Scene scene(4);
    scene.tcp->faults.stall_one_in = 1;
    auto transfer = scene.run(scene.record(op));
    CHECK(transfer->results()[0] == Code::kTimedOut);
    CHECK(transfer->bytes_moved() > 0);
    bool back = false;
    REQUIRE(scene.reader->remove_region(scene.local->id, [&] { back = true; }));
    CHECK(back);
  }
}

TEST_CASE("fault: an endpoint that is dropped hands what is on it to the next path, and is not used again") {
  Scene scene(5, Paths::kBoth);
  scene.one_sided->faults.drop_one_in = 1;
  auto transfer = scene.run(scene.record(kRead));
  CHECK(transfer->results()[0] == Code::kOk);
  CHECK(transfer->path() == "sim+tcp");
  CHECK(all_are(scene.ours, std::byte{7}));
  CHECK(scene.one_sided->dropped == 1);
  CHECK(scene.run(scene.record(kRead))->path() == "tcp");
}

struct Watched {
  TransferRef transfer;
  Record record;
  int outcomes = 0, quiets = 0;
  bool refilled = false;
};

TEST_CASE("fault: under all faults each transfer has one outcome and one quiet, and what it says it moved is there") {
  constexpr uint64_t kTransfers = 24, kPart = kSize / kTransfers;
  uint64_t right = 0, failed = 0, struck[6] = {};
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    Scene scene(seed, seed % 2 == 0 ? Paths::kBoth : Paths::kTcp);
    scene.tcp->faults = scene.one_sided->faults = {.refuse_one_in = 9,
                                                   .fail_before_one_in = 9,
                                                   .fail_after_one_in = 9,
                                                   .delay_one_in = 4,
                                                   .stall_one_in = 20,
                                                   .drop_one_in = seed % 4 == 0 ? 30u : 0u};
    SeededRandom random(seed);
    std::deque<Watched> all;
    for (uint64_t i = 0; i < kTransfers; ++i) {
      Watched& one = all.emplace_back();
      one.record = scene.record(random.below(2) == 0 ? kRead : kWrite, i * kPart, kPart);
      engine::TransferOptions options;
      options.done = [&one] { ++one.outcomes; };
      options.quiet = [&one] {
        CHECK(one.outcomes == 1);
        ++one.quiets;
      };
      one.transfer = *scene.reader->submit(std::span(&one.record, 1), std::move(options));
      scene.universe.world.run_for(static_cast<int64_t>(random.below(2 * kMillisecond)));
      if (random.below(8) == 0) all[random.below(all.size())].transfer->cancel();
    }
    REQUIRE(scene.run_until([&] {
      for (Watched& one : all) {
        if (one.refilled || !one.transfer->quiet()) continue;
        one.refilled = true;
        const bool read = one.record.op == kRead;
        MutableBytes target = MutableBytes(read ? scene.ours : scene.theirs).subspan(one.record.offset, kPart);
        const bool moved = one.transfer->results()[0] == Code::kOk;
        (moved ? right : failed) += 1;
        if (moved) CHECK(all_are(target, read ? std::byte{7} : std::byte{1}));
        std::ranges::fill(target, kAfter);  // it is ours again
      }
      return std::ranges::all_of(all, [](const Watched& one) { return one.refilled; });
    }));
    scene.universe.world.run_for(30 * kSecond);
    for (const Watched& one : all) {
      CHECK(one.outcomes == 1);
      CHECK(one.quiets == 1);
      CHECK(all_are(ByteView(one.record.op == kRead ? scene.ours : scene.theirs).subspan(one.record.offset, kPart),
                    kAfter));
    }
    CHECK(scene.reader->hostages() == 0);
    CHECK(scene.local->pins == 0);
    CHECK(scene.remote->pins == 0);
    bool back = false;
    REQUIRE(scene.reader->remove_region(scene.local->id, [&] { back = true; }));
    CHECK(back);
    for (const auto& dice : {scene.tcp, scene.one_sided}) {
      const uint64_t counts[] = {dice->refused, dice->failed_before, dice->failed_after,
                                 dice->delayed, dice->stalled,       dice->dropped};
      for (size_t i = 0; i < std::size(counts); ++i) struck[i] += counts[i];
    }
  }
  CHECK(right > 400);
  CHECK(failed > 40);
  for (uint64_t count : struck) CHECK(count > 3);
}

}  // namespace
}  // namespace moontide::sim
