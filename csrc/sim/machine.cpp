#include "sim/machine.h"

#include "transport/self/self.h"
#include "transport/sim/sim.h"
#include "transport/tcp/tcp.h"

namespace moontide::sim {

engine::TransportFactory Machine::transports() {
  return [this](memory::Registry& registry, const engine::EngineOptions& options) {
    transport::TransportList list;
    list.push_back(std::make_unique<transport::SelfTransport>(registry));
    if (universe_.paths != Paths::kTcp) {
      list.push_back(std::make_unique<transport::SimTransport>(universe_.hub, process_, registry));
    }
    if (universe_.paths != Paths::kOneSided)
      list.push_back(std::make_unique<transport::TcpTransport>(options.tcp_streams));
    return list;
  };
}

engine::EngineOptions Machine::engine_options() const {
  engine::EngineOptions options;
  options.listen = "sim:" + process_.host() + ":0";
  for (size_t i = 0; devices_ > 1 && i < devices_; ++i) {
    options.rails.push_back("sim:" + process_.host() + (i > 0 ? "~" + std::to_string(i) : "") + ":0");
  }
  options.local_reads = engine::LocalReads::kOff;  // no local sockets in this world
  options.boot_id = process_.host();
  return options;
}

Result<std::unique_ptr<engine::Engine>> Machine::make_engine() {
  return engine::Engine::create(process_, network_, engine_options(), transports());
}

}  // namespace moontide::sim
