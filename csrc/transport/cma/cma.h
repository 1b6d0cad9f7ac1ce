// Cross-memory attach: process_vm_readv from a peer process of this host. Reads only, and only from regions that the
// peer granted; each batch looks first whether the process is still the one of the handshake (a pid is no identity).
#pragma once

#include "transport/transport.h"

namespace moontide::transport {

class CmaTransport final : public Transport {
 public:
  CmaTransport();
  std::string_view name() const override { return "cma"; }
  Result<std::optional<Bytes>> attach(const memory::Region& region, uint64_t offset, uint64_t length) override;
  Result<std::shared_ptr<Endpoint>> connect(LinkContext& link, uint32_t) override;

 private:
  std::unique_ptr<uint64_t> probe_word_;  // random; a peer that can read it reaches this process and no other
};

}  // namespace moontide::transport
