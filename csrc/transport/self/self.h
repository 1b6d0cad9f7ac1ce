// Both ends in one process: a plain copy. Who is at the other end is told by the instance id, never by an address.
#pragma once

#include "transport/transport.h"

namespace moontide::transport {

class SelfTransport final : public Transport {
 public:
  // `registry` is that of the engine the transport belongs to.
  explicit SelfTransport(memory::Registry& registry) : registry_(registry) {}
  std::string_view name() const override { return "self"; }
  Result<std::optional<Bytes>> attach(const memory::Region& region, uint64_t offset, uint64_t length) override;
  Result<std::shared_ptr<Endpoint>> connect(LinkContext& link, uint32_t) override;

 private:
  memory::Registry& registry_;
};

}  // namespace moontide::transport
