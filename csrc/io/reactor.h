// The injected environment of every component: time, timers, later turns, randomness.
// A component runs on one reactor and never starts a thread of its own, so that the same code is driven by epoll
// in a process and by virtual time in the simulation.
//
// Thread: all methods belong to the thread that drives the reactor at the moment (see io/driver.h for who that is).
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/random.h"

namespace moontide::io {

using Task = std::move_only_function<void()>;

// 0 is never a live timer.
using TimerId = uint64_t;

class Reactor : public Clock {
 public:
  // Runs `task` in a later turn, in the order of posting, never inside this call.
  virtual void post(Task task) = 0;

  // True when a turn comes without a wake-up, so that a post() costs next to nothing: somebody runs the reactor right
  // now, or borrows it again and again. False where a post() has to wake a sleeper.
  virtual bool turn_is_near() const { return false; }

  // Runs `task` once, `delay_ns` from now or a little later; negative delays count as 0.
  virtual TimerId call_after(int64_t delay_ns, Task task) = 0;

  // The task will not run after this returns. Ids of finished timers and 0 are ignored.
  virtual void cancel(TimerId timer) = 0;

  virtual Random& random() = 0;
};

// Cancels its timer when it goes out of scope or is set again; the owner outlives no task of its own by it.
class Timer {
 public:
  explicit Timer(Reactor& reactor) : reactor_(reactor) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() { stop(); }

  void start(int64_t delay_ns, Task task) {
    stop();
    id_ = reactor_.call_after(delay_ns, [this, task = std::move(task)]() mutable {
      id_ = 0;
      Task run = std::move(task);  // the task may start this timer again
      run();
    });
  }
  void stop() {
    if (id_ != 0) reactor_.cancel(std::exchange(id_, 0));
  }
  bool running() const { return id_ != 0; }

 private:
  Reactor& reactor_;
  TimerId id_ = 0;
};

}  // namespace moontide::io
