#include "transport/transport.h"

#include <algorithm>

namespace moontide::transport {

const Bytes* RemoteRegion::key(std::string_view transport, uint64_t offset) const {
  for (const RemoteKey& key : keys) {
    if (key.transport != transport) continue;
    const uint64_t chunk = key.chunk_bytes == 0 ? 0 : offset / key.chunk_bytes;
    return chunk < key.chunks.size() ? &key.chunks[chunk] : nullptr;
  }
  return nullptr;
}

uint64_t RemoteRegion::contiguous(uint64_t offset) const {
  uint64_t least = length - offset;
  for (const RemoteKey& key : keys) {
    if (key.chunk_bytes != 0) least = std::min(least, key.chunk_bytes - offset % key.chunk_bytes);
  }
  return least;
}

uint64_t contiguous(const memory::Region& region, uint64_t offset) {
  uint64_t least = region.length - offset;
  for (const memory::Attachment& attached : region.attached) {
    if (attached.chunk_bytes != 0) least = std::min(least, attached.chunk_bytes - offset % attached.chunk_bytes);
  }
  return least;
}

Result<> Endpoint::copy(const RemoteRegion&, Op, std::span<const Piece>) {
  return fail(Code::kUnsupported, std::string(name()) + " does not copy synchronously");
}

void Endpoint::post(Slice& slice) {
  slice.owner->completed(slice, fail(Code::kUnsupported, std::string(name()) + " takes no slices"));
}

void Endpoint::cancel(Slice&) {}
void Endpoint::message(Bytes, std::vector<io::Fd>) {}
void Endpoint::accepted(uint64_t, std::unique_ptr<io::Stream>) {}
void Endpoint::fence_stream(uint64_t) {}

}  // namespace moontide::transport
