// Objects looked at where they lie: read-only memory of a node of this host, mapped here. A view is a pin that the node
// holds for this process (store/views.h), so the bytes stay as they are until it is given back, whatever becomes of the
// object, the node or the master.
//
// Thread: the reactor's. A view may be read and end in any.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "io/leave.h"

namespace moontide::store {

class Viewing;

// What a node gave this process to hold pins by. Its end ends all that are left.
struct Viewer {
  uint64_t number = 0;
  InstanceId node;
  bool hot = false;     // pins of entries of its hot cache
  std::string address;  // of the node's engine
  std::unique_ptr<io::HeldLeave> leave;
  // Pins to be given back with the next message.
  std::vector<Generation> closing;
};

class View {
 public:
  // Takes over one pin of the entry. With its end the pin is due: Viewing::flush() gives it back.
  View(std::shared_ptr<Viewing> viewing, std::shared_ptr<Viewer> viewer, Generation generation);
  ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  // `memory`: what keeps it mapped.
  void show(std::shared_ptr<const std::byte> memory, ByteView bytes) {
    memory_ = std::move(memory);
    bytes_ = bytes;
  }
  ByteView bytes() const { return bytes_; }
  const std::shared_ptr<Viewing>& viewing() const { return viewing_; }

 private:
  std::shared_ptr<Viewing> viewing_;
  std::shared_ptr<Viewer> viewer_;
  Generation generation_;
  std::shared_ptr<const std::byte> memory_;
  ByteView bytes_;
};

using ViewRef = std::shared_ptr<View>;

// A client's views at all nodes; lives as long as one of them.
class Viewing : public std::enable_shared_from_this<Viewing> {
 public:
  explicit Viewing(engine::Engine& engine) : engine_(engine), engine_alive_(engine.alive()) {}

  // Asks the node at the other end for pins of these entries, of its segment or of its hot cache. Per entry a view that
  // shows nothing yet and the offset of the entry's header in the node's segment, or NOT_FOUND, NO_SPACE. `opened` runs
  // once, in a later turn.
  struct Pinned {
    ViewRef view;
    uint64_t offset = 0;
  };
  using Opened = std::move_only_function<void(Result<std::vector<Result<Pinned>>> pinned)>;
  void open(const engine::LinkRef& link, const InstanceId& node, bool hot, const std::vector<Generation>& generations,
            int64_t timeout_ns, Opened opened);

  // Gives the pins of views that ended back.
  void flush();

 private:
  friend class View;
  using ViewerRef = std::shared_ptr<Viewer>;
  void ended(ViewerRef viewer, Generation generation);
  void send_closing(const ViewerRef& viewer);
  Result<std::vector<Result<Pinned>>> take(const engine::LinkRef& link, ViewerRef viewer,
                                           const std::vector<Generation>& generations, rpc::Reply reply);
  // New views get another one; its pins end with its last view.
  void forget(const ViewerRef& viewer);

  engine::Engine& engine_;  // while it is alive
  std::weak_ptr<bool> engine_alive_;
  std::map<std::pair<InstanceId, bool>, ViewerRef> viewers_;  // by node and whether it is of its hot cache
  std::mutex mutex_;                                          // for what follows
  std::vector<std::pair<ViewerRef, Generation>> ended_;
};

}  // namespace moontide::store
