#include "io/sim_network.h"

#include <algorithm>

#include "io/sim_stream.h"

namespace moontide::io {
namespace {

constexpr int64_t kFirstRetryNs = 200 * kMillisecond;

struct HostPort {
  std::string host;
  std::string port;
};

Result<HostPort> parse(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (!address.starts_with("sim:") || colon < 5 || colon + 1 >= address.size()) {
    return fail(Code::kInvalid, "address '" + address + "' is not sim:HOST:PORT");
  }
  return HostPort{address.substr(4, colon - 4), address.substr(colon + 1)};
}

}  // namespace

class SimListener final : public Listener {
 public:
  SimListener(SimFabric& fabric, SimProcess& process, std::shared_ptr<SimNetwork::Registry> registry,
              std::string address, Network::Accepted accepted)
      : process(process),
        registry(std::move(registry)),
        fabric_(fabric),
        address_(std::move(address)),
        accepted_(std::make_shared<Network::Accepted>(std::move(accepted))) {
    id_ = this->registry->next_id++;
    this->registry->listeners[id_] = this;
    fabric_.listeners_[address_] = this;
  }
  ~SimListener() override { unlink(); }
  std::string address() const override { return address_; }

  void unlink() {
    registry->listeners.erase(id_);
    const auto found = fabric_.listeners_.find(address_);
    if (found != fabric_.listeners_.end() && found->second == this) fabric_.listeners_.erase(found);
    accepted_.reset();
  }

  void accept(std::unique_ptr<Stream> stream) {
    process.deliver([weak = std::weak_ptr(accepted_), stream = std::move(stream)]() mutable {
      if (const auto accepted = weak.lock()) (*accepted)(std::move(stream));
    });
  }

  SimProcess& process;
  std::shared_ptr<SimNetwork::Registry> registry;

 private:
  SimFabric& fabric_;
  const std::string address_;
  uint64_t id_ = 0;
  std::shared_ptr<Network::Accepted> accepted_;
};

// --- SimFabric ---

void SimFabric::cut(const std::string& from, const std::string& to) { cuts_[{from, to}] = true; }

void SimFabric::heal(const std::string& from, const std::string& to) {
  cuts_.erase({from, to});
  retry();
}

void SimFabric::heal_all() {
  cuts_.clear();
  retry();
}

void SimFabric::retry() {
  std::erase_if(ways_, [](const std::weak_ptr<SimWay>& way) { return way.expired(); });
  for (const auto& weak : std::vector(ways_)) {
    if (const auto way = weak.lock()) way->retry();
  }
}

int64_t SimFabric::delay_ns(const std::string& from, const std::string& to) {
  const auto found = link_delays_.find({from, to});
  const Delays delays = found != link_delays_.end() ? found->second : delays_;
  const auto spread = static_cast<uint64_t>(std::max<int64_t>(delays.most_ns - delays.least_ns, 1));
  return delays.least_ns + static_cast<int64_t>(world_.random().below(spread));
}

// --- SimNetwork ---

SimNetwork::SimNetwork(SimFabric& fabric, SimProcess& process)
    : fabric_(fabric), process_(process), registry_(std::make_shared<Registry>()) {
  fabric_.dark_.erase(process.host());
  process.on_crash([&fabric, &process, registry = registry_] {
    if (registry->dark) fabric.dark_[process.host()] = true;
    for (const auto& [id, listener] : std::map(registry->listeners)) listener->unlink();
    for (const auto& [id, stream] : std::map(registry->streams)) stream->process_died(registry->dark);
  });
}

SimNetwork::~SimNetwork() = default;

Result<std::unique_ptr<Listener>> SimNetwork::listen(const std::string& address, Accepted accepted) {
  TRY(HostPort wanted, parse(address));
  if (wanted.host != process_.host() && !wanted.host.starts_with(process_.host() + "~")) {
    return fail(Code::kInvalid, "address '" + address + "' is not of host " + process_.host());
  }
  if (wanted.port == "0") wanted.port = std::to_string(fabric_.next_port_++);
  const std::string full = "sim:" + wanted.host + ":" + wanted.port;
  if (fabric_.listeners_.contains(full)) return fail(Code::kUnavailable, "cannot listen on " + full + ": in use");
  return std::unique_ptr<Listener>(
      std::make_unique<SimListener>(fabric_, process_, registry_, full, std::move(accepted)));
}

// One connect(); it goes on without the network that began it.
struct SimNetwork::Attempt : std::enable_shared_from_this<SimNetwork::Attempt> {
  Attempt(SimFabric& fabric, SimProcess& process, std::shared_ptr<Registry> registry, std::string address,
          Connected connected)
      : fabric(fabric),
        process(process),
        registry(std::move(registry)),
        address(std::move(address)),
        connected(std::move(connected)) {}

  SimFabric& fabric;
  SimProcess& process;
  std::shared_ptr<Registry> registry;
  const std::string address;
  std::string from;  // the host, or the device of it
  std::string host;
  Connected connected;
  TimerId timeout = 0;
  bool over = false;

  // In a turn of the process.
  void finish(Result<std::unique_ptr<Stream>> outcome) {
    if (std::exchange(over, true)) return;
    process.cancel(timeout);
    Connected call = std::move(connected);
    call(std::move(outcome));
  }
  void refuse(Code code, const std::string& why) { finish(fail(code, "cannot connect to " + address + ": " + why)); }

  // One SYN: it is lost while either direction is cut or the host is dark, and sent again later.
  void knock(int64_t again_ns) {
    fabric.world().after(fabric.delay_ns(from, host), [self = shared_from_this(), again_ns] {
      if (self->over || !self->process.alive()) return;
      self->knocked(again_ns);
    });
  }

  void knocked(int64_t again_ns) {
    if (fabric.is_cut(from, host) || fabric.is_cut(host, from) || fabric.dark_.contains(host)) {
      fabric.world().after(again_ns, [self = shared_from_this(), again_ns] {
        if (!self->over && self->process.alive()) self->knock(again_ns * 2);
      });
      return;
    }
    const int64_t back_ns = fabric.delay_ns(host, from);
    const auto found = fabric.listeners_.find(address);
    if (found == fabric.listeners_.end()) {
      fabric.world().after(back_ns, [self = shared_from_this()] {
        self->process.deliver([self] { self->refuse(Code::kUnavailable, "refused"); });
      });
      return;
    }
    SimListener& listener = *found->second;
    auto outward = std::make_shared<SimWay>(fabric, from, host);
    auto inward = std::make_shared<SimWay>(fabric, host, from);
    fabric.ways_.push_back(outward);
    fabric.ways_.push_back(inward);
    auto client = std::make_unique<SimStream>(fabric, process, registry, outward, inward);
    listener.accept(std::make_unique<SimStream>(fabric, listener.process, listener.registry, inward, outward));
    fabric.world().after(back_ns, [self = shared_from_this(), client = std::move(client)]() mutable {
      self->process.deliver([self, client = std::move(client)]() mutable { self->finish(std::move(client)); });
    });
  }
};

void SimNetwork::connect_from(const std::string& from, const std::string& address, int64_t timeout_ns,
                              Connected connected) {
  auto attempt = std::make_shared<Attempt>(fabric_, process_, registry_, address, std::move(connected));
  auto parsed = parse(address);
  if (!parsed) {
    process_.post([attempt, error = parsed.error()] { attempt->finish(std::unexpected(error)); });
    return;
  }
  attempt->host = parsed->host;
  auto source = parse(from);
  attempt->from = source ? source->host : process_.host();
  attempt->timeout = process_.call_after(timeout_ns, [attempt] { attempt->refuse(Code::kTimedOut, "no answer"); });
  attempt->knock(kFirstRetryNs);
}

}  // namespace moontide::io
