// TCP: requests and payload over a few data streams per link, opened when first needed. Writes are received straight
// into the owner's region by the owner's own reactor, which checks place and right; reads are asked for and land
// straight in the slice.
#pragma once

#include "transport/transport.h"

namespace moontide::transport {

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(uint32_t streams) : streams_(streams) {}
  std::string_view name() const override { return "tcp"; }
  Result<std::optional<Bytes>> attach(const memory::Region&, uint64_t, uint64_t) override { return Bytes{}; }
  bool same_host_only() const override { return false; }
  bool per_rail() const override { return true; }
  Result<std::shared_ptr<Endpoint>> connect(LinkContext& link, uint32_t rail) override;

 private:
  uint32_t streams_;
};

}  // namespace moontide::transport
