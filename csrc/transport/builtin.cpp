#include "transport/builtin.h"

#include "transport/cma/cma.h"
#include "transport/self/self.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace moontide::transport {

TransportList builtin(memory::Registry& registry, const BuiltinChoice& choice) {
  TransportList list;
  list.push_back(std::make_unique<SelfTransport>(registry));
  if (choice.shm) list.push_back(std::make_unique<ShmTransport>());
  if (choice.cma) list.push_back(std::make_unique<CmaTransport>());
  list.push_back(std::make_unique<TcpTransport>(choice.tcp_streams));
  return list;
}

}  // namespace moontide::transport
