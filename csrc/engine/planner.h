// Turns a batch of records into parts: checks every record here, joins neighbours that are contiguous on both sides,
// cuts what is longer than a slice.
#pragma once

#include "engine/engine.h"

namespace moontide::engine {

class Planner {
 public:
  Planner(Engine& engine, Transfer& transfer) : engine_(engine), transfer_(transfer) {}
  void add(std::span<const Record> records);

 private:
  Result<> add_record(const Record& record, uint32_t index);
  Result<> check(const Record& record, const transport::RemoteRegion& remote) const;
  Result<> pin_target(const transport::RemoteRegion& remote);
  // Sets last_local_ and pins what the record's range touches.
  Result<> find_local(const Record& record);
  void look_at_chunks();
  uint64_t contiguous(const transport::Piece& piece) const;
  bool chunk_begins(const transport::Piece& piece) const;
  Transfer::Part& part_for(transport::Op op, const memory::RegionRef& local);
  void add_piece(transport::Op op, const memory::RegionRef& local, transport::Piece piece, uint32_t index);

  Engine& engine_;
  Transfer& transfer_;
  uint64_t last_handle_ = 0;
  Engine::Target target_;
  uint64_t slice_bytes_ = 0;     // at most, for that target
  bool target_changed_ = false;  // since chunks were looked at
  memory::RegionRef last_local_;
  bool chunked_ = false;  // target_ or last_local_ is registered in chunks
  bool alone_ = false;    // no other region touches last_local_, so it is the answer for all that lies in it
  // the parts that still take pieces, one per op and remote region; the latest last
  std::vector<Transfer::Part*> open_;
};

}  // namespace moontide::engine
