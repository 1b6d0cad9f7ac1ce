// Holds under virtual time: kept while renewed, over when not, and a release that says which.
#include <doctest/doctest.h>

#include "engine/holds.h"
#include "io/sim.h"

namespace moontide::engine {
namespace {

Bytes id(std::string_view text) { return to_bytes(as_bytes(text)); }

struct Scene {
  io::SimWorld world{1};
  io::SimProcess& process = world.start_process("holder");
  Holds holds{process, 100};
};

TEST_CASE("holds: claimed, renewed, released") {
  Scene scene;
  REQUIRE(scene.holds.add(id("a"), id("payload"), kSecond));
  auto claimed = scene.holds.claim(id("a"), 1);
  REQUIRE(claimed);
  CHECK(as_text(*claimed->payload) == "payload");
  for (int turn = 0; turn < 10; ++turn) {
    scene.world.run_for(500 * kMillisecond);
    scene.holds.renew(id("a"), 1);
  }
  CHECK(scene.holds.drain().empty());
  CHECK(scene.holds.release(id("a"), 1));
  auto ended = scene.holds.drain();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].second == HoldEnd::kReleased);
  CHECK(scene.holds.release(id("a"), 1).error().code == Code::kExpired);
}

TEST_CASE("holds: a hold that nobody renews is over, and its release says so") {
  Scene scene;
  REQUIRE(scene.holds.add(id("a"), {}, kSecond));
  REQUIRE(scene.holds.add(id("b"), {}, 10 * kSecond));
  REQUIRE(scene.holds.claim(id("a"), 1));
  scene.world.run_for(2 * kSecond);
  auto ended = scene.holds.drain();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].second == HoldEnd::kExpired);
  CHECK(scene.holds.release(id("a"), 1).error().code == Code::kExpired);
  CHECK(scene.holds.claim(id("a"), 1).error().code == Code::kNotFound);
  CHECK(scene.holds.size() == 1);
}

TEST_CASE("holds: a holder that was stopped past the deadline does not confirm, though its timer has not run (law 2)") {
  Scene scene;
  REQUIRE(scene.holds.add(id("a"), {}, kSecond));
  REQUIRE(scene.holds.claim(id("a"), 1));
  scene.process.pause();
  scene.world.run_for(3 * kSecond);
  // the process wakes and looks at the release before it looks at its timers
  CHECK(scene.holds.release(id("a"), 1).error().code == Code::kExpired);
  scene.process.resume();
  scene.world.run_for(kSecond);
  auto ended = scene.holds.drain();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].second == HoldEnd::kExpired);
}

TEST_CASE("holds: one claimer, whose death ends them") {
  Scene scene;
  REQUIRE(scene.holds.add(id("a"), {}, kSecond));
  REQUIRE(scene.holds.add(id("b"), {}, kSecond));
  REQUIRE(scene.holds.claim(id("a"), 1));
  CHECK(scene.holds.claim(id("a"), 2).error().code == Code::kDenied);
  CHECK(scene.holds.claim(id("a"), 1));  // asked again after a lost answer
  CHECK(scene.holds.release(id("a"), 2).error().code == Code::kDenied);
  CHECK(scene.holds.release(id("b"), 2).error().code == Code::kDenied);
  scene.holds.link_closed(1);
  auto ended = scene.holds.drain();
  REQUIRE(ended.size() == 1);
  CHECK(ended[0].second == HoldEnd::kPeerLost);
  CHECK(scene.holds.end(id("b")));
  CHECK(scene.holds.end(id("b")).error().code == Code::kNotFound);
  CHECK(scene.holds.drain()[0].second == HoldEnd::kEnded);
}

TEST_CASE("holds: bounded, each id once, and sensible (law 10)") {
  Scene scene;
  CHECK(scene.holds.add({}, {}, kSecond).error().code == Code::kInvalid);
  CHECK(scene.holds.add(Bytes(257), {}, kSecond).error().code == Code::kInvalid);
  CHECK(scene.holds.add(id("a"), {}, 0).error().code == Code::kInvalid);
  REQUIRE(scene.holds.add(id("a"), {}, kSecond));
  CHECK(scene.holds.add(id("a"), {}, kSecond).error().code == Code::kAlreadyExists);
  for (int i = 1; i < 100; ++i) REQUIRE(scene.holds.add(id(std::to_string(i)), {}, kSecond));
  CHECK(scene.holds.add(id("more"), {}, kSecond).error().code == Code::kNoSpace);
  scene.world.run_for(2 * kSecond);
  CHECK(scene.holds.add(id("more"), {}, kSecond).error().code == Code::kNoSpace);  // 100 ended ones wait to be drained
  CHECK(scene.holds.drain().size() == 100);
  CHECK(scene.holds.add(id("more"), {}, kSecond));
}

TEST_CASE("holds: each ends at its own deadline, in the order of deadlines, however many there are") {
  io::SimWorld world{1};
  io::SimProcess& process = world.start_process("holder");
  constexpr int64_t kMany = 20'000;
  Holds holds{process, kMany};
  // by id in the other order
  auto name = [](int64_t i) { return id(std::to_string(2 * kMany - i)); };
  for (int64_t i = 0; i < kMany; ++i) REQUIRE(holds.add(name(i), {}, kSecond + i * kMillisecond));
  world.run_for(900 * kMillisecond);
  for (int64_t i = 0; i < kMany; i += 2) REQUIRE(holds.claim(name(i), 7));  // their time begins anew
  for (int64_t i = 0; i < kMany; i += 2) holds.renew(name(i), 7);
  holds.renew(name(1), 7);  // not its claimant
  world.run_for(199 * kMillisecond);
  auto ended = holds.drain();
  CHECK(holds.size() == kMany - 50);  // 1 to 99, without the renewed ones
  REQUIRE(ended.size() == 50);
  for (int64_t i = 0; i < 50; ++i) {
    CHECK(ended[static_cast<size_t>(i)].first == name(2 * i + 1));
    CHECK(ended[static_cast<size_t>(i)].second == HoldEnd::kExpired);
  }
  for (int64_t i = 0; i < kMany; i += 2) REQUIRE(holds.release(name(i), 7));
  CHECK(holds.drain().size() == kMany / 2);
  world.run_for(kMany * kMillisecond);
  CHECK(holds.size() == 0);
  CHECK(holds.drain().size() == kMany / 2 - 50);
}

TEST_CASE("holds: a short one that comes later does not wait for the longer ones before it") {
  Scene scene;
  REQUIRE(scene.holds.add(id("long"), {}, 100 * kSecond));
  REQUIRE(scene.holds.add(id("for ever"), {}, INT64_MAX));
  scene.world.run_for(kSecond);
  REQUIRE(scene.holds.add(id("short"), {}, kSecond));
  scene.world.run_for(1100 * kMillisecond);
  CHECK(scene.holds.size() == 2);
}

}  // namespace
}  // namespace moontide::engine
