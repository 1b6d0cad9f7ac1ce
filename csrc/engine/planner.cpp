#include "engine/planner.h"

#include <algorithm>

namespace moontide::engine {
namespace {

constexpr size_t kSlicePieces = 256;
constexpr auto kReadOp = static_cast<uint32_t>(transport::Op::kRead);
constexpr auto kWriteOp = static_cast<uint32_t>(transport::Op::kWrite);

uint8_t right_for(uint32_t op) { return op == kReadOp ? memory::kReadable : memory::kWritable; }

}  // namespace

std::optional<uint64_t> span_bytes(const Record& record, uint64_t stride) {
  if (record.count == 1) return record.length;
  if (record.count == 0 || record.length == 0) return 0;
  uint64_t between = 0, all = 0;
  if (__builtin_mul_overflow(record.count - 1, stride, &between)) return std::nullopt;
  if (__builtin_add_overflow(between, record.length, &all)) return std::nullopt;
  return all;
}

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
  for (uint32_t i = 0; i < records.size(); ++i) {
    ahead_ = records.size() - i;
    if (auto added = add_record(records[i], i); !added) {
      plan_.results[i] = added.error().code;
      if (plan_.error.code == Code::kOk) plan_.error = std::move(added.error());
    }
  }
}

Result<> Planner::add_record(const Record& record, uint32_t index) {
  if (record.handle != handle_ || !target_.region) aim(record.handle);
  if (!is_sound(record)) return std::unexpected(why_unsound(record));
  if (record.length == 0 || record.count == 0) return {};
  if (keep_target_) TRY_VOID(use_target());
  if (record.count > 1) return add_strided(record, index);
  const bool read = record.op == kReadOp;
  if (!lies_in_local(record.local, record.length, read)) TRY_VOID(find_local(record.local, record.length, read));
  choose_part(static_cast<transport::Op>(record.op));
  add_element({reinterpret_cast<std::byte*>(record.local), record.offset, record.length}, index);
  return {};
}

Result<> Planner::add_strided(const Record& record, uint32_t index) {
  const uint64_t span = *span_bytes(record, record.local_stride);
  const bool read = record.op == kReadOp;
  if (!lies_in_local(record.local, span, read)) TRY_VOID(find_local(record.local, span, read));
  choose_part(static_cast<transport::Op>(record.op));
  transport::Piece piece{reinterpret_cast<std::byte*>(record.local), record.offset, record.length};
  if (record.local_stride == record.length && record.remote_stride == record.length) {
    piece.length = span;  // contiguous on both sides: one element
    add_element(piece, index);
    return {};
  }
  if (record.count > kElementsMax - elements_)
    return fail(Code::kTooLarge, "more than " + std::to_string(kElementsMax) + " elements with strides in one batch");
  elements_ += record.count;
  ahead_ = std::max(ahead_, record.count);
  for (uint64_t i = 0; i < record.count; ++i) {
    add_element(piece, index);
    piece.local += record.local_stride;
    piece.offset += record.remote_stride;
  }
  return {};
}

void Planner::add_cut(transport::Piece piece, uint32_t index) {
  while (true) {
    const uint64_t length = contiguous(piece);
    add_piece({piece.local, piece.offset, length}, index);
    if (length == piece.length) return;
    piece = {piece.local + length, piece.offset + length, piece.length - length};
  }
}

// --- the peer's memory

void Planner::aim(uint64_t handle) {
  target_ = engine_.resolve(handle);
  handle_ = handle;
  link_open_ = target_.link && target_.link->open();
  keep_target_ = link_open_ && target_.link->same_instance();
  slice_bytes_ = target_.link ? target_.link->slice_bytes() : 0;
  if (!target_.region) return;
  auto [at, added] = targets_.try_emplace(handle, static_cast<uint32_t>(plan_.targets.size()));
  if (added) plan_.targets.push_back({target_.link, target_.region, slice_bytes_});
  target_index_ = at->second;
  part_ = nullptr;
  if (local_) look_at_chunks();
}

bool Planner::is_sound(const Record& record) const {
  if ((record.op != kReadOp && record.op != kWriteOp) || record.flags != 0 || !target_.region) return false;
  const transport::RemoteRegion& remote = *target_.region;
  if (!link_open_ || !remote.live || (remote.access & right_for(record.op)) == 0) return false;
  return record.count == 1 ? range_inside(record.offset, record.length, remote.length) : is_sound_strided(record);
}

Error Planner::why_unsound(const Record& record) const {
  if (record.op != kReadOp && record.op != kWriteOp)
    return {Code::kInvalid, "unknown operation " + std::to_string(record.op)};
  if (record.flags != 0) return {Code::kInvalid, "unknown flags " + std::to_string(record.flags)};
  if (!target_.region) return {Code::kNotFound, "no remote region with handle " + std::to_string(record.handle)};
  const transport::RemoteRegion& remote = *target_.region;
  if (!link_open_) return {Code::kPeerLost, "the link to the peer is over; open it again"};
  if (!remote.live) return {Code::kStale, "the peer unregistered region " + std::to_string(remote.id)};
  if (record.count != 1 && !is_sound_strided(record)) return why_unsound_strided(record);
  if (record.count == 1 && !range_inside(record.offset, record.length, remote.length)) {
    return {Code::kDenied, "offset " + std::to_string(record.offset) + " + " + std::to_string(record.length) +
                               " is outside remote region '" + remote.name + "' of " + std::to_string(remote.length) +
                               " bytes"};
  }
  return {Code::kDenied,
          "remote region '" + remote.name + "' is not " + (record.op == kReadOp ? "readable" : "writable")};
}

bool Planner::is_sound_strided(const Record& record) const {
  const uint64_t written_stride = record.op == kReadOp ? record.local_stride : record.remote_stride;
  if (record.count > 1 && written_stride < record.length) return false;
  auto there = span_bytes(record, record.remote_stride);
  return there && span_bytes(record, record.local_stride) &&
         range_inside(record.offset, *there, target_.region->length);
}

Error Planner::why_unsound_strided(const Record& record) const {
  const bool read = record.op == kReadOp;
  const uint64_t written_stride = read ? record.local_stride : record.remote_stride;
  if (record.count > 1 && written_stride < record.length) {
    return {Code::kInvalid, std::string(read ? "a local" : "a remote") + " stride of " +
                                std::to_string(written_stride) + " bytes: elements of " +
                                std::to_string(record.length) + " bytes would overlap where they are put"};
  }
  const std::string what = std::to_string(record.count) + " elements of " + std::to_string(record.length) + " bytes, ";
  if (!span_bytes(record, record.local_stride))
    return {Code::kInvalid, what + std::to_string(record.local_stride) + " apart here, reach beyond 2^64"};
  return {Code::kDenied, what + std::to_string(record.remote_stride) + " apart from offset " +
                             std::to_string(record.offset) + " on, are not inside remote region '" +
                             target_.region->name + "' of " + std::to_string(target_.region->length) + " bytes"};
}

// --- memory of this process

// Sets local_, and has what the range touches pinned.
Result<> Planner::find_local(uint64_t address, uint64_t length, bool read) {
  auto& registry = engine_.registry();
  // what a peer may read it can be asked to pull, which is the better way where both are on one host
  auto found = registry.find_local(address, length, read ? memory::Use::kInto : memory::Use::kGranted);
  if (!found && !read) found = registry.find_local(address, length);
  if (!found) return std::unexpected(found.error());
  local_ = std::move(*found);
  local_start_ = reinterpret_cast<uint64_t>(local_->address);
  local_takes_reads_ = memory::suits(*local_, memory::Use::kInto);
  local_index_ = use(local_);
  part_ = nullptr;
  if (!stands_alone_[local_index_]) stands_alone_[local_index_] = registry.stands_alone(*local_);
  alone_ = stands_alone_[local_index_];
  look_at_chunks();
  if (alone_) return {};
  // memory may be registered more than once: whoever unregisters any of it waits for this transfer
  registry.touching(address, length, [this](const memory::RegionRef& region) {
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
  keep_target_ = false;
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

uint32_t* Planner::find_part(transport::Op op) {
  op_ = op;
  return &open_.try_emplace({target_index_, local_index_, op}, kNone).first->second;
}

Plan::Part& Planner::next_part() {
  // many pieces are likely where one part is full already, or where nothing is known yet
  const bool many = *part_ != kNone || plan_.parts.empty();
  *part_ = static_cast<uint32_t>(plan_.parts.size());
  Plan::Part& part = plan_.parts.emplace_back();
  part.op = op_;
  part.target = target_index_;
  part.local = local_index_;
  if (many) part.pieces.reserve(std::min<uint64_t>(ahead_, kSlicePieces));
  return part;
}

void Planner::add_piece(const transport::Piece& piece, uint32_t index) {
  Plan::Part* part = *part_ == kNone ? &next_part() : &plan_.parts[*part_];
  transport::Piece* last = part->pieces.empty() ? nullptr : &part->pieces.back();
  bool joins = last != nullptr && last->offset + last->length == piece.offset &&
               last->local + last->length == piece.local && !chunk_begins(piece);
  if (part->length + piece.length > slice_bytes_ || (!joins && part->pieces.size() >= kSlicePieces)) {
    part = &next_part();
    joins = false;
  }
  if (joins) {
    last->length += piece.length;
  } else {
    part->pieces.push_back(piece);
  }
  part->length += piece.length;
  plan_.bytes += piece.length;
  if (!part->records.empty()) {
    Plan::Range& range = part->records.back();
    if (range.first + range.count == index + 1) return;
    if (range.first + range.count == index) {
      ++range.count;
      return;
    }
  }
  part->records.push_back({index, 1});
}

}  // namespace moontide::engine
