// Transfers whose copies wait for their caller: who submitted one mostly comes to wait for it, and then runs the copies
// itself, for two threads on one core are slower than either. The reactor runs them where nobody came for a while, or
// where the caller has begun another transfer meanwhile.
//
// Thread: under the engine's lock.
#pragma once

#include <memory>
#include <vector>

#include "engine/transfer.h"
#include "io/reactor.h"

namespace moontide::engine {

class Unclaimed {
 public:
  explicit Unclaimed(io::Reactor& reactor) : timer_(reactor) {}

  void add(const TransferRef& transfer);

 private:
  void leave_to_reactor();

  // One timer for all, and none for each: where transfers come one after the other it is mostly running already, and
  // the reactor's thread sleeps on.
  io::Timer timer_;
  bool timed_ = false;
  std::vector<std::weak_ptr<Transfer>> waiting_;
};

}  // namespace moontide::engine
