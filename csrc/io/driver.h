// Who runs the reactor in a real process. One mutex guards a reactor and everything that lives on it. A background
// thread runs it while nobody waits; a thread that waits for something borrows it meanwhile, so that no hop to another
// sleeping thread lies between an event and the caller that wants it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "io/epoll_reactor.h"

namespace moontide::io {

class Driver {
 public:
  // `spin_ns`: how long a waiter polls before it sleeps in the kernel.
  explicit Driver(int64_t spin_ns = 20 * kMicrosecond);
  // stop()s.
  ~Driver();

  // Only under the lock.
  EpollReactor& reactor() { return reactor_; }

  // Any thread. Hold it for submitting and for looking at results, never while blocking.
  [[nodiscard]] std::unique_lock<std::mutex> lock();

  // Borrows the reactor until `ready` (called under the lock) is true or the deadline passes. Any thread but the
  // background one; several may wait at a time. `deadline_ns` is on the reactor's clock, INT64_MAX for none.
  // `ready` may be called by any thread that runs the reactor; what it looks at changes in turns of the reactor, or
  // its change is followed by a post(). Returns what `ready` said last. `interrupted` is asked (without the lock) every
  // 50 ms: true ends the wait early. While `far` (under the lock, asked before each turn) says that much is to be done
  // elsewhere before that, the waiter sleeps between events instead of polling.
  bool wait(const std::function<bool()>& ready, int64_t deadline_ns, const std::function<bool()>& interrupted = {},
            const std::function<bool()>& far = {});

  // What `ready` says after a turn that does not wait; the turn is left out while the background thread watches.
  bool poll(const std::function<bool()>& ready);

  // Ends the background thread and every wait(); the reactor runs no more after this returns. In a forked child nothing
  // is joined and `forked()` is true: there the lock may be held for ever by a thread that does not exist, so ask
  // first.
  void stop();
  bool forked() const;

 private:
  struct Waiter {
    explicit Waiter(const std::function<bool()>& condition) : ready(&condition) {}
    const std::function<bool()>* ready;
    std::condition_variable wake;
    bool done = false;  // somebody else's turn made it ready
  };
  void run();
  void park(uint64_t& seen);
  void sleep_until(int64_t deadline_ns);
  void kick();
  void enter(Waiter& self);
  void leave(Waiter& self);
  bool drive(std::unique_lock<std::mutex>& lock, int64_t limit_ns, int64_t spin_until_ns);
  void wake_ready(const Waiter* driver);

  EpollReactor reactor_;
  std::mutex mutex_;
  std::vector<Waiter*> waiters_;  // in order of arrival
  Waiter* leader_ = nullptr;      // the one that runs the reactor; the others sleep
  bool looked_ = true;            // the last turn of a borrower asked about descriptors
  std::condition_variable left_;  // the last waiter has gone

  Fd kick_;  // ends the background thread's sleep
  std::mutex park_mutex_;
  std::condition_variable park_;

  int64_t spin_ns_;
  std::unique_ptr<const bool, void (*)(const bool*)> parent_;  // true, and false in a forked child
  std::atomic<int> borrowers_{0};
  std::atomic<uint64_t> borrows_{0};
  std::atomic<bool> in_poll_{false};
  std::atomic<bool> parked_long_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace moontide::io
