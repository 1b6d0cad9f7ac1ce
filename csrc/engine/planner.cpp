#include "engine/planner.h"

#include <algorithm>

namespace moontide::engine {
namespace {

constexpr size_t kSlicePieces = 256;
constexpr auto kReadOp = static_cast<uint32_t>(transport::Op::kRead);
constexpr auto kWriteOp = static_cast<uint32_t>(transport::Op::kWrite);

uint8_t right_for(uint32_t op) { return op == kReadOp ? memory::kReadable : memory::kWritable; }

}  // namespace

bool Plan::holds(const Engine& engine) const {
  if (error.code != Code::kOk || changes != engine.registry().changes()) return false;
  return std::ranges::all_of(targets, [&](const Target& target) {
    auto link = target.link.lock();
    if (!link || !link->open() || !target.region->live) return false;
    // a path that has become faster or slower is worth other slices; a little of either is not
    const uint64_t now = link->slice_bytes();
    return now >= target.slice_bytes / 2 && now / 2 <= target.slice_bytes;
  });
}

Planner::Planner(Engine& engine, Plan& plan) : engine_(engine), plan_(plan), number_(engine.next_plan()) {
  plan_.changes = engine_.registry().changes();
}

void Planner::add(std::span<const Record> records) {
  plan_.results.assign(records.size(), Code::kOk);
  left_ = records.size();
  for (uint32_t i = 0; i < records.size(); ++i, --left_) {
    if (auto added = add_record(records[i], i); !added) {
      plan_.results[i] = added.error().code;
      if (plan_.error.code == Code::kOk) plan_.error = std::move(added.error());
    }
  }
}

Result<> Planner::add_record(const Record& record, uint32_t index) {
  if (record.handle != handle_ || !target_.region) aim(record.handle);
  if (!is_sound(record)) return std::unexpected(why_unsound(record));
  if (record.length == 0) return {};
  if (link_within_) TRY_VOID(use_target());
  if (!lies_in_local(record)) TRY_VOID(find_local(record));
  choose_part(static_cast<transport::Op>(record.op));
  transport::Piece piece{reinterpret_cast<std::byte*>(record.local), record.offset, record.length};
  while (piece.length > 0) {
    const uint64_t length = contiguous(piece);
    add_piece({piece.local, piece.offset, length}, index);
    piece = {piece.local + length, piece.offset + length, piece.length - length};
  }
  return {};
}

// --- the peer's memory

void Planner::aim(uint64_t handle) {
  target_ = engine_.resolve(handle);
  handle_ = handle;
  link_open_ = target_.link && target_.link->open();
  link_within_ = link_open_ && target_.link->same_instance();
  slice_bytes_ = target_.link ? target_.link->slice_bytes() : 0;
  if (!target_.region) return;
  auto [at, added] = targets_.try_emplace(handle, static_cast<uint32_t>(plan_.targets.size()));
  if (added) plan_.targets.push_back({target_.link, target_.region, slice_bytes_});
  target_index_ = at->second;
  if (local_) look_at_chunks();
}

bool Planner::is_sound(const Record& record) const {
  if ((record.op != kReadOp && record.op != kWriteOp) || record.flags != 0 || !target_.region) return false;
  const transport::RemoteRegion& remote = *target_.region;
  return link_open_ && remote.live && range_inside(record.offset, record.length, remote.length) &&
         (remote.access & right_for(record.op)) != 0;
}

Error Planner::why_unsound(const Record& record) const {
  if (record.op != kReadOp && record.op != kWriteOp)
    return {Code::kInvalid, "unknown operation " + std::to_string(record.op)};
  if (record.flags != 0) return {Code::kInvalid, "unknown flags " + std::to_string(record.flags)};
  if (!target_.region) return {Code::kNotFound, "no remote region with handle " + std::to_string(record.handle)};
  const transport::RemoteRegion& remote = *target_.region;
  if (!link_open_) return {Code::kPeerLost, "the link to the peer is over; open it again"};
  if (!remote.live) return {Code::kStale, "the peer unregistered region " + std::to_string(remote.id)};
  if (!range_inside(record.offset, record.length, remote.length)) {
    return {Code::kDenied, "offset " + std::to_string(record.offset) + " + " + std::to_string(record.length) +
                               " is outside remote region '" + remote.name + "' of " + std::to_string(remote.length) +
                               " bytes"};
  }
  return {Code::kDenied,
          "remote region '" + remote.name + "' is not " + (record.op == kReadOp ? "readable" : "writable")};
}

// --- memory of this process

bool Planner::lies_in_local(const Record& record) const {
  if (!alone_) return false;
  const auto start = reinterpret_cast<uint64_t>(local_->address);
  return record.local >= start && range_inside(record.local - start, record.length, local_->length) &&
         (record.op != kReadOp || memory::suits(*local_, memory::Use::kInto));
}

// Sets local_, and has what the record's range touches pinned.
Result<> Planner::find_local(const Record& record) {
  const bool read = record.op == kReadOp;
  auto& registry = engine_.registry();
  // what a peer may read it can be asked to pull, which is the better way where both are on one host
  auto found = registry.find_local(record.local, record.length, read ? memory::Use::kInto : memory::Use::kGranted);
  if (!found && !read) found = registry.find_local(record.local, record.length);
  if (!found) return std::unexpected(found.error());
  local_ = std::move(*found);
  local_index_ = use(local_);
  if (!stands_alone_[local_index_]) stands_alone_[local_index_] = registry.stands_alone(*local_);
  alone_ = stands_alone_[local_index_];
  look_at_chunks();
  if (alone_) return {};
  // memory may be registered more than once: whoever unregisters any of it waits for this transfer
  registry.touching(record.local, record.length, [this](const memory::RegionRef& region) {
    use(region);
    return true;
  });
  return {};
}

// Nobody else keeps the far end where that is this engine too.
Result<> Planner::use_target() {
  auto region = engine_.registry().by_id(target_.region->id);
  if (!region || region->generation != target_.region->generation)
    return fail(Code::kStale, "region " + std::to_string(target_.region->id) + " was unregistered");
  use(region);
  return {};
}

// Its place in plan_.regions.
uint32_t Planner::use(const memory::RegionRef& region) {
  if (std::exchange(region->planned_by, number_) != number_) {
    region->planned_as = static_cast<uint32_t>(plan_.regions.size());
    plan_.regions.push_back(region);
    stands_alone_.push_back(false);
  }
  return region->planned_as;
}

// --- memory that a device takes in chunks only: no piece crosses from one into the next, on either side

void Planner::look_at_chunks() {
  auto any = [](const auto& keys) {
    return std::ranges::any_of(keys, [](const auto& key) { return key.chunk_bytes != 0; });
  };
  chunked_ = any(target_.region->keys) || any(local_->attached);
}

uint64_t Planner::contiguous(const transport::Piece& piece) const {
  const uint64_t length = std::min(piece.length, slice_bytes_);
  if (!chunked_) return length;
  const auto into = static_cast<uint64_t>(piece.local - local_->address);
  return std::min({length, target_.region->contiguous(piece.offset), transport::contiguous(*local_, into)});
}

bool Planner::chunk_begins(const transport::Piece& piece) const {
  if (!chunked_) return false;
  auto at_start = [](uint64_t offset, const auto& keys) {
    return std::ranges::any_of(keys,
                               [&](const auto& key) { return key.chunk_bytes != 0 && offset % key.chunk_bytes == 0; });
  };
  return at_start(piece.offset, target_.region->keys) ||
         at_start(static_cast<uint64_t>(piece.local - local_->address), local_->attached);
}

// --- parts

void Planner::choose_part(transport::Op op) {
  const Key key{target_index_, local_index_, op};
  if (part_ != nullptr && key == key_) return;
  key_ = key;
  part_ = &open_.try_emplace(key, kNone).first->second;
}

Plan::Part& Planner::next_part() {
  // many pieces are likely where one part is full already, or where nothing is known yet
  const bool many = *part_ != kNone || plan_.parts.empty();
  *part_ = static_cast<uint32_t>(plan_.parts.size());
  Plan::Part& part = plan_.parts.emplace_back();
  part.op = std::get<transport::Op>(key_);
  part.target = target_index_;
  part.local = local_index_;
  if (many) part.pieces.reserve(std::min(left_, kSlicePieces));
  return part;
}

void Planner::add_piece(const transport::Piece& piece, uint32_t index) {
  Plan::Part* part = *part_ == kNone ? &next_part() : &plan_.parts[*part_];
  auto joins = [&] {
    if (part->pieces.empty()) return false;
    const transport::Piece& last = part->pieces.back();
    return last.local + last.length == piece.local && last.offset + last.length == piece.offset && !chunk_begins(piece);
  };
  bool joined = joins();
  if (part->length + piece.length > slice_bytes_ || (!joined && part->pieces.size() >= kSlicePieces)) {
    part = &next_part();
    joined = false;
  }
  if (joined) {
    part->pieces.back().length += piece.length;
  } else {
    part->pieces.push_back(piece);
  }
  part->length += piece.length;
  plan_.bytes += piece.length;
  auto& ranges = part->records;
  if (!ranges.empty() && ranges.back().first + ranges.back().count == index) {
    ++ranges.back().count;
  } else if (ranges.empty() || ranges.back().first + ranges.back().count != index + 1) {
    ranges.push_back({index, 1});
  }
}

}  // namespace moontide::engine
