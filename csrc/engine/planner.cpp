#include "engine/planner.h"

namespace moontide::engine {
namespace {

constexpr size_t kSlicePieces = 256;

}  // namespace

void Planner::add(std::span<const Record> records) {
  for (uint32_t i = 0; i < records.size(); ++i) {
    if (auto added = add_record(records[i], i); !added) {
      transfer_.results_[i] = added.error().code;
      if (transfer_.error_.code == Code::kOk) transfer_.error_ = added.error();
    }
  }
}

Result<> Planner::add_record(const Record& record, uint32_t index) {
  if (record.op != 1 && record.op != 2) return fail(Code::kInvalid, "unknown operation " + std::to_string(record.op));
  if (record.flags != 0) return fail(Code::kInvalid, "unknown flags " + std::to_string(record.flags));
  if (record.handle != last_handle_ || !target_.region) {
    target_ = engine_.resolve(record.handle);
    last_handle_ = record.handle;
    slice_bytes_ = target_.link ? target_.link->slice_bytes() : 0;
  }
  if (!target_.region) return fail(Code::kNotFound, "no remote region with handle " + std::to_string(record.handle));
  TRY_VOID(check(record, *target_.region));
  if (record.length == 0) return {};
  auto start = reinterpret_cast<uint64_t>(last_local_ ? last_local_->address : nullptr);
  if (!last_local_ || record.local < start || !range_inside(record.local - start, record.length, last_local_->length)) {
    TRY(last_local_, engine_.registry().find_local(record.local, record.length));
  }
  if (record.op == static_cast<uint32_t>(transport::Op::kRead) && (last_local_->access & memory::kSource) != 0) {
    return fail(Code::kDenied, "the local memory is read-only");
  }
  transport::Piece piece{reinterpret_cast<std::byte*>(record.local), record.offset, record.length};
  while (piece.length > slice_bytes_) {
    add_piece(static_cast<transport::Op>(record.op), last_local_, {piece.local, piece.offset, slice_bytes_}, index);
    piece = {piece.local + slice_bytes_, piece.offset + slice_bytes_, piece.length - slice_bytes_};
  }
  add_piece(static_cast<transport::Op>(record.op), last_local_, piece, index);
  return {};
}

Result<> Planner::check(const Record& record, const transport::RemoteRegion& remote) const {
  if (!target_.link || !target_.link->open())
    return fail(Code::kPeerLost, "the link to the peer is over; open it again");
  if (!remote.live) return fail(Code::kStale, "the peer unregistered region " + std::to_string(remote.id));
  if (!range_inside(record.offset, record.length, remote.length)) {
    return fail(Code::kDenied, "offset " + std::to_string(record.offset) + " + " + std::to_string(record.length) +
                                   " is outside remote region '" + remote.name + "' of " +
                                   std::to_string(remote.length) + " bytes");
  }
  bool read = record.op == static_cast<uint32_t>(transport::Op::kRead);
  if ((remote.access & (read ? memory::kReadable : memory::kWritable)) == 0) {
    return fail(Code::kDenied, "remote region '" + remote.name + "' is not " + (read ? "readable" : "writable"));
  }
  return {};
}

void Planner::add_piece(transport::Op op, const memory::RegionRef& local, transport::Piece piece, uint32_t index) {
  Transfer::Part& part = part_for(op, local);
  auto& pieces = part.slice.pieces;
  bool room = part.slice.length + piece.length <= slice_bytes_;
  bool joins = !pieces.empty() && pieces.back().local + pieces.back().length == piece.local &&
               pieces.back().offset + pieces.back().length == piece.offset;
  if (!room || (!joins && pieces.size() >= kSlicePieces)) {
    std::erase(open_, &part);
    return add_piece(op, local, piece, index);
  }
  if (joins) {
    pieces.back().length += piece.length;
  } else {
    pieces.push_back(piece);
  }
  part.slice.length += piece.length;
  transfer_.bytes_total_ += piece.length;
  auto& ranges = part.records;
  if (!ranges.empty() && ranges.back().first + ranges.back().count == index) {
    ++ranges.back().count;
  } else if (ranges.empty() || ranges.back().first + ranges.back().count != index + 1) {
    ranges.push_back({index, 1});
  }
}

Transfer::Part& Planner::part_for(transport::Op op, const memory::RegionRef& local) {
  // a part's local memory lies in one region, so that the peer can be asked to pull from it
  for (auto at = open_.rbegin(); at != open_.rend(); ++at) {
    Transfer::Part& part = **at;
    if (part.slice.remote == target_.region && part.slice.op == op && part.local == local) return part;
  }
  Transfer::Part& part = transfer_.parts_.emplace_back();
  part.slice.op = op;
  part.slice.remote = target_.region;
  part.slice.owner = &transfer_;
  part.slice.index = transfer_.parts_.size() - 1;
  part.link = target_.link;
  part.local = local;
  transfer_.pin(local);
  open_.push_back(&part);
  return part;
}

}  // namespace moontide::engine
