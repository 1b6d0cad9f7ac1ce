#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "io/driver.h"
#include "unit/io_support.h"

namespace moontide::io {
namespace {

TEST_CASE("a waiter returns when a timer, a post of another thread, or the deadline comes") {
  Driver driver;
  bool fired = false;
  {
    auto lock = driver.lock();
    driver.reactor().call_after(2 * kMillisecond, [&] { fired = true; });
  }
  CHECK(driver.wait([&] { return fired; }, driver.reactor().now_ns() + 5 * kSecond));
  bool posted = false;
  std::thread other([&] {
    auto lock = driver.lock();
    driver.reactor().post([&] { posted = true; });
  });
  CHECK(driver.wait([&] { return posted; }, driver.reactor().now_ns() + 5 * kSecond));
  other.join();
  const int64_t begin_ns = driver.reactor().now_ns();
  CHECK_FALSE(driver.wait([] { return false; }, begin_ns + 3 * kMillisecond));
  CHECK(driver.reactor().now_ns() - begin_ns >= 3 * kMillisecond);
  CHECK(driver.wait([] { return true; }, 0));
}

TEST_CASE("a waiter for what is far away sleeps, however long it may poll") {
  constexpr int64_t kPollsForNs = 60 * kSecond, kWaitNs = 200 * kMillisecond;
  Driver driver(kPollsForNs);
  bool fired = false;
  {
    auto lock = driver.lock();
    driver.reactor().call_after(kWaitNs, [&] { fired = true; });
  }
  auto cpu_ns = [] {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * kSecond + used.tv_nsec;
  };
  const int64_t before_ns = cpu_ns();
  CHECK(driver.wait([&] { return fired; }, driver.reactor().now_ns() + 30 * kSecond, {}, [] { return true; }));
  CHECK(cpu_ns() - before_ns < kWaitNs / 8);
}

TEST_CASE("with nobody waiting the background thread runs tasks and timers, also right after a borrow") {
  Driver driver;
  std::atomic<int> ran = 0;
  for (int i = 0; i < 20; ++i) {
    bool mine = false;
    {
      auto lock = driver.lock();
      driver.reactor().post([&] { mine = true; });
    }
    CHECK(driver.wait([&] { return mine; }, driver.reactor().now_ns() + 5 * kSecond));
    {
      auto lock = driver.lock();
      driver.reactor().post([&] {
        ++ran;
        ran.notify_all();
      });
      driver.reactor().call_after(100 * kMicrosecond, [&] {
        ++ran;
        ran.notify_all();
      });
    }
    // A hang here is caught by the runner's time limit.
    for (int now = ran; now < 2 * (i + 1); now = ran) ran.wait(now);
  }
  CHECK(ran == 40);
}

TEST_CASE("a poll runs what a borrower left behind, and does not wait") {
  Driver driver;
  for (int i = 0; i < 50; ++i) {
    bool borrowed = false, left = false;
    {
      auto lock = driver.lock();
      driver.reactor().post([&] {
        borrowed = true;
        driver.reactor().post([&] { left = true; });
      });
    }
    CHECK(driver.wait([&] { return borrowed; }, driver.reactor().now_ns() + 5 * kSecond));
    while (!driver.poll([&] { return left; })) std::this_thread::yield();
    CHECK_FALSE(driver.poll([] { return false; }));
  }
}

TEST_CASE("a turn is near while somebody borrows the reactor, and not while the background thread sleeps") {
  Driver driver;
  bool near = false;
  {
    auto lock = driver.lock();
    driver.reactor().post([&] { near = driver.reactor().turn_is_near(); });
  }
  CHECK(driver.wait([&] { return near; }, driver.reactor().now_ns() + 5 * kSecond));
  for (bool asleep = false; !asleep; std::this_thread::yield()) {
    auto lock = driver.lock();
    asleep = !driver.reactor().turn_is_near();
  }
}

TEST_CASE("four waiters all make progress, whoever runs the reactor") {
  int64_t spin_ns = 0;
  SUBCASE("without spinning") {}
  SUBCASE("spinning") { spin_ns = 20 * kMicrosecond; }
  Driver driver(spin_ns);
  std::array<int, 4> done{};
  std::array<std::thread, 4> threads;
  constexpr int kRounds = 300;
  for (size_t t = 0; t < threads.size(); ++t) {
    threads[t] = std::thread([&, t] {
      for (int round = 1; round <= kRounds; ++round) {
        const auto delay_ns = static_cast<int64_t>((t * 37 + static_cast<size_t>(round) * 13) % 60) * kMicrosecond;
        {
          auto lock = driver.lock();
          driver.reactor().call_after(delay_ns,
                                      [&driver, &done, t] { driver.reactor().post([&done, t] { ++done[t]; }); });
        }
        if (!driver.wait([&] { return done[t] == round; }, driver.reactor().now_ns() + 20 * kSecond)) return;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (int count : done) CHECK(count == kRounds);
}

TEST_CASE("four waiters over one socket pair echo through each other's turns") {
  Driver driver;
  auto network = std::make_unique<SocketNetwork>(driver.reactor());
  struct Echo final : StreamSink {
    MutableBytes want() override { return buffer; }
    void arrived(size_t count) override { stream->write(ByteView(buffer, count)); }
    void closed(Error) override {}
    std::unique_ptr<Stream> stream;
    std::byte buffer[1024];
  } echo;
  struct Counter final : StreamSink {
    MutableBytes want() override { return buffer; }
    void arrived(size_t count) override {
      for (size_t i = 0; i < count; ++i) ++seen[static_cast<size_t>(buffer[i])];
    }
    void closed(Error) override {}
    std::unique_ptr<Stream> stream;
    std::byte buffer[1024];
    std::array<int, 256> seen{};
  } counter;
  std::unique_ptr<Listener> listener;
  {
    auto lock = driver.lock();
    listener = *network->listen("127.0.0.1:0", [&](std::unique_ptr<Stream> stream) {
      echo.stream = std::move(stream);
      echo.stream->start(echo);
    });
    network->connect(listener->address(), kSecond, [&](Result<std::unique_ptr<Stream>> stream) {
      counter.stream = std::move(*stream);
      counter.stream->start(counter);
    });
  }
  REQUIRE(driver.wait([&] { return echo.stream && counter.stream; }, driver.reactor().now_ns() + 5 * kSecond));
  std::array<std::thread, 4> threads;
  std::atomic<int> finished = 0;
  for (size_t t = 0; t < threads.size(); ++t) {
    threads[t] = std::thread([&, t] {
      const std::byte mark{static_cast<unsigned char>(t)};
      for (int round = 1; round <= 200; ++round) {
        {
          auto lock = driver.lock();
          counter.stream->write(ByteView(&mark, 1));
        }
        if (!driver.wait([&] { return counter.seen[t] >= round; }, driver.reactor().now_ns() + 20 * kSecond)) return;
      }
      ++finished;
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(finished == 4);
  auto lock = driver.lock();
  echo.stream.reset();
  counter.stream.reset();
  listener.reset();
  network.reset();
}

TEST_CASE("a wait can be interrupted, and ends when the driver stops") {
  Driver driver;
  int asked = 0;
  CHECK_FALSE(driver.wait([] { return false; }, INT64_MAX, [&] { return ++asked == 2; }));
  CHECK(asked == 2);
  std::atomic<int> ended = 0;
  std::atomic<int> entered = 0;
  std::thread one([&] {
    driver.wait([&] { return ++entered, false; }, INT64_MAX);
    ++ended;
  });
  std::thread two([&] {
    driver.wait([&] { return ++entered, false; }, INT64_MAX);
    ++ended;
  });
  while (entered < 2) std::this_thread::yield();
  driver.stop();
  one.join();
  two.join();
  CHECK(ended == 2);
  CHECK_FALSE(driver.wait([] { return false; }, INT64_MAX));
}

TEST_CASE("a forked child knows that it is one, and its end does not disturb the parent") {
  auto driver = std::make_unique<Driver>();
  auto network = std::make_unique<SocketNetwork>(driver->reactor());
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Stream> server;
  {
    auto lock = driver->lock();
    listener = *network->listen("127.0.0.1:0", [&](std::unique_ptr<Stream> stream) { server = std::move(stream); });
  }
  CHECK_FALSE(driver->forked());
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool good = driver->forked() && !driver->wait([] { return false; }, INT64_MAX);
    listener.reset();
    network.reset();
    driver.reset();
    _exit(good ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  std::unique_ptr<Stream> client;
  {
    auto lock = driver->lock();
    network->connect(listener->address(), kSecond,
                     [&](Result<std::unique_ptr<Stream>> stream) { client = std::move(*stream); });
  }
  CHECK(driver->wait([&] { return client && server; }, driver->reactor().now_ns() + 5 * kSecond));
  auto lock = driver->lock();
  client.reset();
  server.reset();
  listener.reset();
  network.reset();
}

}  // namespace
}  // namespace moontide::io
