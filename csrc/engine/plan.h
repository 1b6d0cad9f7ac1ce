// What a batch comes to: records, as callers give them, and the plan of the copies that they ask for.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/region.h"
#include "transport/transport.h"

namespace moontide::engine {

class Engine;
class Link;

// One copy, or with `count` as many of the same length at equal distances: element i goes between local + i *
// local_stride and offset + i * remote_stride. All elements lie in one local and one remote region; where bytes are put
// they must not overlap, so the stride there is at least the length.
struct Record {
  uint32_t op = 0;                               // transport::Op
  uint32_t flags = 0;                            // must be 0
  uint64_t local = 0;                            // address inside one registered region
  uint64_t handle = 0;                           // Engine::handle
  uint64_t offset = 0;                           // in the remote region
  uint64_t length = 0;                           // of an element; 0 is a copy of nothing, and succeeds
  uint64_t count = 1;                            // 0 is a copy of nothing as well
  uint64_t local_stride = 0, remote_stride = 0;  // from one element to the next; not looked at below 2 elements
};
static_assert(sizeof(Record) == 64);

// From the first byte to the end of the last element, on the side of that stride. Null: that is no 64-bit number.
std::optional<uint64_t> span_bytes(const Record& record, uint64_t stride);

// A batch may name more copies than its caller could list, and all are planned in one step.
inline constexpr uint64_t kElementsMax = 1u << 20;  // of its records with strides, as far as they cannot be joined

// The copies of one batch: checked, neighbours that are contiguous on both sides joined, what is longer than a slice
// cut. Transfers share it and do not change it. It keeps nothing alive: memory may go, and links, and then it does not
// hold any more.
//
// Thread: under the engine's lock; its end anywhere.
struct Plan {
  struct Range {
    uint32_t first;
    uint32_t count;
  };
  struct Target {
    std::weak_ptr<Link> link;
    transport::RemoteRegionRef region;
    uint64_t slice_bytes = 0;  // at most
  };
  // What becomes one slice.
  struct Part {
    transport::Op op;
    uint32_t target;  // in targets
    uint32_t local;   // in regions: the one that all its local memory lies in, so that the peer can be asked to pull
    uint64_t length = 0;
    std::vector<transport::Piece> pieces;
    std::vector<Range> records;  // whose bytes it carries
  };

  std::vector<Part> parts;
  std::vector<Target> targets;                         // all that good records name
  std::vector<std::weak_ptr<memory::Region>> regions;  // local ones that share a byte with what is copied: to be pinned
  std::vector<Code> results;                           // per record; not kOk: it asks for nothing that can be done
  Error error{Code::kOk, ""};                          // of the first such record
  uint64_t bytes = 0;
  uint64_t changes = 0;  // of the registry, when it was made

  // Whether making it anew would come to the same: no local region came or went, all links and remote regions live. Not
  // where a record failed, since nobody watches for what would mend it.
  bool holds(const Engine& engine) const;
};

using PlanRef = std::shared_ptr<const Plan>;

// A batch that is kept for launching it many times, with its plan while that holds.
//
// Thread: under the engine's lock; its end anywhere.
struct PreparedBatch {
  std::vector<Record> records;
  PlanRef plan = nullptr;
};

}  // namespace moontide::engine
