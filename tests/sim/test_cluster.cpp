// Simulated pools under the sanitizers: random work and faults, driven from here. (moontide.sim does more of it, and
// checks the answers, too.)
#include <doctest/doctest.h>

#include <algorithm>

#include "sim/cluster.h"
#include "sim/values.h"

namespace moontide::sim {
namespace {

void random_fault(Cluster& cluster, SeededRandom& random) {
  const auto& hosts = cluster.hosts();
  const std::string& host = hosts[random.below(hosts.size())];
  const std::string& other = hosts[random.below(hosts.size())];
  io::SimProcess& process = **cluster.process(host);
  const auto span_ns = static_cast<int64_t>(random.below(5 * kSecond));
  switch (random.below(4)) {
    case 0:
      REQUIRE(cluster.crash(host, random.below(3) == 0));
      cluster.world().after(span_ns, [&cluster, host] { [[maybe_unused]] auto again = cluster.restart(host); });
      return;
    case 1:
      process.pause();
      cluster.world().after(span_ns, [&process] { process.resume(); });
      return;
    case 2:
      cluster.universe().fabric.cut(host, other);
      cluster.world().after(span_ns, [&cluster, host, other] { cluster.universe().fabric.heal(host, other); });
      return;
    default:
      process.step_clock(span_ns);
  }
}

Request random_request(SeededRandom& random, uint64_t number) {
  Request request;
  request.number = number;
  request.kind = static_cast<Kind>(random.below(6));
  request.key = "key" + (request.kind == Kind::kList ? "" : std::to_string(random.below(6)));
  request.value = number;
  request.length = kValueBytesMin + random.below(random.below(2) == 0 ? 100 : 40'000);
  request.in_memory = random.below(3) != 0;
  return request;
}

TEST_CASE("sim: pools under random work and faults keep their invariants and come to rest") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Cluster cluster({.seed = seed, .paths = static_cast<Paths>(1 + seed % 3), .node_bytes = 256u << 10});
    SeededRandom random(seed * 77);
    for (uint64_t number = 1; number <= 150; ++number) {
      cluster.world().run_for(
          static_cast<int64_t>(random.below(random.below(20) == 0 ? 3 * kSecond : 5 * kMillisecond)));
      if (random.below(12) == 0) random_fault(cluster, random);
      if (ClientMachine* client = cluster.client(random.below(3))) client->start(random_request(random, number));
      if (number % 16 != 0) continue;
      const auto sound = cluster.audit();
      CHECK_MESSAGE(sound, (sound ? "" : sound.error().message));
    }
    cluster.world().run_for(6 * kSecond);  // longer than any fault
    REQUIRE(cluster.world().run_until([&] { return cluster.assembled(); }, 120 * kSecond));
    cluster.world().run_for(120 * kSecond);
    const auto rest = cluster.audit_at_rest();
    CHECK_MESSAGE(rest, (rest ? "" : rest.error().message + "\n" + cluster.describe()));
    CHECK(cluster.take_outcomes().size() > 50);
  }
}

TEST_CASE("sim: contents tell whose they are, and whether all of them are there") {
  Bytes bytes(1000);
  fill_value(bytes, 7);
  CHECK(value_number(bytes) == 7);
  CHECK(value_number(ByteView(bytes).first(999)) == 0);
  bytes[500] ^= std::byte{1};
  CHECK(value_number(bytes) == 0);
  CHECK(value_number({}) == 0);
}

TEST_CASE("sim: a byte that lands in a buffer which nobody uses is found") {
  auto slots = Slots::create();
  REQUIRE(slots);
  const auto slot = slots->take();
  REQUIRE(slot);
  slots->bytes(*slot)[17] = std::byte{0};
  CHECK(slots->untouched());
  slots->give_back(*slot);
  CHECK(slots->untouched());
  slots->bytes(*slot)[17] = std::byte{0};
  CHECK_FALSE(slots->untouched());
}

}  // namespace
}  // namespace moontide::sim
