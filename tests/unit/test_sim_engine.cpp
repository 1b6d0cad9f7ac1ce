// The real engine on simulated machines: what its transfers promise must hold when reads land late, in parts and in any
// order.
#include "sim/machine.h"
#include "unit/io_support.h"

namespace moontide::sim {
namespace {

using io::test::pattern;

struct TwoEngines {
  explicit TwoEngines(uint64_t seed, Paths paths) : universe(seed, paths) {
    reader = *reader_machine.make_engine();
    owner = *owner_machine.make_engine();
  }
  ~TwoEngines() {
    reader.reset();
    owner.reset();
  }
  engine::LinkRef open() {
    engine::LinkRef link;
    reader->open(owner->address(), 10 * kSecond, [&](Result<engine::LinkRef> opened) {
      REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().text()));
      link = *opened;
    });
    REQUIRE(universe.world.run_until([&] { return link != nullptr; }, 30 * kSecond));
    return link;
  }
  uint64_t handle_of(const engine::LinkRef& link, uint32_t region) {
    REQUIRE(universe.world.run_until([&] { return link->region(region) != nullptr; }, 30 * kSecond));
    return reader->handle(link, region);
  }

  Universe universe;
  Machine reader_machine{universe, "reader"};
  Machine owner_machine{universe, "owner"};
  std::unique_ptr<engine::Engine> reader;
  std::unique_ptr<engine::Engine> owner;
};

constexpr uint64_t kSize = 200'000;

TEST_CASE("sim engine: reads and writes arrive whole, whatever the order of their parts") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    TwoEngines two(seed, static_cast<Paths>(1 + seed % 3));
    Bytes source = pattern(kSize, seed);
    Bytes target(kSize);
    const bool write = seed % 3 != 0 && seed % 2 == 0;
    auto theirs = two.owner->add_region(write ? target.data() : source.data(), kSize,
                                        memory::kReadable | memory::kWritable, "theirs");
    auto ours = two.reader->add_region(write ? source.data() : target.data(), kSize, memory::kLocal, "ours");
    REQUIRE(theirs);
    REQUIRE(ours);
    auto link = two.open();
    engine::Record record{
        write ? 2u : 1u, 0, reinterpret_cast<uint64_t>((*ours)->address), two.handle_of(link, (*theirs)->id), 0, kSize};
    bool quiet = false;
    engine::TransferOptions options;
    options.quiet = [&] { quiet = true; };
    auto transfer = two.reader->submit(std::span(&record, 1), std::move(options));
    REQUIRE(transfer);
    CHECK((*transfer)->peer_bytes_left() == (write ? kSize : 0));
    CHECK(two.universe.world.run_until([&] { return quiet; }, 60 * kSecond));
    CHECK((*transfer)->peer_bytes_left() == 0);
    CAPTURE((*transfer)->error().text());
    if ((*transfer)->results()[0] == Code::kOk) CHECK(target == source);
    if (two.universe.paths == Paths::kTcp) CHECK((*transfer)->results()[0] == Code::kOk);
  }
}

TEST_CASE("sim engine: nothing lands after quiet, also when the transfer was cancelled or the link cut") {
  int cancelled = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    TwoEngines two(seed, static_cast<Paths>(1 + seed % 3));
    two.universe.hub.faults().late_one_in = 2;
    two.universe.hub.faults().very_late_one_in = 4;
    Bytes source(kSize, std::byte{7});
    Bytes target(kSize);
    auto theirs = two.owner->add_region(source.data(), kSize, memory::kReadable, "theirs");
    auto ours = two.reader->add_region(target.data(), kSize, memory::kLocal, "ours");
    auto link = two.open();
    engine::Record record{1, 0,    reinterpret_cast<uint64_t>(target.data()), two.handle_of(link, (*theirs)->id),
                          0, kSize};
    bool quiet = false;
    engine::TransferOptions options;
    options.quiet = [&] { quiet = true; };
    auto transfer = two.reader->submit(std::span(&record, 1), std::move(options));
    REQUIRE(transfer);
    SeededRandom random(seed);
    two.universe.world.run_for(static_cast<int64_t>(random.below(400 * kMicrosecond)));
    if (seed % 4 == 0) {
      two.universe.fabric.cut("owner", "reader");
    } else {
      (*transfer)->cancel();
    }
    CHECK((*transfer)->done() == ((seed % 4 != 0) || quiet));
    REQUIRE(two.universe.world.run_until([&] { return quiet; }, 120 * kSecond));
    if ((*transfer)->results()[0] != Code::kOk) ++cancelled;
    std::fill(target.begin(), target.end(), std::byte{9});  // the memory is ours again
    two.universe.fabric.heal_all();
    two.universe.world.run_for(30 * kSecond);
    CHECK(std::all_of(target.begin(), target.end(), [](std::byte b) { return b == std::byte{9}; }));
  }
  CHECK(cancelled > 20);
}

TEST_CASE("sim engine: a region unregistered in mid-read gives STALE or the bytes it had, never what came after") {
  int stale = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    TwoEngines two(seed, seed % 2 == 0 ? Paths::kOneSided : Paths::kTcp);
    Bytes source(kSize, std::byte{7});
    Bytes target(kSize);
    auto theirs = two.owner->add_region(source.data(), kSize, memory::kReadable, "theirs");
    auto ours = two.reader->add_region(target.data(), kSize, memory::kLocal, "ours");
    auto link = two.open();
    engine::Record record{1, 0,    reinterpret_cast<uint64_t>(target.data()), two.handle_of(link, (*theirs)->id),
                          0, kSize};
    auto transfer = two.reader->submit(std::span(&record, 1), {});
    REQUIRE(transfer);
    SeededRandom random(seed);
    two.universe.world.run_for(static_cast<int64_t>(random.below(300 * kMicrosecond)));
    bool handed_back = false;
    REQUIRE(two.owner->remove_region((*theirs)->id, [&] {
      handed_back = true;
      std::fill(source.begin(), source.end(), std::byte{66});
    }));
    REQUIRE(two.universe.world.run_until([&] { return (*transfer)->quiet() && handed_back; }, 60 * kSecond));
    if ((*transfer)->results()[0] == Code::kOk) {
      CHECK(std::all_of(target.begin(), target.end(), [](std::byte b) { return b == std::byte{7}; }));
    } else {
      stale += (*transfer)->results()[0] == Code::kStale;
    }
  }
  CHECK(stale > 5);
}

TEST_CASE("sim engine: a host that vanished is missed, also while nothing is under way") {
  for (const bool owner_goes : {true, false}) {
    CAPTURE(owner_goes);
    TwoEngines two(3, Paths::kTcp);
    two.open();
    auto& world = two.universe.world;
    REQUIRE(world.run_until([&] { return two.owner->links() == 1; }, 30 * kSecond));
    const int64_t keepalive_ns = two.reader->options().keepalive_ns;
    world.run_for(10 * keepalive_ns);  // whoever is there is not missed
    REQUIRE(two.reader->links() == 1);
    REQUIRE(two.owner->links() == 1);
    (owner_goes ? two.owner_machine : two.reader_machine).crash(true);
    auto& left = owner_goes ? two.reader : two.owner;
    CHECK(world.run_until([&] { return left->links() == 0; }, 3 * keepalive_ns));
  }
}

TEST_CASE("sim engine: what a stopped peer may still land stays hostage, however long it is stopped") {
  int landed_late = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    TwoEngines two(seed, Paths::kTcp);
    auto& world = two.universe.world;
    Bytes source(kSize, std::byte{7}), target(kSize);
    auto theirs = two.owner->add_region(target.data(), kSize, memory::kReadable | memory::kWritable, "theirs");
    auto ours = two.reader->add_region(source.data(), kSize, memory::kLocal, "ours");
    auto link = two.open();
    const engine::Record record{2, 0,    reinterpret_cast<uint64_t>(source.data()), two.handle_of(link, (*theirs)->id),
                                0, kSize};
    auto transfer = *two.reader->submit(std::span(&record, 1), {});
    REQUIRE(world.run_until([&] { return transfer->bytes_moved() > 0; }, 10 * kSecond));  // given to the network
    if (transfer->done()) continue;
    two.owner_machine.process().pause();
    world.run_for(60 * kSecond);
    REQUIRE(transfer->done());
    CHECK_FALSE(transfer->quiet());
    two.owner_machine.process().resume();
    CHECK(world.run_until([&] { return transfer->quiet(); }, 120 * kSecond));
    const Bytes seen = target;
    world.run_for(30 * kSecond);
    CHECK(target == seen);  // nothing lands after quiet
    ++landed_late;
  }
  CHECK(landed_late > 5);
}

TEST_CASE("sim engine: who has the address of a host that vanished is not taken for it") {
  TwoEngines two(5, Paths::kTcp);
  auto old = two.open();
  const std::string address = two.owner->address();
  two.universe.world.run_for(3 * kSecond);
  CHECK(two.open() == old);  // it answered
  two.universe.world.run_for(3 * kSecond);
  two.owner_machine.crash(true);
  Machine next(two.universe, "owner");
  auto options = next.engine_options();
  options.listen = address;
  auto another = *engine::Engine::create(next.process(), next.network(), options, next.transports());
  auto link = two.open();
  CHECK(link != old);
  CHECK(link->peer_instance() == another->instance());
}

TEST_CASE("sim engine: the owner's crash ends transfers, and the same seed gives the same run") {
  auto run = [](uint64_t seed) {
    TwoEngines two(seed, Paths::kBoth);
    Bytes source(kSize, std::byte{7});
    Bytes target(kSize);
    auto theirs = two.owner->add_region(source.data(), kSize, memory::kReadable, "theirs");
    auto ours = two.reader->add_region(target.data(), kSize, memory::kLocal, "ours");
    auto link = two.open();
    engine::Record record{1, 0,    reinterpret_cast<uint64_t>(target.data()), two.handle_of(link, (*theirs)->id),
                          0, kSize};
    auto transfer = two.reader->submit(std::span(&record, 1), {});
    REQUIRE(transfer);
    two.universe.world.run_for(static_cast<int64_t>(two.universe.world.random().below(100 * kMicrosecond)));
    two.owner_machine.crash(seed % 2 == 0);
    CHECK(two.universe.world.run_until([&] { return (*transfer)->quiet(); }, 120 * kSecond));
    return two.universe.world.trace();
  };
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    CHECK(run(seed) == run(seed));
  }
}

}  // namespace
}  // namespace moontide::sim
