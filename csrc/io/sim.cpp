#include "io/sim.h"

#include <algorithm>

namespace moontide::io {
namespace {

constexpr int64_t kMillion = 1'000'000;
// Between two turns: short, and now and then as long as a scheduler makes it.
constexpr uint64_t kTurnNs = 2'000;
constexpr uint64_t kLongTurnNs = 300'000;
constexpr uint64_t kLongTurnOneIn = 64;

}  // namespace

SimProcess::SimProcess(SimWorld& world, std::string host, uint64_t seed)
    : world_(world), host_(std::move(host)), random_(seed), base_true_ns_(world.time_ns()) {
  // Clocks of machines have nothing in common.
  base_local_ns_ = static_cast<int64_t>(random_.below(uint64_t{1} << 50));
}

int64_t SimProcess::now_ns() const {
  const __int128 elapsed = world_.time_ns() - base_true_ns_;
  return base_local_ns_ + static_cast<int64_t>(elapsed * rate_ppm_ / kMillion);
}

int64_t SimProcess::true_time_of(int64_t local_ns) const {
  if (local_ns <= base_local_ns_) return base_true_ns_;
  if (rate_ppm_ == 0) return INT64_MAX;
  const __int128 elapsed = (static_cast<__int128>(local_ns - base_local_ns_) * kMillion + rate_ppm_ - 1) / rate_ppm_;
  return elapsed > INT64_MAX - base_true_ns_ ? INT64_MAX : base_true_ns_ + static_cast<int64_t>(elapsed);
}

void SimProcess::rebase() {
  base_local_ns_ = now_ns();
  base_true_ns_ = world_.time_ns();
}

void SimProcess::set_drift_ppm(int64_t ppm) {
  rebase();
  rate_ppm_ = std::max<int64_t>(kMillion + ppm, 0);
  arm();
}

void SimProcess::step_clock(int64_t forward_ns) {
  MT_CHECK(forward_ns >= 0, std::to_string(forward_ns));
  rebase();
  base_local_ns_ += forward_ns;
  arm();
}

void SimProcess::post(Task task) {
  posted_.push_back(std::move(task));
  arm();
}

void SimProcess::deliver(Task event) {
  events_.push_back(std::move(event));
  arm();
}

TimerId SimProcess::call_after(int64_t delay_ns, Task task) {
  const int64_t now = now_ns();
  delay_ns = std::clamp<int64_t>(delay_ns, 0, INT64_MAX - now);
  const TimerId timer = timers_.add(now + delay_ns, std::move(task));
  arm();
  return timer;
}

void SimProcess::cancel(TimerId timer) { timers_.cancel(timer); }

void SimProcess::pause() {
  paused_ = true;
  world_.cancel(std::exchange(turn_, 0));
}

void SimProcess::resume() {
  paused_ = false;
  arm();
}

void SimProcess::crash() {
  if (!alive_) return;
  alive_ = false;
  world_.cancel(std::exchange(turn_, 0));
  for (auto& handler : crash_handlers_) handler();
}

// Makes sure that the world runs the next turn when it is due.
void SimProcess::arm() {
  if (!alive_ || paused_) return;
  int64_t at_ns = INT64_MAX;
  const bool ready = !events_.empty() || !posted_.empty();
  if (ready) {
    at_ns = world_.time_ns();
  } else if (const auto next = timers_.next_deadline_ns()) {
    at_ns = std::max(true_time_of(*next), world_.time_ns());
  }
  if (at_ns == INT64_MAX) return;
  if (turn_ != 0) {
    // The one on its way comes soon enough, or arms the next.
    if (turn_ready_ || turn_at_ns_ <= at_ns + static_cast<int64_t>(kTurnNs)) return;
    world_.cancel(turn_);
  }
  Random& random = world_.random();
  const uint64_t most = random.below(kLongTurnOneIn) == 0 ? kLongTurnNs : kTurnNs;
  turn_ready_ = ready;
  turn_at_ns_ = at_ns + static_cast<int64_t>(random.below(most));
  turn_ = world_.after(turn_at_ns_ - world_.time_ns(), [this] { turn(); });
}

void SimProcess::turn() {
  turn_ = 0;
  // A random one of the queues that have something to run.
  for (uint64_t kind = world_.random().below(3), tries = 0; tries < 3; kind = (kind + 1) % 3, ++tries) {
    Task task;
    if (kind == 2) {
      task = timers_.take_due(now_ns());
    } else {
      auto& queue = kind == 0 ? events_ : posted_;
      if (!queue.empty()) {
        task = std::move(queue.front());
        queue.pop_front();
      }
    }
    if (!task) continue;
    world_.note(kind);
    world_.note(static_cast<uint64_t>(now_ns()));
    task();
    break;
  }
  arm();
}

SimWorld::SimWorld(uint64_t seed) : random_(seed) {}

SimWorld::~SimWorld() {
  // What tasks own may still speak to the processes, and finds them dead.
  for (auto& process : processes_) process->alive_ = false;
  {
    auto events = std::exchange(queue_, {});
  }
  for (auto& process : processes_) {
    auto events = std::exchange(process->events_, {});
    auto posted = std::exchange(process->posted_, {});
    auto timers = std::exchange(process->timers_, {});
  }
}

SimProcess& SimWorld::start_process(const std::string& host) {
  processes_.push_back(std::make_unique<SimProcess>(*this, host, random_.next()));
  return *processes_.back();
}

TimerId SimWorld::after(int64_t delay_ns, Task task) {
  return queue_.add(time_ns_ + std::clamp<int64_t>(delay_ns, 0, INT64_MAX - time_ns_), std::move(task));
}

bool SimWorld::step() {
  const auto next = queue_.next_deadline_ns();
  if (!next) return false;
  time_ns_ = std::max(time_ns_, *next);
  ++events_;
  note(static_cast<uint64_t>(time_ns_));
  queue_.take_due(time_ns_)();
  return true;
}

void SimWorld::run_for(int64_t duration_ns) {
  const int64_t until_ns = time_ns_ + duration_ns;
  while (true) {
    const auto next = queue_.next_deadline_ns();
    if (!next || *next > until_ns) break;
    step();
  }
  time_ns_ = std::max(time_ns_, until_ns);
}

bool SimWorld::run_until(const std::function<bool()>& ready, int64_t limit_ns) {
  const int64_t until_ns = time_ns_ + limit_ns;
  while (!ready()) {
    const auto next = queue_.next_deadline_ns();
    if (!next || *next > until_ns) {
      time_ns_ = std::max(time_ns_, until_ns);
      return ready();
    }
    step();
  }
  return true;
}

void SimWorld::note(uint64_t what) {
  trace_ ^= what + 0x9e3779b97f4a7c15 + (trace_ << 6) + (trace_ >> 2);
  trace_ *= 0xff51afd7ed558ccd;
  trace_ ^= trace_ >> 33;
}

}  // namespace moontide::io
