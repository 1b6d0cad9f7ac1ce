// The transfer engine's façade: regions, peers, transfers, holds. One engine has one listening address and one
// identity.
//
// Thread: everything under one lock (io::Driver in a process, nothing in the simulation), except Transfer's synchronous
// work, see transfer.h. Callbacks run in turns of the reactor or inside the call that made them due.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/claims.h"
#include "engine/holds.h"
#include "engine/leaves.h"
#include "engine/link.h"
#include "engine/mailbox.h"
#include "engine/observer.h"
#include "engine/options.h"
#include "engine/pull.h"
#include "engine/transfer.h"
#include "engine/unclaimed.h"
#include "io/network.h"
#include "memory/region.h"
#include "transport/transport.h"

namespace moontide::engine {

using TransportFactory =
    std::function<transport::TransportList(memory::Registry& registry, const EngineOptions& options)>;

struct EngineCounters {
  uint64_t transfers = 0, transfers_failed = 0, bytes_read = 0, bytes_written = 0;
  uint64_t retries = 0, links_opened = 0, links_lost = 0, refused = 0, pulls_served = 0;
  uint64_t paths_failed = 0, control_moves = 0;
  std::map<std::string, uint64_t, std::less<>> bytes_by_path;

  void count_path(std::string_view path, uint64_t bytes) {
    auto found = bytes_by_path.find(path);
    if (found == bytes_by_path.end()) found = bytes_by_path.emplace(path, 0).first;
    found->second += bytes;
  }
};

class Opener;

class Engine {
 public:
  // Listens at options.listen. `network` must outlive the engine. Errors as Network::listen.
  static Result<std::unique_ptr<Engine>> create(io::Reactor& reactor, io::Network& network, EngineOptions options,
                                                TransportFactory transports);
  ~Engine();

  // Ends everything that others see of it; what is left is to be destroyed, once nothing writes its memory any more.
  void shut();

  const std::string& address() const { return address_; }
  const InstanceId& instance() const { return instance_; }
  const EngineOptions& options() const { return options_; }

  // --- regions ---
  // Attaches it to every transport, in chunks where one takes no more at a time: all of it or, with the error of the
  // transport that refused, nothing. Other errors as memory::Registry::add.
  Result<memory::RegionRef> add_region(std::byte* address, uint64_t length, uint8_t access, std::string name,
                                       std::shared_ptr<memory::Arena> arena = nullptr);
  // See memory::Registry::remove.
  Result<> remove_region(uint32_t id, std::move_only_function<void()> on_quiet);
  memory::Registry& registry() { return *registry_; }
  const memory::Registry& registry() const { return *registry_; }

  // --- peers ---
  using Opened = std::move_only_function<void(Result<LinkRef>)>;
  // Opens a link to the engine at `address`, or gives the one that is open to it, once its peer has shown that it is
  // there. `opened` runs once, in a later turn.
  void open(const std::string& address, int64_t timeout_ns, Opened opened);
  // How near the engine at `address` is, as far as this one can tell without asking: to choose between equals.
  enum class Distance : uint8_t { kHere, kHost, kElsewhere };
  Distance distance(const std::string& address) const;
  // A number for `Record::handle`, valid while link and region are. 0: no such region.
  uint64_t handle(const LinkRef& link, uint32_t region);

  // Requests of peers with `type` >= kApplicationFirst.
  using Handler = std::function<void(const LinkRef& link, rpc::Incoming request, rpc::Responder responder)>;
  void serve(uint16_t type, Handler handler) { handlers_[type] = std::move(handler); }

  // --- transfers ---
  // Starts a batch. INVALID, DENIED and so on for a whole batch that cannot start; failures of single records are
  // results in the transfer. `done` runs once when the outcome is there.
  Result<TransferRef> submit(std::span<const Record> records, TransferOptions options);
  // The same for a batch that is posted many times: planned anew only where its plan does not hold.
  Result<TransferRef> submit(PreparedBatch& batch, TransferOptions options);

  Holds& holds() { return holds_; }
  Claims& claims() { return claims_; }
  Unclaimed& unclaimed() { return unclaimed_; }
  Mailbox& mailbox() { return mailbox_; }
  Leaves& leaves() { return leaves_; }
  const Leaves& leaves() const { return leaves_; }
  const Holds& holds() const { return holds_; }
  const EngineCounters& counters() const { return counters_; }
  size_t links() const { return links_.size(); }
  size_t lingering() const { return lingering_.size(); }
  const Observer& observer() const { return observer_; }
  Observer& observer() { return observer_; }
  const Clock& clock() const { return reactor_; }
  const std::map<uint64_t, TransferRef>& active() const { return active_; }  // by number, without quiet
  // Transfers that have an outcome and are not quiet, and leaves to write memory that was unregistered.
  size_t hostages() const;

  // --- for the engine's own parts ---
  // The two halves of submit(): `quiet` of the options may look at the transfer in between.
  Result<TransferRef> make_transfer(TransferOptions options);
  void launch(const TransferRef& transfer, std::span<const Record> records);
  // Forgets it, whoever else may keep it.
  TransferRef transfer_quiet(uint64_t number);
  uint64_t next_plan() { return next_plan_++; }
  std::weak_ptr<bool> alive() const { return alive_; }
  bool is_same_host_only(std::string_view transport) const;
  struct Target {
    LinkRef link;
    transport::RemoteRegionRef region;
  };
  Target resolve(uint64_t handle) const;
  io::Reactor& reactor() { return reactor_; }
  io::Network& network() { return network_; }
  transport::TransportList& transports() { return transports_; }
  EngineCounters& mutable_counters() { return counters_; }
  void link_closed(Link& link, const Error& cause);
  void region_gone(uint64_t link, uint32_t region);
  void dispatch(const LinkRef& link, rpc::Incoming request, rpc::Responder responder);
  // Looks at deadlines soon enough for one of `timeout_ns`.
  void sweep_soon(int64_t timeout_ns);
  const std::string& boot_id() const { return options_.boot_id; }
  const std::string& local_name() const { return local_name_; }
  const std::vector<std::string>& rails() const { return rails_; }
  bool has_room_for_link() const { return links_.size() < options_.links_max; }
  std::string own_address() const { return "inproc:" + instance_.text(); }
  LinkRef adopt(std::unique_ptr<rpc::Channel> channel, Link::Identity identity);
  std::vector<InstanceId> superseded(const InstanceId& peer) const;
  // Keeps a connection whose first request is under way; the number gets it back, once.
  uint64_t keep_dialing(std::unique_ptr<rpc::Channel> channel);
  std::unique_ptr<rpc::Channel> take_dialing(uint64_t number);
  // Keeps a link that was given up until its peer has dropped it; false when too many are kept.
  bool linger(const LinkRef& link);
  void lingered(const Link& link) { lingering_.erase(link.number()); }
  // The peer has confirmed that the links of these tokens are over.
  void superseded_confirmed(const std::vector<InstanceId>& tokens);
  void drop_links(const std::vector<InstanceId>& tokens);
  LinkRef link_by_token(const InstanceId& token) const;
  PullServer& pulls() { return pulls_; }

 private:
  Engine(io::Reactor& reactor, io::Network& network, EngineOptions options);
  Result<> listen();
  void accept(std::unique_ptr<io::Stream> stream, bool within);
  Result<> attach(memory::Region& region, transport::Transport& transport);
  void detach(memory::Region& region);
  void sweep();
  void retire_handle(uint64_t number);
  PlanRef plan(std::span<const Record> records);
  void launch(const TransferRef& transfer, PlanRef plan);
  void dial(const std::string& target, int64_t timeout_ns);
  void reopen(const LinkRef& link, const std::string& target, int64_t timeout_ns);
  void finish_open(const std::string& address, const Result<LinkRef>& link);
  void tell_opened(const std::string& address, const Result<LinkRef>& link);
  void look_after_links();

  io::Reactor& reactor_;
  io::Network& network_;
  EngineOptions options_;
  InstanceId instance_;
  std::string address_;
  std::string local_name_;
  std::vector<std::string> rails_;
  std::unique_ptr<memory::Registry> registry_;
  transport::TransportList transports_;
  Holds holds_;
  Claims claims_;
  Mailbox mailbox_;
  Leaves leaves_;
  PullServer pulls_;
  EngineCounters counters_;
  Observer observer_;
  std::vector<std::unique_ptr<io::Listener>> listeners_;

  std::map<uint64_t, LinkRef> links_;
  std::map<uint64_t, LinkRef> lingering_;
  uint64_t next_link_ = 1;
  std::map<std::string, std::vector<Opened>> opening_;
  std::map<std::string, std::shared_ptr<Opener>> openers_;
  std::map<InstanceId, std::vector<InstanceId>> lost_tokens_;  // by peer: links that it may not know to be over
  std::map<uint64_t, std::shared_ptr<void>> incoming_;         // connections that have not said hello
  uint64_t next_incoming_ = 1;
  std::map<uint64_t, std::unique_ptr<rpc::Channel>> dialing_;
  uint64_t next_dialing_ = 1;

  struct Handle {
    std::weak_ptr<Link> link;
    transport::RemoteRegionRef region;
  };
  std::unordered_map<uint64_t, Handle> handles_;
  std::map<std::pair<uint64_t, uint32_t>, uint64_t> handle_numbers_;
  uint64_t next_handle_ = 1;
  std::deque<uint64_t> dead_handles_;

  std::map<uint16_t, Handler> handlers_;
  Unclaimed unclaimed_;
  std::map<uint64_t, TransferRef> active_;  // without quiet: alive until then, whoever forgets it
  uint64_t next_transfer_ = 1;
  uint64_t next_plan_ = 1;
  io::Timer sweep_;
  io::Timer keepalive_;
  int64_t sweep_period_ns_ = INT64_MAX;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::engine
