#include "io/driver.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace moontide::io {
namespace {

constexpr int64_t kHourNs = 3600 * kSecond;
constexpr int64_t kInterruptedEveryNs = 50 * kMillisecond;
// The background thread takes the reactor back when nobody borrowed it for this long; so many rounds with somebody
// still waiting, and it sleeps until told.
constexpr auto kParkTime = std::chrono::microseconds(200);
constexpr int kParkRounds = 8;
constexpr int64_t kPauseMostNs = kMicrosecond;
constexpr int64_t kYieldFromNs = kPauseMostNs / 4;

// A flag that the kernel clears in a forked child: asking costs a load, getpid() a system call.
std::unique_ptr<const bool, void (*)(const bool*)> make_parent_flag() {
  constexpr size_t kPage = 4096;
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MT_CHECK(page != MAP_FAILED, std::strerror(errno));
  MT_CHECK(madvise(page, kPage, MADV_WIPEONFORK) == 0, std::strerror(errno));
  *static_cast<bool*>(page) = true;
  return {static_cast<const bool*>(page), [](const bool* flag) { munmap(const_cast<bool*>(flag), kPage); }};
}

void spin_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Between two looks of a waiter: the longer it has looked in vain, the longer it leaves the core to the hardware
// thread beside it, which may be the one that copies. Costs at most 1/32 of the wait.
int64_t pause_ns(int64_t looked_for_ns) { return std::min<int64_t>(looked_for_ns / 32, kPauseMostNs); }

}  // namespace

Driver::Driver(int64_t spin_ns)
    : kick_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), spin_ns_(spin_ns), parent_(make_parent_flag()) {
  MT_CHECK(kick_, std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

Driver::~Driver() { stop(); }

bool Driver::forked() const { return !*parent_; }

std::unique_lock<std::mutex> Driver::lock() { return std::unique_lock(mutex_); }

void Driver::stop() {
  if (forked()) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Waiter* waiter : waiters_) waiter->wake.notify_one();
  }
  kick();
  reactor_.wake();
  {
    std::lock_guard lock(park_mutex_);
    park_.notify_all();
  }
  thread_.join();
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this] { return waiters_.empty(); });
}

void Driver::kick() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(kick_.get(), &one, sizeof one);
}

// --- the background thread ---

void Driver::run() {
  EpollReactor::Harvest harvest;
  uint64_t seen = borrows_.load();
  while (!stopping_.load()) {
    if (borrowers_.load() != 0 || borrows_.load() != seen) {
      park(seen);
      continue;
    }
    int64_t deadline_ns;
    {
      std::lock_guard lock(mutex_);
      deadline_ns = reactor_.prepare_wait(INT64_MAX);
    }
    // Either a borrower sees this and kicks, or it is seen here below.
    in_poll_.store(true);
    if (borrows_.load() == seen && !stopping_.load()) sleep_until(deadline_ns);
    in_poll_.store(false);
    if (borrowers_.load() != 0 || stopping_.load()) continue;
    reactor_.wait(INT64_MIN, harvest);
    std::lock_guard lock(mutex_);
    if (stopping_.load()) return;
    reactor_.dispatch(harvest);
    wake_ready(nullptr);
    // A borrower that came meanwhile sleeps by what it saw before this turn.
    if (leader_ != nullptr) reactor_.wake();
  }
}

// Waits for the reactor's events beside the kick, so that a kick cannot be taken by a borrower.
void Driver::sleep_until(int64_t deadline_ns) {
  pollfd fds[2] = {{reactor_.epoll_fd(), POLLIN, 0}, {kick_.get(), POLLIN, 0}};
  timespec timeout{};
  if (deadline_ns != INT64_MIN && deadline_ns != INT64_MAX) {
    const int64_t left = std::max<int64_t>(deadline_ns - reactor_.now_ns(), 0);
    timeout.tv_sec = left / kSecond;
    timeout.tv_nsec = left % kSecond;
  }
  ppoll(fds, 2, deadline_ns == INT64_MAX ? nullptr : &timeout, nullptr);
  if (fds[1].revents != 0) {
    uint64_t ignored;
    [[maybe_unused]] const ssize_t got = ::read(kick_.get(), &ignored, sizeof ignored);
  }
}

// Returns when there was no borrow for a while. The reactor is the borrowers' meanwhile; what they leave undone waits
// for at most one park time.
void Driver::park(uint64_t& seen) {
  std::unique_lock lock(park_mutex_);
  for (int round = 0; !stopping_.load(); ++round) {
    seen = borrows_.load();
    if (borrowers_.load() != 0 && round >= kParkRounds) {
      parked_long_.store(true);
      park_.wait(lock, [this] { return borrowers_.load() == 0 || stopping_.load(); });
      parked_long_.store(false);
      round = 0;
    }
    park_.wait_for(lock, kParkTime);
    if (borrowers_.load() == 0 && borrows_.load() == seen) return;
  }
}

// --- borrowers ---

bool Driver::wait(const std::function<bool()>& ready, int64_t deadline_ns, const std::function<bool()>& interrupted,
                  const std::function<bool()>& far) {
  std::unique_lock lock(mutex_);
  if (ready()) return true;
  if (stopping_.load() || forked()) return false;
  Waiter self(ready);
  enter(self);
  int64_t ask_at_ns = interrupted ? reactor_.now_ns() + kInterruptedEveryNs : INT64_MAX;
  int64_t spin_until_ns = spin_ns_ > 0 ? reactor_.now_ns() + spin_ns_ : INT64_MIN;
  while (true) {
    const int64_t limit_ns = std::min(deadline_ns, ask_at_ns);
    if (leader_ == nullptr) leader_ = &self;
    if (leader_ == &self) {
      const bool sleeps = far && far();
      const bool ran = drive(lock, limit_ns, sleeps ? INT64_MIN : spin_until_ns);
      if ((ran || sleeps) && spin_ns_ > 0) spin_until_ns = reactor_.now_ns() + spin_ns_;
      wake_ready(&self);
    } else if (limit_ns == INT64_MAX) {
      self.wake.wait(lock);
    } else {
      self.wake.wait_for(lock, std::chrono::nanoseconds(std::clamp<int64_t>(limit_ns - reactor_.now_ns(), 0, kHourNs)));
    }
    if (self.done || ready()) {
      self.done = true;
      break;
    }
    const int64_t now_ns = deadline_ns == INT64_MAX && !interrupted ? 0 : reactor_.now_ns();
    if (stopping_.load() || now_ns >= deadline_ns) break;
    if (now_ns >= ask_at_ns && interrupted) {
      lock.unlock();
      const bool stop = interrupted();
      lock.lock();
      ask_at_ns = reactor_.now_ns() + kInterruptedEveryNs;
      if (stop) {
        self.done = self.done || ready();
        break;
      }
    }
  }
  leave(self);
  return self.done;
}

bool Driver::poll(const std::function<bool()>& ready) {
  {
    std::lock_guard lock(mutex_);
    if (ready()) return true;
    if (in_poll_.load()) return false;
  }
  return wait(ready, INT64_MIN);
}

void Driver::enter(Waiter& self) {
  waiters_.push_back(&self);
  borrows_.fetch_add(1);
  borrowers_.fetch_add(1);
  if (in_poll_.load()) kick();
}

void Driver::leave(Waiter& self) {
  std::erase(waiters_, &self);
  if (leader_ == &self) {
    leader_ = nullptr;
    if (!waiters_.empty()) {
      leader_ = waiters_.front();
      leader_->wake.notify_one();
    }
  }
  if (waiters_.empty()) left_.notify_all();
  if (borrowers_.fetch_sub(1) == 1 && parked_long_.load()) {
    std::lock_guard lock(park_mutex_);
    park_.notify_all();
  }
}

// One turn: waits for something to do, until the limit, and does it. True when something ran. The lock is given up
// while waiting.
bool Driver::drive(std::unique_lock<std::mutex>& lock, int64_t limit_ns, int64_t spin_until_ns) {
  EpollReactor::Harvest harvest;
  const int64_t until_ns = reactor_.prepare_wait(limit_ns);
  looked_ = until_ns != INT64_MIN || !looked_;
  if (!looked_)
    return reactor_.dispatch(harvest);  // posted tasks need no look at descriptors; every other turn has one
  lock.unlock();
  if (until_ns == INT64_MIN) {
    reactor_.wait(INT64_MIN, harvest);
  } else {
    const int64_t began_ns = reactor_.now_ns();
    for (int64_t now_ns = began_ns; now_ns < std::min(spin_until_ns, until_ns); now_ns = reactor_.now_ns()) {
      reactor_.wait(INT64_MIN, harvest);
      if (harvest.count > 0) break;
      const int64_t pause = pause_ns(now_ns - began_ns);
      // Whoever else has work on this core gets it now, not when the scheduler takes it from a poller.
      if (pause >= kYieldFromNs) sched_yield();
      do spin_pause();
      while (reactor_.now_ns() < now_ns + pause);
    }
    if (harvest.count == 0) reactor_.wait(until_ns, harvest);
  }
  lock.lock();
  if (stopping_.load()) return false;
  return reactor_.dispatch(harvest);
}

// Under the lock, after a turn run by `driver` (null: the background thread): tells the others whose condition holds.
void Driver::wake_ready(const Waiter* driver) {
  for (Waiter* waiter : waiters_) {
    if (waiter == driver || waiter->done || !(*waiter->ready)()) continue;
    waiter->done = true;
    waiter->wake.notify_one();
    if (waiter == leader_) reactor_.wake();
  }
}

}  // namespace moontide::io
