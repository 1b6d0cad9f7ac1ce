// Turns a batch of records into a plan.
#pragma once

#include <map>
#include <tuple>
#include <unordered_map>

#include "engine/engine.h"
#include "engine/plan.h"

namespace moontide::engine {

// For one batch. Planning is one step: nothing else happens to the engine meanwhile.
class Planner {
 public:
  Planner(Engine& engine, Plan& plan);
  void add(std::span<const Record> records);

 private:
  // A part takes pieces of one remote region, one local region and one direction.
  using Key = std::tuple<uint32_t, uint32_t, transport::Op>;

  Result<> add_record(const Record& record, uint32_t index);
  Result<> add_strided(const Record& record, uint32_t index);
  void aim(uint64_t handle);
  bool is_sound(const Record& record) const;
  Error why_unsound(const Record& record) const;
  bool is_sound_strided(const Record& record) const;
  Error why_unsound_strided(const Record& record) const;
  bool lies_in_local(uint64_t address, uint64_t length, bool read) const {
    return alone_ && address >= local_start_ && range_inside(address - local_start_, length, local_->length) &&
           (!read || local_takes_reads_);
  }
  Result<> find_local(uint64_t address, uint64_t length, bool read);
  Result<> use_target();
  uint32_t use(const memory::RegionRef& region);
  void look_at_chunks();
  uint64_t contiguous(const transport::Piece& piece) const;
  bool chunk_begins(const transport::Piece& piece) const;
  void choose_part(transport::Op op) {
    if (part_ == nullptr || op != op_) part_ = find_part(op);
  }
  uint32_t* find_part(transport::Op op);
  Plan::Part& next_part();
  void add_element(const transport::Piece& piece, uint32_t index) {
    if (!chunked_ && piece.length <= slice_bytes_) return add_piece(piece, index);
    add_cut(piece, index);
  }
  void add_cut(transport::Piece piece, uint32_t index);
  void add_piece(const transport::Piece& piece, uint32_t index);

  Engine& engine_;
  Plan& plan_;
  const uint64_t number_;  // of this planning
  uint64_t ahead_ = 0;     // pieces to come, about
  uint64_t elements_ = 0;  // of records with strides

  uint64_t handle_ = 0;
  Engine::Target target_;
  bool link_open_ = false;
  bool keep_target_ = false;  // the region is of this engine, and not used yet
  uint64_t slice_bytes_ = 0;  // at most, for that target
  uint32_t target_index_ = 0;
  std::unordered_map<uint64_t, uint32_t> targets_;  // by handle, in plan_.targets

  memory::RegionRef local_;
  uint64_t local_start_ = 0;
  bool local_takes_reads_ = false;
  uint32_t local_index_ = 0;
  bool alone_ = false;              // no other region touches local_, so it is the answer for all that lies in it
  bool chunked_ = false;            // target_ or local_ is registered in chunks
  std::vector<bool> stands_alone_;  // of plan_.regions; false: not known, or not so

  // The parts that still take pieces, in plan_.parts.
  static constexpr uint32_t kNone = UINT32_MAX;
  std::map<Key, uint32_t> open_;
  uint32_t* part_ = nullptr;  // in open_, for target_index_, local_index_ and op_; null: not looked for
  transport::Op op_ = transport::Op::kRead;
};

}  // namespace moontide::engine
