#include "engine/planner.h"

#include <algorithm>

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
  target_changed_ |= record.handle != last_handle_ || !target_.region;
  if (record.handle != last_handle_ || !target_.region) {
    target_ = engine_.resolve(record.handle);
    last_handle_ = record.handle;
    slice_bytes_ = target_.link ? target_.link->slice_bytes() : 0;
  }
  if (!target_.region) return fail(Code::kNotFound, "no remote region with handle " + std::to_string(record.handle));
  TRY_VOID(check(record, *target_.region));
  if (record.length == 0) return {};
  if (target_.link->same_instance()) TRY_VOID(pin_target(*target_.region));
  const memory::Region* local_before = last_local_.get();
  TRY_VOID(find_local(record));
  if (std::exchange(target_changed_, false) || last_local_.get() != local_before) look_at_chunks();
  transport::Piece piece{reinterpret_cast<std::byte*>(record.local), record.offset, record.length};
  while (piece.length > 0) {
    const uint64_t length = contiguous(piece);
    add_piece(static_cast<transport::Op>(record.op), last_local_, {piece.local, piece.offset, length}, index);
    piece = {piece.local + length, piece.offset + length, piece.length - length};
  }
  return {};
}

Result<> Planner::find_local(const Record& record) {
  const bool read = record.op == static_cast<uint32_t>(transport::Op::kRead);
  const auto start = reinterpret_cast<uint64_t>(last_local_ ? last_local_->address : nullptr);
  const bool inside = alone_ && record.local >= start &&
                      range_inside(record.local - start, record.length, last_local_->length) &&
                      (!read || memory::suits(*last_local_, memory::Use::kInto));
  if (inside) return {};
  auto& registry = engine_.registry();
  // what a peer may read it can be asked to pull, which is the better way where both are on one host
  auto found = registry.find_local(record.local, record.length, read ? memory::Use::kInto : memory::Use::kGranted);
  if (!found && !read) found = registry.find_local(record.local, record.length);
  if (!found) return std::unexpected(found.error());
  last_local_ = *found;
  alone_ = registry.stands_alone(*last_local_);
  if (alone_) {
    transfer_.pin(last_local_);
    return {};
  }
  // memory may be registered more than once: whoever unregisters any of it waits for this transfer
  registry.touching(record.local, record.length, [this](const memory::RegionRef& region) {
    transfer_.pin(region);
    return true;
  });
  return {};
}

// Nobody else keeps the far end where that is this engine too.
Result<> Planner::pin_target(const transport::RemoteRegion& remote) {
  auto region = engine_.registry().by_id(remote.id);
  if (!region || region->generation != remote.generation)
    return fail(Code::kStale, "region " + std::to_string(remote.id) + " was unregistered");
  transfer_.pin(region);
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

// --- memory that a device takes in chunks only: no piece crosses from one into the next, on either side

void Planner::look_at_chunks() {
  auto any = [](const auto& keys) {
    return std::ranges::any_of(keys, [](const auto& key) { return key.chunk_bytes != 0; });
  };
  chunked_ = any(target_.region->keys) || any(last_local_->attached);
}

uint64_t Planner::contiguous(const transport::Piece& piece) const {
  const uint64_t length = std::min(piece.length, slice_bytes_);
  if (!chunked_) return length;
  const auto into = static_cast<uint64_t>(piece.local - last_local_->address);
  return std::min({length, target_.region->contiguous(piece.offset), transport::contiguous(*last_local_, into)});
}

bool Planner::chunk_begins(const transport::Piece& piece) const {
  if (!chunked_) return false;
  auto at_start = [](uint64_t offset, const auto& keys) {
    return std::ranges::any_of(keys,
                               [&](const auto& key) { return key.chunk_bytes != 0 && offset % key.chunk_bytes == 0; });
  };
  return at_start(piece.offset, target_.region->keys) ||
         at_start(static_cast<uint64_t>(piece.local - last_local_->address), last_local_->attached);
}

void Planner::add_piece(transport::Op op, const memory::RegionRef& local, transport::Piece piece, uint32_t index) {
  Transfer::Part& part = part_for(op, local);
  auto& pieces = part.slice.pieces;
  bool room = part.slice.length + piece.length <= slice_bytes_;
  bool joins = !pieces.empty() && pieces.back().local + pieces.back().length == piece.local &&
               pieces.back().offset + pieces.back().length == piece.offset && !chunk_begins(piece);
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
  open_.push_back(&part);
  return part;
}

}  // namespace moontide::engine
