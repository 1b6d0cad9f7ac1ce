// One-sided reads between the engines of one simulated world, straight from the other process's memory, as a network
// card or a mapping would do them: no code of the owner runs, the key (region and generation) is checked with each
// access. A read lands in parts, each sampled and stored at its own virtual time, in any order; it may begin long after
// it was posted, and goes on while its poster is paused, has given up or has died, until it is fenced. It can fail
// half-way and is held up, then failed, by a cut between the two hosts.
#pragma once

#include "transport/sim/hub.h"
#include "transport/transport.h"

namespace moontide::transport {

class SimTransport final : public Transport {
 public:
  SimTransport(SimHub& hub, io::SimProcess& process, memory::Registry& registry)
      : hub_(hub), process_(process), number_(hub.attach(registry, process)) {}
  ~SimTransport() override { hub_.detach(number_); }

  std::string_view name() const override { return "sim"; }
  Result<std::optional<Bytes>> attach(const memory::Region& region, uint64_t offset, uint64_t length) override;
  bool same_host_only() const override { return false; }
  Result<std::shared_ptr<Endpoint>> connect(LinkContext& link, uint32_t) override;

 private:
  SimHub& hub_;
  io::SimProcess& process_;
  uint64_t number_;
};

}  // namespace moontide::transport
