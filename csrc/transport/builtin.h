// The one table of transports, best first.
#pragma once

#include "transport/transport.h"

namespace moontide::transport {

struct BuiltinChoice {
  bool shm = true;
  bool cma = true;
  uint32_t tcp_streams = 1;
};

TransportList builtin(memory::Registry& registry, const BuiltinChoice& choice);

}  // namespace moontide::transport
