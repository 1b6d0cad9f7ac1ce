// Virtual time: one queue of events for several simulated processes. Everything that happens is decided by the seed, so
// a run is replayed bit for bit; trace() proves it.
//
// Thread: one. The world outlives everything that runs on its processes.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/reactor.h"
#include "io/timer_queue.h"

namespace moontide::io {

class SimWorld;

// One simulated process: a reactor whose clock drifts and steps, that can be stopped for a while, and that can die.
// Each event, timer and posted task is a turn of its own, a random short time after the one before; which kind comes
// first is random too. A pause or a crash may strike between any two turns.
class SimProcess final : public Reactor {
 public:
  SimProcess(SimWorld& world, std::string host, uint64_t seed);

  // --- Reactor ---
  int64_t now_ns() const override;
  void post(Task task) override;
  TimerId call_after(int64_t delay_ns, Task task) override;
  void cancel(TimerId timer) override;
  Random& random() override { return random_; }

  // An event of this process's kernel (bytes came, a connection came): runs in a turn of its own, in order.
  void deliver(Task event);

  // --- faults ---
  void pause();  // nothing runs; events, timers and tasks wait
  void resume();
  // Nothing runs any more; what was queued is kept until the world ends, since its captures may own memory that others
  // still read. Crash handlers run inside this call.
  void crash();
  // Parts per million faster than true time; -1'000'000 stops the clock, which never goes back.
  void set_drift_ppm(int64_t ppm);
  void step_clock(int64_t forward_ns);

  void on_crash(std::function<void()> handler) { crash_handlers_.push_back(std::move(handler)); }
  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  const std::string& host() const { return host_; }
  SimWorld& world() { return world_; }

 private:
  friend class SimWorld;
  void arm();
  void turn();
  int64_t true_time_of(int64_t local_ns) const;
  void rebase();

  SimWorld& world_;
  const std::string host_;
  SeededRandom random_;
  bool alive_ = true;
  bool paused_ = false;

  int64_t base_local_ns_;  // the local clock at base_true_ns_, from where it runs at rate_ / 1e6 of true time
  int64_t base_true_ns_;
  int64_t rate_ppm_ = 1'000'000;

  std::deque<Task> events_;
  std::deque<Task> posted_;
  TimerQueue timers_;
  TimerId turn_ = 0;  // of the world's queue
  int64_t turn_at_ns_ = 0;
  bool turn_ready_ = false;  // it was asked for with something to run, not for a timer
  std::vector<std::function<void()>> crash_handlers_;
};

class SimWorld {
 public:
  explicit SimWorld(uint64_t seed);
  ~SimWorld();
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  // A new process on `host`, owned by the world until its end; earlier ones of that host should have crashed.
  SimProcess& start_process(const std::string& host);

  int64_t time_ns() const { return time_ns_; }

  // At a true time from now; belongs to no process, so no pause or crash keeps it from running.
  TimerId after(int64_t delay_ns, Task task);
  void cancel(TimerId event) { queue_.cancel(event); }

  // Runs the next event; false when there is none.
  bool step();
  void run_for(int64_t duration_ns);
  // True when `ready` became true before `limit_ns` more had passed.
  bool run_until(const std::function<bool()>& ready, int64_t limit_ns);

  Random& random() { return random_; }
  uint64_t events() const { return events_; }

  // A hash of all that happened so far; equal for equal seeds and code.
  uint64_t trace() const { return trace_; }
  void note(uint64_t what);

 private:
  SeededRandom random_;
  int64_t time_ns_ = 0;
  uint64_t events_ = 0;
  uint64_t trace_ = 0x9e3779b97f4a7c15;
  TimerQueue queue_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
};

}  // namespace moontide::io
