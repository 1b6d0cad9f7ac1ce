#include "store/segment.h"

#include "base/status.h"

namespace moontide::store {

std::optional<uint64_t> Segment::allocate(uint64_t length) {
  if (length > catalog::kMaxObjectBytes) return std::nullopt;
  auto offset = extents_.allocate(catalog::entry_footprint(length));
  // What lay here before must not look like an entry while the payload comes in.
  if (offset) clear_header(arena_->data() + *offset);
  return offset;
}

MutableBytes Segment::payload(uint64_t offset, uint64_t length) const {
  return {arena_->data() + offset + catalog::kEntryHeaderBytes, length};
}

void Segment::publish(Generation generation, std::string_view key, uint64_t length, uint64_t offset, uint32_t crc) {
  auto [it, fresh] = inventory_.try_emplace(
      generation, Entry{.key = std::string(key), .length = length, .offset = offset, .crc = crc});
  MT_CHECK(fresh, "generation " + generation.text() + " twice");
  write_header(arena_->data() + offset, make_header(generation, key, length, crc));
}

bool Segment::retire(Generation generation) {
  auto it = inventory_.find(generation);
  if (it == inventory_.end()) return false;
  const Entry& entry = it->second;
  clear_header(arena_->data() + entry.offset);
  if (entry.pins == 0) {
    extents_.free(entry.offset);
  } else {
    const uint64_t bytes = catalog::entry_footprint(entry.length);
    held_.emplace(generation, Held{entry.offset, bytes, entry.pins});
    held_bytes_ += bytes;
  }
  inventory_.erase(it);
  return true;
}

bool Segment::pin(Generation generation) {
  auto it = inventory_.find(generation);
  if (it == inventory_.end()) return false;
  ++it->second.pins;
  return true;
}

void Segment::unpin(Generation generation) {
  if (auto it = inventory_.find(generation); it != inventory_.end()) {
    MT_CHECK(it->second.pins > 0, "unpinned more often than pinned: " + generation.text());
    --it->second.pins;
    return;
  }
  auto it = held_.find(generation);
  MT_CHECK(it != held_.end(), "unpinned without a pin: " + generation.text());
  if (--it->second.pins > 0) return;
  extents_.free(it->second.offset);
  held_bytes_ -= it->second.bytes;
  held_.erase(it);
}

void Segment::confirm(Generation generation, catalog::Pin pin, int64_t expires_ns) {
  auto it = inventory_.find(generation);
  if (it == inventory_.end()) return;
  it->second.confirmed = true;
  it->second.pin = pin;
  it->second.expires_ns = expires_ns;
}

const Segment::Entry* Segment::find(Generation generation) const {
  auto it = inventory_.find(generation);
  return it == inventory_.end() ? nullptr : &it->second;
}

}  // namespace moontide::store
