// The simulated surroundings of one process: its reactor, its network, and the transports its engine may use.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "io/inproc.h"
#include "io/sim_network.h"
#include "transport/sim/hub.h"

namespace moontide::sim {

// How engines of a world reach each other's memory.
enum class Paths : uint8_t { kOneSided = 1, kTcp = 2, kBoth = 3 };

// What all machines of one simulation share. Outlives them.
struct Universe {
  explicit Universe(uint64_t seed, Paths paths = Paths::kBoth)
      : world(seed), fabric(world), hub(fabric), paths(paths) {}
  io::SimWorld world;
  io::SimFabric fabric;
  transport::SimHub hub;
  Paths paths;
};

// One run of a process on `host`. Kept until the end of the simulation, also after its crash: others may still read its
// memory, and parts of its own reads may still land in it.
class Machine {
 public:
  // With several network `devices` the engine has a rail on each: "HOST", "HOST~1", …
  Machine(Universe& universe, const std::string& host, size_t devices = 1)
      : universe_(universe),
        devices_(devices),
        process_(universe.world.start_process(host)),
        wires_(universe.fabric, process_),
        inproc_(process_),
        network_(inproc_, wires_) {}

  io::SimProcess& process() { return process_; }
  io::Network& network() { return network_; }
  Universe& universe() { return universe_; }

  // `dark`: the whole machine dies and nobody tells its peers.
  void crash(bool dark) {
    wires_.crash_goes_dark(dark);
    process_.crash();
  }

  engine::TransportFactory transports();
  engine::EngineOptions engine_options() const;
  Result<std::unique_ptr<engine::Engine>> make_engine();

 private:
  Universe& universe_;
  const size_t devices_;
  io::SimProcess& process_;
  io::SimNetwork wires_;
  io::InprocNetwork inproc_;
  io::RoutedNetwork network_;
};

}  // namespace moontide::sim
