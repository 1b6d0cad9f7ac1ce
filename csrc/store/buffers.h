// The client's memory in transfers: parts that the caller registered already, parts that are registered for the time of
// one operation, and scratch space for entry headers.
//
// Thread: the reactor's.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "wire/store_messages.h"

namespace moontide::store {

// Memory of this process: an object is the concatenation of its parts.
struct Part {
  uint64_t address = 0;
  uint64_t length = 0;
};

uint64_t total_length(std::span<const Part> parts);  // saturates

// Regions that exist for as long as some operation needs them. Parts may overlap each other and registered memory.
class TemporaryRegions {
 public:
  explicit TemporaryRegions(engine::Engine& engine) : engine_(engine) {}

  // A region that holds the part and has the `access` that is needed (kReadable: peers read it; kLocal: bytes are put
  // into it); registers the part where none is. DENIED: the caller registered it without that. Every success is paired
  // with a release().
  Result<memory::RegionRef> acquire(const Part& part, uint8_t access);
  // `quiet` runs when nothing uses the region's memory on behalf of this acquire any more; maybe inside this call.
  void release(const memory::RegionRef& region, std::move_only_function<void()> quiet);

 private:
  engine::Engine& engine_;
  std::map<uint32_t, size_t> temporary_;  // region id → acquires
};

// 64-byte slots of registered memory.
class HeaderSlots {
 public:
  explicit HeaderSlots(engine::Engine& engine) : engine_(engine) {}
  ~HeaderSlots();

  // OVERLOADED when too many are out.
  Result<std::byte*> take();
  void give(std::byte* slot) { free_.push_back(slot); }

 private:
  static constexpr size_t kSlots = 1024;  // of a chunk
  static constexpr size_t kChunksMax = 64;
  engine::Engine& engine_;
  std::vector<memory::RegionRef> chunks_;
  std::vector<std::byte*> free_;
};

}  // namespace moontide::store
