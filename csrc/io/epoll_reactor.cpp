#include "io/epoll_reactor.h"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace moontide::io {
namespace {

// A turn runs at most this many timers and posted tasks each, then looks at descriptors again.
constexpr size_t kTasksPerTurn = 1024;
constexpr uint64_t kWakeTag = 0;

WatchId watch_id(uint32_t slot, uint32_t generation) { return (static_cast<uint64_t>(generation) << 32) | slot; }

}  // namespace

EpollReactor::EpollReactor()
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), owner_pid_(getpid()) {
  MT_CHECK(epoll_ && wake_, std::string("epoll or eventfd: ") + std::strerror(errno));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeTag;
  MT_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) == 0, std::strerror(errno));
}

EpollReactor::~EpollReactor() = default;

void EpollReactor::woken_by(int64_t due_ns) {
  if (!dispatching_ && due_ns < sleep_until_ns_) {
    sleep_until_ns_ = due_ns;
    wake();
  }
}

void EpollReactor::post(Task task) {
  posted_.push_back(std::move(task));
  woken_by(INT64_MIN + 1);
}

TimerId EpollReactor::call_after(int64_t delay_ns, Task task) {
  const int64_t now = now_ns();
  delay_ns = std::max<int64_t>(delay_ns, 0);
  const int64_t deadline = delay_ns > INT64_MAX - now ? INT64_MAX : now + delay_ns;
  const TimerId timer = timers_.add(deadline, std::move(task));
  woken_by(deadline);
  return timer;
}

Result<WatchId> EpollReactor::watch(int fd, uint32_t events, FdHandler& handler) {
  uint32_t slot;
  if (free_.empty()) {
    slot = static_cast<uint32_t>(watched_.size());
    watched_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  Watched& entry = watched_[slot];
  epoll_event event{};
  event.events = events;
  const WatchId id = watch_id(slot, entry.generation);
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    const int cause = errno;
    free_.push_back(slot);
    return fail(Code::kOverloaded, std::string("cannot watch a descriptor: ") + std::strerror(cause));
  }
  entry.handler = &handler;
  entry.fd = fd;
  entry.events = events;
  return id;
}

EpollReactor::Watched* EpollReactor::find(WatchId watch) {
  const auto slot = static_cast<uint32_t>(watch);
  if (slot >= watched_.size()) return nullptr;
  Watched& entry = watched_[slot];
  return entry.handler != nullptr && entry.generation == watch >> 32 ? &entry : nullptr;
}

void EpollReactor::modify(WatchId watch, uint32_t events) {
  Watched* entry = find(watch);
  if (entry == nullptr || entry->events == events) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch;
  MT_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, entry->fd, &event) == 0,
           "descriptor " + std::to_string(entry->fd) + ": " + std::strerror(errno));
  entry->events = events;
}

void EpollReactor::unwatch(WatchId watch) {
  Watched* entry = find(watch);
  if (entry == nullptr) return;
  // A forked child shares the kernel's table with its parent and must not take the parent's descriptors out of it.
  if (getpid() == owner_pid_) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->fd, nullptr);
  entry->handler = nullptr;
  entry->fd = -1;
  if (++entry->generation == 0) entry->generation = 1;
  free_.push_back(static_cast<uint32_t>(watch));
}

int64_t EpollReactor::prepare_wait(int64_t limit_ns) {
  int64_t until = limit_ns;
  if (!posted_.empty() || !put_off_.empty()) until = INT64_MIN;
  if (auto next = timers_.next_deadline_ns()) until = std::min(until, *next);
  sleep_until_ns_ = until;
  return until;
}

void EpollReactor::wait(int64_t deadline_ns, Harvest& into) {
  timespec timeout{};
  int64_t left = INT64_MAX;
  if (deadline_ns == INT64_MIN) {
    left = 0;
  } else if (deadline_ns != INT64_MAX) {
    left = std::max<int64_t>(deadline_ns - now_ns(), 0);
  }
  int count;
  if (!coarse_wait_.load(std::memory_order_relaxed) && left != 0) {
    timeout.tv_sec = left / kSecond;
    timeout.tv_nsec = left % kSecond;
    count = static_cast<int>(syscall(SYS_epoll_pwait2, epoll_.get(), into.events, Harvest::kMax,
                                     left == INT64_MAX ? nullptr : &timeout, nullptr, 0));
    if (count >= 0 || errno != ENOSYS) {
      into.count = std::max(count, 0);
      return;
    }
    coarse_wait_.store(true, std::memory_order_relaxed);
  }
  // Rounded up to milliseconds, so that a timer is never asked for before it is due.
  constexpr int64_t kLongest = 3'600'000;
  const int64_t ms = left == INT64_MAX ? -1 : std::min(left / kMillisecond + (left % kMillisecond != 0), kLongest);
  count = epoll_wait(epoll_.get(), into.events, Harvest::kMax, static_cast<int>(ms));
  into.count = std::max(count, 0);
}

bool EpollReactor::dispatch(Harvest& harvest) {
  sleep_until_ns_ = INT64_MIN;
  dispatching_ = true;
  let_go();
  bool ran = false;
  const int count = std::exchange(harvest.count, 0);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = harvest.events[i];
    if (event.data.u64 == kWakeTag) {
      uint64_t ignored;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &ignored, sizeof ignored);
      wake_pending_.store(false);
      continue;
    }
    Watched* entry = find(event.data.u64);
    if (entry == nullptr) continue;
    // Only what is still asked for: the handler may have changed its mind since the event was harvested.
    const uint32_t events = event.events & (entry->events | EPOLLERR | EPOLLHUP);
    if (events == 0) continue;
    entry->handler->ready(events);
    let_go();
    ran = true;
  }
  ran |= run_timers();
  ran |= run_posted();
  let_go();
  dispatching_ = false;
  return ran;
}

bool EpollReactor::run_timers() {
  if (timers_.size() == 0) return false;
  const int64_t now = now_ns();
  bool ran = false;
  for (size_t i = 0; i < kTasksPerTurn; ++i) {
    Task task = timers_.take_due(now);
    if (!task) break;
    task();
    ran = true;
  }
  return ran;
}

bool EpollReactor::run_posted() {
  // Tasks posted by these tasks wait for the next turn.
  const size_t count = std::min(posted_.size(), kTasksPerTurn);
  for (size_t i = 0; i < count; ++i) {
    Task task = std::move(posted_.front());
    posted_.pop_front();
    task();
  }
  return count != 0;
}

void EpollReactor::let_go() {
  for (size_t i = 0; i < put_off_.size(); ++i) {
    if (PutOff* what = std::exchange(put_off_[i], nullptr)) what->now();
  }
  put_off_.clear();
}

void EpollReactor::wake() {
  if (wake_pending_.exchange(true)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

}  // namespace moontide::io
