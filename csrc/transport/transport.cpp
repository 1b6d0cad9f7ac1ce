#include "transport/transport.h"

namespace moontide::transport {

const Bytes* RemoteRegion::key(std::string_view transport) const {
  for (const auto& [name, bytes] : keys) {
    if (name == transport) return &bytes;
  }
  return nullptr;
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
