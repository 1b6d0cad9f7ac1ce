// A node's side of views: pins of entries that processes of this host look at in place. As long as a pin is out the
// entry's bytes stay as they are, whatever becomes of the object. A pin ends when its viewer closes it, or is dead on
// the word of the kernel (io/leave.h): never by time, nor with a link, since a stopped process goes on looking.
//
// Thread: the reactor's.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "engine/engine.h"
#include "io/leave.h"
#include "store/options.h"
#include "store/segment.h"
#include "wire/store_messages.h"

namespace moontide::store {

class Views {
 public:
  // `released`: bytes of an ended entry came free.
  Views(engine::Engine& engine, Segment& segment, const NodeOptions& options, std::function<void()> released);
  ~Views();

  // Requests of a process of this host (wire::ViewOpen, wire::ViewClose). Per item NOT_FOUND: no such entry, NO_SPACE:
  // as many bytes are pinned as may be. Refused: STALE (no such viewer), UNSUPPORTED (another host), OVERLOADED.
  void open(const engine::LinkRef& link, const rpc::Incoming& request, rpc::Responder responder);
  void close(const engine::LinkRef& link, const rpc::Incoming& request, rpc::Responder responder);

  size_t viewers() const { return viewers_.size(); }
  // Each entry counts once per viewer.
  uint64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  struct Pinned {
    uint64_t bytes = 0;
    uint32_t pins = 0;
  };
  struct Viewer {
    InstanceId peer;
    std::unique_ptr<io::GivenLeave> leave;  // null: this very process
    std::map<Generation, Pinned> pinned;
    uint64_t bytes = 0;
  };

  Viewer* find(const engine::Link& link, uint64_t number);
  Result<uint64_t> admit(const engine::Link& link, std::vector<int>& fds, io::Fd& holders);
  wire::Viewed pin(Viewer& viewer, Generation generation);
  void unpin(Viewer& viewer, Generation generation);
  void gone(uint64_t number);
  void tell_if_released(uint64_t held_before);

  engine::Engine& engine_;
  Segment& segment_;
  const NodeOptions& options_;
  std::function<void()> released_;
  std::map<uint64_t, Viewer> viewers_;
  uint64_t pinned_bytes_ = 0;
};

}  // namespace moontide::store
