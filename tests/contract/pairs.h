// Two engines between which one transport carries the bytes: the fixtures of the contract suite.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "io/epoll_reactor.h"
#include "io/inproc.h"
#include "io/socket.h"
#include "sim/machine.h"
#include "transport/builtin.h"

namespace moontide::contract {

// One way to move bytes. `reader` uses regions of `owner`; memory comes from allocate(), since some transports reach
// only arenas.
class Pair {
 public:
  virtual ~Pair() = default;
  virtual std::string name() const = 0;  // as Transfer::path() gives it for reads
  virtual std::string write_path() const { return name(); }
  virtual engine::Engine& reader() = 0;
  virtual engine::Engine& owner() = 0;
  virtual bool run_until(const std::function<bool()>& ready, int64_t within_ns = 20 * kSecond) = 0;
  virtual void run_for(int64_t duration_ns) = 0;
  virtual bool arenas() const { return false; }  // memory has to lie in arenas
  virtual bool leaves() const { return false; }  // peers get leave to write what they may have written
  virtual bool one_engine() const { return false; }
  virtual bool may_fail() const { return false; }  // faults are part of the transport (sim)
  virtual void kill_owner() = 0;

  engine::LinkRef open();
  // Memory of `size` bytes registered with `engine`, kept by the pair until its end.
  memory::RegionRef allocate(engine::Engine& engine, uint64_t size, uint8_t access, const std::string& name);
  uint64_t handle(const engine::LinkRef& link, const memory::RegionRef& region);

 protected:
  std::vector<std::shared_ptr<memory::Arena>> arenas_;
};

using MakePair = std::function<std::unique_ptr<Pair>()>;

// Every transport that this build and this machine can stage, with a name for the test output.
std::vector<std::pair<std::string, MakePair>> all_pairs();

}  // namespace moontide::contract
