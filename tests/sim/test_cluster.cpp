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
  request.replicas = 1 + random.below(3);
  return request;
}

// What the client was answered, in the order of the requests' numbers.
std::vector<Outcome> ask_all(Cluster& cluster, size_t client, Kind kind, uint64_t objects) {
  std::vector<Outcome> outcomes;
  for (uint64_t number = 1; number <= objects; ++number) {
    Request request{.number = number, .kind = kind, .key = "safe" + std::to_string(number)};
    request.value = number;
    request.length = 2000;
    request.replicas = 2;
    cluster.client(client)->start(std::move(request));
    REQUIRE(cluster.world().run_until([&] { return cluster.client(client)->pending() == 0; }, 60 * kSecond));
    for (Outcome& outcome : cluster.take_outcomes()) outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

TEST_CASE("sim: objects with two replicas outlive the loss of a node") {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(seed);
    constexpr uint64_t kObjects = 30;
    Cluster cluster({.seed = seed, .paths = static_cast<Paths>(1 + seed % 3), .nodes = 3});
    REQUIRE(cluster.world().run_until([&] { return cluster.assembled(); }, 60 * kSecond));
    for (const Outcome& outcome : ask_all(cluster, 0, Kind::kPut, kObjects)) CHECK(outcome.code == Code::kOk);
    REQUIRE(cluster.crash("node" + std::to_string(seed % 3), /*dark=*/seed % 2 == 0));
    cluster.world().run_for(40 * kSecond);  // it is given up
    for (const Outcome& outcome : ask_all(cluster, 1, Kind::kGet, kObjects)) {
      CHECK(outcome.code == Code::kOk);
      CHECK(outcome.value == outcome.number);
    }
    const auto sound = cluster.audit();
    CHECK_MESSAGE(sound, (sound ? "" : sound.error().message));
  }
}

TEST_CASE("sim: pools under random work and faults keep their invariants and come to rest") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    Cluster cluster({.seed = seed, .paths = static_cast<Paths>(1 + seed % 3), .nodes = 3, .node_bytes = 256u << 10});
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
  CHECK(value_number(ByteView(bytes).first(999)) == 7);  // of its first bytes: the checker compares the length
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
