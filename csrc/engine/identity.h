// Who is at the two ends of a link.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/id.h"
#include "io/network.h"
#include "memory/generation_table.h"

namespace moontide::engine {

struct LinkIdentity {
  uint64_t number = 0;   // local, never used twice
  uint16_t version = 0;  // of the protocol, as agreed
  InstanceId token;      // shared by both sides
  InstanceId peer;
  std::string peer_address;                    // where the peer listens
  std::vector<std::string> rails, peer_rails;  // addresses of the devices here and there; empty: peer_address alone
  bool initiator = false;
  bool same_host = false;
  bool same_engine = false;  // both ends are this engine: known by the stream, never by what a peer says
  std::shared_ptr<memory::GenerationView> generations;
  io::PeerCredentials credentials;

  // Pairs of devices: the first with the first, and so on; the shorter list starts again.
  uint32_t rail_count() const {
    if (rails.empty() || peer_rails.empty() || same_host || same_engine) return 1;
    return static_cast<uint32_t>(std::max(rails.size(), peer_rails.size()));
  }
  std::string rail_from(uint32_t rail) const { return rail_count() > 1 ? rails[rail % rails.size()] : std::string(); }
  const std::string& rail_to(uint32_t rail) const {
    return rail_count() > 1 ? peer_rails[rail % peer_rails.size()] : peer_address;
  }
};

}  // namespace moontide::engine
