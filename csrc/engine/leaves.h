// Leaves that this engine gave to peers of its host: to write a region themselves instead of having its owner pull.
// Nothing that this side does keeps such a peer from writing, so the region's memory is not handed back before the peer
// gave the leave back or is dead: the leave is a use of the region, like a transfer.
//
// Thread: under the engine's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/link.h"
#include "memory/region.h"

namespace moontide::engine {

class Leaves {
 public:
  static constexpr size_t kCountMax = 4096;

  explicit Leaves(io::Network& network);
  ~Leaves();

  // Where region and peer allow it and there is room; elsewhere the peer goes on asking.
  void give(Link& link, const memory::RegionRef& region);
  // From now on none is given: what is out can be waited for.
  void give_no_more() { over_ = true; }

  size_t size() const { return given_.size(); }
  size_t hostages() const;  // of regions that were unregistered
  // Regions that somebody may write.
  std::vector<uint32_t> regions() const;

 private:
  class Leave;

  io::Network& network_;
  std::map<uint64_t, std::unique_ptr<Leave>> given_;
  uint64_t next_ = 1;
  bool over_ = false;
};

}  // namespace moontide::engine
