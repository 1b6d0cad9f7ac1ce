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
  clear_header(arena_->data() + it->second.offset);
  extents_.free(it->second.offset);
  inventory_.erase(it);
  return true;
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
