// A leave: something that one process of this host lets another one do until that one gives it back, or dies. The
// kernel keeps it: two connected local sockets, one for the giver to watch, one for the holder to keep and shut.
//
// Thread: the reactor's, but for HeldLeave, which may end in any.
#pragma once

#include <memory>

#include "io/network.h"

namespace moontide::io {

// The giver's end. Destroying it stops watching; `over` does not run any more.
class GivenLeave {
 public:
  virtual ~GivenLeave() = default;
};

struct NewLeave {
  std::unique_ptr<GivenLeave> given;
  Fd holders;  // to be sent to the holder, and closed here
};

// The holder's end. Giving it back is its destruction, at once, whatever copies of the descriptor children have; what
// it allows must be over by then.
class HeldLeave {
 public:
  explicit HeldLeave(Fd socket);
  ~HeldLeave();
  HeldLeave(const HeldLeave&) = delete;
  HeldLeave& operator=(const HeldLeave&) = delete;

 private:
  Fd socket_;
  int owner_pid_;  // a forked child has a copy of this object, and nothing to give back
};

}  // namespace moontide::io
