// Regions: the memory of this process that takes part in transfers, and what peers may do with each.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "memory/arena.h"
#include "memory/generation_table.h"
#include "memory/interval_index.h"

namespace moontide::memory {

enum Access : uint8_t {
  kLocal = 0,     // only this process's own transfers use it
  kReadable = 1,  // peers may read it
  kWritable = 2,  // peers may have bytes put into it
  kSource = 4,    // the memory itself is read-only: nothing may be read into it
  kDirect = 8,    // peers of this host may be given leave to write it themselves
};

class Pin;

// What one transport made of a region: a key for each chunk of `chunk_bytes` (the last may be shorter), in order.
struct Attachment {
  std::string transport;
  uint64_t chunk_bytes = 0;
  std::vector<Bytes> keys;
};

// Thread: pins are counted under the lock of the engine that owns the registry.
struct Region {
  uint32_t id = 0;          // of one region at a time
  uint64_t generation = 0;  // never used twice in this process
  std::byte* address = nullptr;
  uint64_t length = 0;
  uint8_t access = kLocal;
  std::string name;
  std::shared_ptr<Arena> arena;  // set when the memory lies in one
  uint32_t word = 0;             // in the generation table
  std::vector<Attachment> attached;

  bool live = true;      // false from unregister on: no new use starts
  bool missing = false;  // the kernel found nothing at its address: no new use of its bytes starts either
  uint32_t pins = 0;     // uses under way
  Pin* newest_pin = nullptr;
  uint64_t planned_by = 0;  // the plan that used it last, and its place there: planning is one step
  uint32_t planned_as = 0;
  std::move_only_function<void()> on_quiet;

  MutableBytes bytes() const { return {address, length}; }
};

// Who uses a region, in words: "transfer 7 with 127.0.0.1:7700, …". Outlives its pins.
class PinUser {
 public:
  virtual ~PinUser() = default;
  virtual std::string describe_use(const Region& region) const = 0;
};

// One use of a region. While it lives, the region's memory is not handed back.
class Pin {
 public:
  Pin() = default;
  Pin(RegionRef region, const PinUser* user);
  Pin(Pin&& other) noexcept { take(other); }
  Pin& operator=(Pin&& other) noexcept {
    if (this == &other) return *this;
    release();
    take(other);
    return *this;
  }
  ~Pin() { release(); }
  void release();
  const RegionRef& region() const { return region_; }

 private:
  friend class Registry;
  void link();
  void unlink();
  void take(Pin& other);

  RegionRef region_;
  const PinUser* user_ = nullptr;
  Pin* older_ = nullptr;  // of the same region
  Pin* newer_ = nullptr;
};

class Registry {
 public:
  // `first_id`: ids are given out from there on, and go round.
  explicit Registry(std::unique_ptr<GenerationTable> generations, uint32_t first_id = 1)
      : generations_(std::move(generations)), next_id_(first_id) {}

  // Ranges may overlap registered ones, or be the same: each registration stands by itself. INVALID: no address, length
  // 0, a range that wraps. NO_SPACE: too many.
  Result<RegionRef> add(std::byte* address, uint64_t length, uint8_t access, std::string name,
                        std::shared_ptr<Arena> arena = nullptr);

  // From now on no peer's request and no new transfer reaches the region. `on_quiet` runs once nothing of this process
  // uses it any more, at once when that is so already. NOT_FOUND for an unknown or removed id.
  Result<> remove(uint32_t id, std::move_only_function<void()> on_quiet);

  // The kernel found nothing to send there: regions that cover the address are refused to peers (DENIED) and to
  // transfers from now on, so that memory that went away costs those who use it and nobody else.
  void mark_missing(uint64_t address);

  // A live region that covers [address, address + length) and suits `use`. DENIED otherwise, with the reason.
  Result<RegionRef> find_local(uint64_t address, uint64_t length, Use use = Use::kAny) const;

  // Calls `visit` for each live region that shares a byte with the range, until it returns false.
  void touching(uint64_t address, uint64_t length, const std::function<bool(const RegionRef&)>& visit) const {
    by_address_.touching(address, length, visit);
  }
  // No other region shares a byte with this one.
  bool stands_alone(const Region& region) const;

  // Who uses the region now, also after its removal; a few of them, and how many more there are.
  std::vector<std::string> users(uint32_t id) const;

  // Law 3 and 6: what a peer names is checked here, by the owner. NOT_FOUND, STALE, DENIED (range or right).
  Result<RegionRef> check_remote(uint32_t id, uint64_t generation, uint64_t offset, uint64_t length,
                                 Access right) const;

  // Withdraws everything at once, for the end of the engine. Pins stay what they are.
  void close();

  RegionRef by_id(uint32_t id) const;
  const std::map<uint32_t, RegionRef>& all() const { return by_id_; }
  // Grows whenever a region comes or goes: what was found here holds while it stays.
  uint64_t changes() const { return changes_; }
  GenerationTable& generations() { return *generations_; }
  const IntervalIndex& by_address() const { return by_address_; }

 private:
  std::unique_ptr<GenerationTable> generations_;
  std::map<uint32_t, RegionRef> by_id_;
  IntervalIndex by_address_;
  std::map<uint32_t, std::weak_ptr<Region>> leaving_;  // removed, and used when last looked at
  size_t leaving_looked_at_ = 16;                      // how many of them make it worth looking again
  uint32_t take_id();

  uint32_t next_id_;
  bool ids_went_round_ = false;
  uint64_t next_generation_ = 1;
  uint64_t changes_ = 0;
};

}  // namespace moontide::memory
