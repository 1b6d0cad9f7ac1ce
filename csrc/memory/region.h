// Regions: the memory of this process that takes part in transfers, and what peers may do with each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/bytes.h"
#include "base/status.h"
#include "memory/arena.h"
#include "memory/generation_table.h"

namespace moontide::memory {

enum Access : uint8_t {
  kLocal = 0,     // only this process's own transfers use it
  kReadable = 1,  // peers may read it
  kWritable = 2,  // peers may have bytes put into it
  kSource = 4,    // the memory itself is read-only: nothing may be read into it
};

// Thread: pins are counted under the lock of the engine that owns the registry.
struct Region {
  uint32_t id = 0;
  uint64_t generation = 0;  // never used twice in this process
  std::byte* address = nullptr;
  uint64_t length = 0;
  uint8_t access = kLocal;
  std::string name;
  std::shared_ptr<Arena> arena;  // set when the memory lies in one
  uint32_t word = 0;             // in the generation table

  bool live = true;   // false from unregister on: no new use starts
  uint32_t pins = 0;  // uses under way
  std::move_only_function<void()> on_quiet;

  MutableBytes bytes() const { return {address, length}; }
};

using RegionRef = std::shared_ptr<Region>;

// One use of a region. While it lives, the region's memory is not handed back.
class Pin {
 public:
  Pin() = default;
  explicit Pin(RegionRef region) : region_(std::move(region)) { ++region_->pins; }
  Pin(Pin&& other) noexcept = default;
  Pin& operator=(Pin&& other) noexcept {
    release();
    region_ = std::move(other.region_);
    return *this;
  }
  ~Pin() { release(); }
  void release();
  const RegionRef& region() const { return region_; }

 private:
  RegionRef region_;
};

class Registry {
 public:
  explicit Registry(std::unique_ptr<GenerationTable> generations) : generations_(std::move(generations)) {}

  // INVALID: length 0, a range that wraps or that overlaps a registered one (the message has both).
  Result<RegionRef> add(std::byte* address, uint64_t length, uint8_t access, std::string name,
                        std::shared_ptr<Arena> arena = nullptr);

  // From now on no peer's request and no new transfer reaches the region. `on_quiet` runs once nothing of this process
  // uses it any more, at once when that is so already. NOT_FOUND for an unknown or removed id.
  Result<> remove(uint32_t id, std::move_only_function<void()> on_quiet);

  // The live region that holds [address, address + length). DENIED otherwise.
  Result<RegionRef> find_local(uint64_t address, uint64_t length) const;

  // Law 3 and 6: what a peer names is checked here, by the owner. NOT_FOUND, STALE, DENIED (range or right).
  Result<RegionRef> check_remote(uint32_t id, uint64_t generation, uint64_t offset, uint64_t length,
                                 Access right) const;

  // Withdraws everything at once, for the end of the engine. Pins stay what they are.
  void close();

  RegionRef by_id(uint32_t id) const;
  const std::map<uint32_t, RegionRef>& all() const { return by_id_; }
  GenerationTable& generations() { return *generations_; }

 private:
  std::unique_ptr<GenerationTable> generations_;
  std::map<uint32_t, RegionRef> by_id_;
  std::map<uintptr_t, RegionRef> by_address_;
  uint32_t next_id_ = 1;
  uint64_t next_generation_ = 1;
};

}  // namespace moontide::memory
