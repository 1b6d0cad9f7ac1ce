// Which path of a link carries which slice. The paths of one transport (one per pair of devices) share a queue: each
// takes the next slice when it has room for it, unless the others would have all that waits done sooner. So unequal
// paths share in proportion to what they deliver, and the last slice does not wait for the slowest.
//
// A path that delivers nothing while the peer lives is quarantined: what it had goes to the others, and it is probed
// until it answers again.
//
// Thread: under the engine's lock.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string_view>

#include "io/reactor.h"
#include "transport/transport.h"

namespace moontide::engine {

class Link;
class Transfer;

// An endpoint, and what its work has shown about it.
struct Path {
  std::shared_ptr<transport::Endpoint> endpoint;
  bool ready = false;
  bool settled = false;  // whether it is ready will not change
  bool quarantined = false;
  bool probing = false;
  size_t posted = 0;  // slices, and their bytes
  uint64_t posted_bytes = 0;
  double bytes_per_ns = 0;  // delivered while busy; 0: not known yet
  uint64_t counted_bytes = 0;
  int64_t counted_from_ns = 0;
  int64_t progress_ns = 0;  // when it last showed life while something was posted

  bool usable() const { return ready && !quarantined; }
};

class Scheduler {
 public:
  explicit Scheduler(Link& link);

  Path& add(std::shared_ptr<transport::Endpoint> endpoint);
  std::deque<Path>& paths() { return paths_; }  // best first: the order of the transport table
  const std::deque<Path>& paths() const { return paths_; }

  // `transfer` has slices for the transport of `endpoint`: they are posted as there is room, the urgent ones first, a
  // slice of each waiting transfer in turn.
  void enqueue(const transport::Endpoint& endpoint, const std::shared_ptr<Transfer>& transfer);

  // What happens to slices. `over` may post what waits.
  void posted(const transport::Endpoint& endpoint, uint64_t bytes);
  void progressed(const transport::Endpoint& endpoint);
  void over(const transport::Endpoint& endpoint, uint64_t bytes, bool delivered);

  // Whether a path of `transport` can be used, and has moved something since then or has nothing to move.
  bool moves(std::string_view transport, int64_t since_ns) const;

  // Of the first path that has one; see transport::Endpoint::view.
  std::shared_ptr<const std::byte> view(const transport::RemoteRegion& remote) const;

  // Of the fastest path of `transport`, 0: not known.
  double bytes_per_ns(std::string_view transport) const;

 private:
  using Queue = std::deque<std::weak_ptr<Transfer>>;  // each transfer once
  struct Group {
    std::vector<Path*> paths;
    Queue urgent, bulk;
    bool pumping = false;
    bool deferred = false;  // gets its slices in the next turn
  };

  Path* find(const transport::Endpoint& endpoint);
  void pump(Group& group);
  std::shared_ptr<Transfer> front(Queue& queue, std::string_view transport);
  Path* pick(const Group& group, uint64_t bytes, bool urgent) const;
  bool others_are_sooner(const Group& group, const Path& path, double by_ns) const;
  static uint64_t waiting_bytes(const Group& group);
  double rate(const Group& group, const Path& path) const;
  void learn(Path& path, int64_t now_ns);
  void watch_soon();
  void watch();
  void quarantine(Path& path);
  void probe(Path& path);

  Link& link_;
  std::deque<Path> paths_;  // addresses stay
  std::map<std::string_view, Group> groups_;
  io::Timer watch_;
};

}  // namespace moontide::engine
