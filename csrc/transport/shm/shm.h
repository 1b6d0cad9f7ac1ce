// Reads from a peer's arena through a read-only mapping of it. The peer sends each arena's descriptor once; nobody but
// the owner can ever map it writable (memory/arena.h), so writes are the owner's to pull.
#pragma once

#include "transport/transport.h"

namespace moontide::transport {

class ShmTransport final : public Transport {
 public:
  std::string_view name() const override { return "shm"; }
  Result<std::optional<Bytes>> attach(const memory::Region& region, uint64_t offset, uint64_t length) override;
  Result<std::shared_ptr<Endpoint>> connect(LinkContext& link, uint32_t) override;
};

}  // namespace moontide::transport
