// What one-sided reads of a simulated world can see: the registered memory of every engine in it.
#pragma once

#include <cstdint>
#include <map>

#include "io/sim_network.h"
#include "memory/region.h"

namespace moontide::transport {

// How a world's one-sided reads behave. Times are true time.
struct SimReadFaults {
  // One in so many slices begins late: as if its poster had been stopped between its last check and the post.
  uint64_t late_one_in = 12;
  int64_t late_most_ns = 50 * kMillisecond;
  uint64_t very_late_one_in = 150;
  int64_t very_late_most_ns = 4 * kSecond;
  // One in so many slices fails after some of its bytes landed. 0: none.
  uint64_t fail_one_in = 60;
  uint64_t outstanding_max = 16;  // slices per endpoint
};

// Outlives the engines on it. Memory of an engine whose process crashed stays readable, as a mapping of it would.
class SimHub {
 public:
  struct Owner {
    memory::Registry* registry;
    io::SimProcess* process;
  };

  explicit SimHub(io::SimFabric& fabric) : fabric_(fabric) {}

  uint64_t attach(memory::Registry& registry, io::SimProcess& process) {
    owners_[next_] = {&registry, &process};
    return next_++;
  }
  void detach(uint64_t number) { owners_.erase(number); }
  const Owner* find(uint64_t number) const {
    const auto found = owners_.find(number);
    return found == owners_.end() ? nullptr : &found->second;
  }

  io::SimFabric& fabric() { return fabric_; }
  SimReadFaults& faults() { return faults_; }

 private:
  io::SimFabric& fabric_;
  SimReadFaults faults_;
  std::map<uint64_t, Owner> owners_;
  uint64_t next_ = 1;
};

}  // namespace moontide::transport
