// The reactor of a real process: epoll, CLOCK_BOOTTIME, the kernel's randomness.
//
// Thread: everything belongs to the holder of the driver's lock, except wait() and wake(). Two threads may be in wait()
// at a time; an event that both harvest is dispatched twice, which level-triggered handlers must bear (the second one
// finds nothing to read). Events harvested for a registration that ended meanwhile are dropped by its generation.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <vector>

#include "base/status.h"
#include "io/network.h"
#include "io/reactor.h"
#include "io/timer_queue.h"

namespace moontide::io {

// Told about readiness of a descriptor. May end its registration, or destroy itself, inside ready().
class FdHandler {
 public:
  virtual void ready(uint32_t events) = 0;

 protected:
  ~FdHandler() = default;
};

// Something that waits a little, so that what belongs to one event goes out together.
class PutOff {
 public:
  virtual void now() = 0;

 protected:
  ~PutOff() = default;
};

// 0 is never a live registration.
using WatchId = uint64_t;

class EpollReactor final : public Reactor {
 public:
  struct Harvest {
    static constexpr int kMax = 64;
    epoll_event events[kMax];
    int count = 0;
  };

  EpollReactor();
  ~EpollReactor() override;
  EpollReactor(const EpollReactor&) = delete;
  EpollReactor& operator=(const EpollReactor&) = delete;

  int64_t now_ns() const override { return clock_.now_ns(); }
  void post(Task task) override;
  bool turn_is_near() const override { return sleep_until_ns_ == INT64_MIN; }
  TimerId call_after(int64_t delay_ns, Task task) override;
  void cancel(TimerId timer) override { timers_.cancel(timer); }
  Random& random() override { return random_; }

  // Level-triggered; `events` of epoll, EPOLLERR and EPOLLHUP are always reported. The descriptor and the handler stay
  // valid until unwatch(), which comes before the descriptor is closed.
  Result<WatchId> watch(int fd, uint32_t events, FdHandler& handler);
  void modify(WatchId watch, uint32_t events);
  void unwatch(WatchId watch);

  // True inside a turn, and between gather() and the end of it: then put_off() is worth its while.
  bool gathers() const { return dispatching_ || gathering_; }
  // Calls `what.now()` once: after the event (or the timers, or the posted tasks) that this turn is at, at the next
  // turn or by let_go(). It stays valid until then, or until forget(). Nobody is woken for it.
  void put_off(PutOff& what) { put_off_.push_back(&what); }
  void forget(PutOff& what) { std::ranges::replace(put_off_, &what, nullptr); }
  // Outside of turns: whether what is done now may wait for let_go().
  void gather(bool on) { gathering_ = on; }
  void let_go();

  // --- for whoever drives it ---

  // Under the lock, before wait(): the time on this clock to wait until, the earliest of `limit_ns`, the next timer and
  // (with tasks posted) now. From then on an earlier timer or a post made outside dispatch() wakes the waiting thread.
  int64_t prepare_wait(int64_t limit_ns);

  // Without the lock: returns at an event, at `deadline_ns` (INT64_MIN: at once, INT64_MAX: never), at wake().
  void wait(int64_t deadline_ns, Harvest& into);

  // Under the lock: runs what was harvested, due timers and posted tasks, a bounded number of each. True when anything
  // ran. What is left is due at once by prepare_wait().
  bool dispatch(Harvest& harvest);

  // Any thread: ends the wait() in progress, or the next one.
  void wake();

  // Readable while events are ready, to be waited for together with other descriptors.
  int epoll_fd() const { return epoll_.get(); }

 private:
  struct Watched {
    FdHandler* handler = nullptr;
    int fd = -1;
    uint32_t events = 0;
    uint32_t generation = 1;
  };
  Watched* find(WatchId watch);
  void woken_by(int64_t due_ns);
  bool run_timers();
  bool run_posted();

  BoottimeClock clock_;
  SystemRandom random_;
  Fd epoll_;
  Fd wake_;
  int owner_pid_;
  std::vector<Watched> watched_;
  std::vector<uint32_t> free_;
  TimerQueue timers_;
  std::deque<Task> posted_;
  std::vector<PutOff*> put_off_;  // null: forgotten
  bool dispatching_ = false;
  bool gathering_ = false;
  int64_t sleep_until_ns_ = INT64_MIN;  // of the thread in wait(); INT64_MIN when nobody needs to be woken
  std::atomic<bool> wake_pending_{false};
  std::atomic<bool> coarse_wait_{false};  // the kernel lacks epoll_pwait2
};

}  // namespace moontide::io
