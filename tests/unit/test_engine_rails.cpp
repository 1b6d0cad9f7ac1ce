// Links over several pairs of network devices: what each delivers decides its share, one that fails costs no byte, and
// the control channel moves when its own device fails.
#include "sim/machine.h"
#include "unit/io_support.h"

namespace moontide::sim {
namespace {

using io::test::pattern;

constexpr uint64_t kSize = 8u << 20;

struct Railed {
  explicit Railed(uint64_t seed, size_t rails = 2)
      : universe(seed, Paths::kTcp),
        reader_machine(universe, "reader", rails),
        owner_machine(universe, "owner", rails) {
    reader = *reader_machine.make_engine();
    owner = *owner_machine.make_engine();
    theirs = *owner->add_region(there.data(), kSize, memory::kReadable | memory::kWritable, "theirs");
    ours = *reader->add_region(here.data(), kSize, memory::kLocal, "ours");
    reader->open(owner->address(), 10 * kSecond, [&](Result<engine::LinkRef> opened) {
      REQUIRE_MESSAGE(opened, (opened ? "" : opened.error().text()));
      link = *opened;
    });
    REQUIRE(universe.world.run_until([&] { return link && link->region(theirs->id); }, 30 * kSecond));
  }
  ~Railed() {
    link.reset();
    reader.reset();
    owner.reset();
  }

  engine::TransferRef start(uint32_t op, uint64_t offset, uint64_t length, engine::TransferOptions options = {}) {
    engine::Record record{
        op, 0, reinterpret_cast<uint64_t>(here.data()) + offset, reader->handle(link, theirs->id), offset, length};
    auto transfer = reader->submit(std::span(&record, 1), std::move(options));
    REQUIRE(transfer);
    return *transfer;
  }
  bool finish(const engine::TransferRef& transfer, int64_t within_ns = 60 * kSecond) {
    return universe.world.run_until([&] { return transfer->quiet(); }, within_ns);
  }
  void cut(const std::string& a, const std::string& b) {
    universe.fabric.cut(a, b);
    universe.fabric.cut(b, a);
  }
  void heal(const std::string& a, const std::string& b) {
    universe.fabric.heal(a, b);
    universe.fabric.heal(b, a);
  }
  uint64_t by_path(const std::string& path) {
    const auto& counted = reader->counters().bytes_by_path;
    auto found = counted.find(path);
    return found == counted.end() ? 0 : found->second;
  }

  Universe universe;
  Machine reader_machine, owner_machine;
  Bytes here = pattern(kSize, 1), there = pattern(kSize, 2);
  std::unique_ptr<engine::Engine> reader, owner;
  memory::RegionRef theirs, ours;
  engine::LinkRef link;
};

TEST_CASE("rails: both carry a transfer, and it is exact in both directions") {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    CAPTURE(seed);
    Railed railed(seed);
    auto transfer = railed.start(seed % 2 == 0 ? 1 : 2, 0, kSize);
    REQUIRE(railed.finish(transfer));
    CHECK(transfer->error().code == Code::kOk);
    CHECK(railed.here == railed.there);
    CHECK(railed.by_path("tcp") > 0);
    CHECK(railed.by_path("tcp.1") > 0);
    CHECK(transfer->path() == "tcp+tcp.1");
  }
}

TEST_CASE("rails: unequal ones share in proportion to what they deliver") {
  Railed railed(3);
  // window over round trip: the second delivers about an eighth
  for (auto [from, to] : {std::pair("reader~1", "owner~1"), {"owner~1", "reader~1"}}) {
    railed.universe.fabric.set_delays(from, to, {1600 * kMicrosecond, 1700 * kMicrosecond});
  }
  for (auto [from, to] : {std::pair("reader", "owner"), {"owner", "reader"}}) {
    railed.universe.fabric.set_delays(from, to, {200 * kMicrosecond, 210 * kMicrosecond});
  }
  for (int i = 0; i < 6; ++i) REQUIRE(railed.finish(railed.start(1, 0, kSize)));
  const double fast = static_cast<double>(railed.by_path("tcp"));
  const double slow = static_cast<double>(railed.by_path("tcp.1"));
  CAPTURE(fast);
  CAPTURE(slow);
  CHECK(slow > 0);
  CHECK(fast > 2 * slow);
  CHECK(railed.here == railed.there);
}

TEST_CASE("rails: one that is cut in mid-transfer costs no byte and less than a second, and is used again later") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    for (bool control : {false, true}) {  // the control channel runs over the first one
      CAPTURE(seed);
      CAPTURE(control);
      Railed railed(seed);
      const std::string device = control ? "" : "~1";
      const std::string path = control ? "tcp" : "tcp.1";
      auto transfer = railed.start(seed % 2 == 0 ? 1 : 2, 0, kSize);
      railed.universe.world.run_for(static_cast<int64_t>(railed.universe.world.random().below(4 * kMillisecond)));
      railed.cut("reader" + device, "owner" + device);
      const int64_t cut_ns = railed.universe.world.time_ns();
      REQUIRE(railed.finish(transfer));
      CHECK(transfer->error().code == Code::kOk);
      CHECK(railed.here == railed.there);
      CHECK(railed.universe.world.time_ns() - cut_ns < kSecond);
      // what the cut held back is no danger any more
      const Bytes before = railed.there;
      railed.heal("reader" + device, "owner" + device);
      const uint64_t carried = railed.by_path(path);
      const int64_t healed_ns = railed.universe.world.time_ns();
      while (railed.by_path(path) == carried && railed.universe.world.time_ns() - healed_ns < 5 * kSecond) {
        REQUIRE(railed.finish(railed.start(1, 0, kSize)));
        railed.universe.world.run_for(100 * kMillisecond);
      }
      CHECK(railed.by_path(path) > carried);
      CHECK(railed.there == before);
      CHECK(railed.here == railed.there);
    }
  }
}

TEST_CASE("rails: a write on one that failed is quiet only when the owner has let go of its stream (law 2)") {
  Railed railed(3);
  auto& world = railed.universe.world;
  auto transfer = railed.start(2, 0, kSize);
  world.run_for(500 * kMicrosecond);
  railed.cut("reader~1", "owner~1");
  REQUIRE(world.run_until([&] { return railed.reader->counters().paths_failed > 0; }, 10 * kSecond));
  // nobody can say any more what of it may still land
  railed.cut("reader", "owner");
  transfer->cancel();
  world.run_for(kSecond);
  CHECK(transfer->done());
  CHECK_FALSE(transfer->quiet());
  railed.heal("reader", "owner");
  REQUIRE(railed.finish(transfer));
  const Bytes after = railed.there;
  railed.heal("reader~1", "owner~1");
  world.run_for(5 * kSecond);
  CHECK(railed.there == after);
}

TEST_CASE("rails: requests on the control channel are answered once each, across moves to other devices") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    Railed railed(seed);
    std::map<uint64_t, int> served;
    railed.owner->serve(wire::kApplicationFirst,
                        [&](const engine::LinkRef&, rpc::Incoming request, rpc::Responder responder) {
                          uint64_t number;
                          std::memcpy(&number, request.payload.data(), sizeof number);
                          ++served[number];
                          responder.reply(std::move(request.payload));
                        });
    uint64_t answered = 0, asked = 0;
    for (int move = 0; move < 4; ++move) {
      const std::string device = move % 2 == 0 ? "" : "~1";
      const std::string other = move % 2 == 0 ? "~1" : "";
      railed.heal("reader" + other, "owner" + other);
      railed.cut("reader" + device, "owner" + device);
      for (int i = 0; i < 60; ++i) {
        const uint64_t number = asked++;
        Bytes payload(1000);
        std::memcpy(payload.data(), &number, sizeof number);
        railed.link->call(wire::kApplicationFirst, payload, rpc::kNoTimeout, [&, number](Result<rpc::Reply> reply) {
          REQUIRE_MESSAGE(reply, (reply ? "" : reply.error().text()));
          uint64_t back;
          std::memcpy(&back, reply->payload.data(), sizeof back);
          CHECK(back == number);
          ++answered;
        });
        railed.universe.world.run_for(10 * kMillisecond);
      }
    }
    REQUIRE(railed.universe.world.run_until([&] { return answered == asked; }, 30 * kSecond));
    CHECK(served.size() == asked);
    for (auto& [number, times] : served) CHECK(times == 1);
    CHECK(railed.reader->counters().control_moves >= 3);
  }
}

TEST_CASE("rails: with all of them cut, or the peer dead, the transfer ends at its deadline") {
  for (bool crash : {false, true}) {
    CAPTURE(crash);
    Railed railed(5);
    auto transfer = railed.start(1, 0, kSize);
    railed.universe.world.run_for(500 * kMicrosecond);
    if (crash) {
      railed.owner_machine.crash(true);
    } else {
      railed.cut("reader", "owner");
      railed.cut("reader~1", "owner~1");
    }
    REQUIRE(railed.finish(transfer, 20 * kSecond));
    CHECK(transfer->results()[0] != Code::kOk);
  }
}

TEST_CASE("urgent transfers overtake what is queued") {
  Railed railed(9, 1);
  auto bulk = railed.start(1, 0, kSize);
  railed.universe.world.run_for(kMillisecond);
  engine::TransferOptions options;
  options.urgent = true;
  auto urgent = railed.start(1, 0, 4096, std::move(options));
  REQUIRE(railed.universe.world.run_until([&] { return urgent->quiet(); }, 30 * kSecond));
  CHECK(urgent->error().code == Code::kOk);
  CHECK_FALSE(bulk->done());
  REQUIRE(railed.finish(bulk));
  CHECK(railed.here == railed.there);
}

}  // namespace
}  // namespace moontide::sim
