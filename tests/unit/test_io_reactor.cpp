#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "unit/io_support.h"

namespace moontide::io {
namespace {

using test::run_until;

struct CountingHandler final : FdHandler {
  void ready(uint32_t events) override {
    last = events;
    ++calls;
    if (on_ready) on_ready();
  }
  int calls = 0;
  uint32_t last = 0;
  std::function<void()> on_ready;
};

void raise(const Fd& fd) {
  const uint64_t one = 1;
  REQUIRE(::write(fd.get(), &one, sizeof one) == sizeof one);
}

TEST_CASE("timers run in order of deadline, then of creation, and cancelled ones never") {
  TimerQueue timers;
  std::vector<int> ran;
  const TimerId late = timers.add(30, [&] { ran.push_back(30); });
  timers.add(10, [&] { ran.push_back(1); });
  timers.add(10, [&] { ran.push_back(2); });
  const TimerId dropped = timers.add(5, [&] { ran.push_back(5); });
  CHECK(timers.cancel(dropped));
  CHECK_FALSE(timers.cancel(dropped));
  CHECK_FALSE(timers.cancel(0));
  CHECK(timers.next_deadline_ns() == 10);
  CHECK_FALSE(static_cast<bool>(timers.take_due(9)));
  while (Task task = timers.take_due(10)) task();
  CHECK(ran == std::vector<int>{1, 2});
  CHECK(timers.cancel(late));
  CHECK(timers.size() == 0);
  CHECK_FALSE(timers.next_deadline_ns());
}

TEST_CASE("a timer id does not cancel the timer that took its slot") {
  TimerQueue timers;
  bool ran = false;
  const TimerId first = timers.add(1, [] {});
  timers.cancel(first);
  timers.add(1, [&] { ran = true; });
  CHECK_FALSE(timers.cancel(first));
  timers.take_due(1)();
  CHECK(ran);
}

TEST_CASE("10000 timers, half of them cancelled") {
  EpollReactor reactor;
  size_t ran = 0;
  std::vector<TimerId> ids;
  for (int i = 0; i < 10'000; ++i) {
    ids.push_back(reactor.call_after(static_cast<int64_t>(reactor.random().below(20 * kMillisecond)), [&] { ++ran; }));
  }
  for (size_t i = 0; i < ids.size(); i += 2) reactor.cancel(ids[i]);
  CHECK(run_until(reactor, [&] { return ran >= 5000; }));
  bool later = false;
  reactor.call_after(30 * kMillisecond, [&] { later = true; });
  CHECK(run_until(reactor, [&] { return later; }));
  CHECK(ran == 5000);
}

TEST_CASE("posted tasks run in order, in a later turn, and those they post in the next one") {
  EpollReactor reactor;
  std::vector<int> ran;
  reactor.post([&] {
    ran.push_back(1);
    reactor.post([&] { ran.push_back(3); });
  });
  reactor.post([&] { ran.push_back(2); });
  CHECK(ran.empty());
  EpollReactor::Harvest harvest;
  CHECK(reactor.prepare_wait(INT64_MAX) == INT64_MIN);
  CHECK(reactor.dispatch(harvest));
  CHECK(ran == std::vector<int>{1, 2});
  CHECK(reactor.dispatch(harvest));
  CHECK(ran == std::vector<int>{1, 2, 3});
  CHECK_FALSE(reactor.dispatch(harvest));
}

TEST_CASE("a timer may stop and restart itself from its task") {
  EpollReactor reactor;
  Timer timer(reactor);
  int rounds = 0;
  std::function<void()> round = [&] {
    CHECK_FALSE(timer.running());
    if (++rounds < 3) timer.start(0, [&] { round(); });
  };
  timer.start(kMicrosecond, [&] { round(); });
  CHECK(run_until(reactor, [&] { return rounds == 3; }));
}

TEST_CASE("events of a registration that ended are dropped, also when its slot and descriptor are used again") {
  EpollReactor reactor;
  Fd first(eventfd(0, EFD_NONBLOCK));
  CountingHandler old_handler;
  CountingHandler new_handler;
  const WatchId old_watch = *reactor.watch(first.get(), EPOLLIN, old_handler);
  raise(first);
  EpollReactor::Harvest harvest;
  reactor.wait(INT64_MIN, harvest);
  REQUIRE(harvest.count == 1);
  reactor.unwatch(old_watch);
  first.reset();
  Fd second(eventfd(0, EFD_NONBLOCK));
  REQUIRE(reactor.watch(second.get(), EPOLLIN, new_handler));
  reactor.dispatch(harvest);
  CHECK(old_handler.calls == 0);
  CHECK(new_handler.calls == 0);
  raise(second);
  CHECK(run_until(reactor, [&] { return new_handler.calls == 1; }));
  CHECK(old_handler.calls == 0);
}

TEST_CASE("an event harvested by two threads is dispatched with what is still asked for") {
  EpollReactor reactor;
  Fd fd(eventfd(0, EFD_NONBLOCK));
  CountingHandler handler;
  const WatchId watch = *reactor.watch(fd.get(), EPOLLIN, handler);
  raise(fd);
  EpollReactor::Harvest one;
  EpollReactor::Harvest two;
  reactor.wait(INT64_MIN, one);
  reactor.wait(INT64_MIN, two);
  CHECK(one.count == 1);
  CHECK(two.count == 1);
  reactor.dispatch(one);
  reactor.modify(watch, 0);
  reactor.dispatch(two);
  CHECK(handler.calls == 1);
  reactor.unwatch(watch);
}

TEST_CASE("a handler may end its registration from inside") {
  EpollReactor reactor;
  Fd fd(eventfd(0, EFD_NONBLOCK));
  auto handler = std::make_unique<CountingHandler>();
  const WatchId watch = *reactor.watch(fd.get(), EPOLLIN, *handler);
  bool called = false;
  handler->on_ready = [&] {
    called = true;
    reactor.unwatch(watch);
    handler.reset();
  };
  raise(fd);
  CHECK(run_until(reactor, [&] { return called; }));
  CHECK(handler == nullptr);
}

TEST_CASE("wake() ends a wait of another thread") {
  EpollReactor reactor;
  const int64_t begin_ns = reactor.now_ns();
  std::thread waker([&] { reactor.wake(); });
  EpollReactor::Harvest harvest;
  reactor.wait(begin_ns + 5 * kSecond, harvest);
  waker.join();
  CHECK(reactor.now_ns() - begin_ns < 4 * kSecond);
  CHECK(harvest.count == 1);
  reactor.dispatch(harvest);
  reactor.wait(INT64_MIN, harvest);
  CHECK(harvest.count == 0);
}

}  // namespace
}  // namespace moontide::io
