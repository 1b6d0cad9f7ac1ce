#include "engine/engine.h"

#include <algorithm>
#include <fstream>

#include "engine/handshake.h"
#include "engine/planner.h"

namespace moontide::engine {
namespace {

constexpr size_t kIncomingMax = 1024;  // connections that have not said hello
constexpr size_t kLostTokensMax = 16;  // per peer
constexpr size_t kLostPeersMax = 4096;
constexpr size_t kLingeringMax = 1024;
constexpr size_t kDeadHandlesMax = 65536;  // kept so that their use is answered with what became of them

std::string read_boot_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id;
}

}  // namespace

Engine::Engine(io::Reactor& reactor, io::Network& network, EngineOptions options)
    : reactor_(reactor),
      network_(network),
      options_(std::move(options)),
      instance_(InstanceId::make(reactor.random())),
      holds_(reactor, options_.holds_max),
      claims_(reactor),
      leaves_(network),
      pulls_(*this),
      observer_(reactor),
      unclaimed_(reactor),
      sweep_(reactor),
      keepalive_(reactor) {
  if (options_.boot_id.empty()) options_.boot_id = read_boot_id();
}

Result<std::unique_ptr<Engine>> Engine::create(io::Reactor& reactor, io::Network& network, EngineOptions options,
                                               TransportFactory transports) {
  std::unique_ptr<Engine> engine(new Engine(reactor, network, std::move(options)));
  TRY(auto generations, memory::GenerationTable::create());
  engine->registry_ = std::make_unique<memory::Registry>(std::move(generations));
  engine->transports_ = transports(*engine->registry_, engine->options_);
  TRY_VOID(engine->listen());
  return engine;
}

Result<> Engine::listen() {
  auto accepted = [this](std::unique_ptr<io::Stream> stream) { accept(std::move(stream), false); };
  auto from_within = [this](std::unique_ptr<io::Stream> stream) { accept(std::move(stream), true); };
  TRY(auto listener, network_.listen(options_.listen, accepted));
  address_ = listener->address();
  if (!options_.advertise.empty()) {
    const std::string port = address_.substr(address_.rfind(':'));
    address_ = options_.advertise;
    if (address_.ends_with(":0")) address_.replace(address_.size() - 2, 2, port);
  }
  listeners_.push_back(std::move(listener));
  for (const std::string& rail : options_.rails) {
    TRY(auto device, network_.listen(rail, accepted));
    rails_.push_back(device->address());
    listeners_.push_back(std::move(device));
  }
  // for itself, and for peers of this host; an engine without them works, over tcp
  if (auto own = network_.listen(own_address(), from_within)) listeners_.push_back(std::move(*own));
  if (options_.local_reads != LocalReads::kOff) {
    std::string name = "unix:@moontide-" + instance_.text();
    if (auto local = network_.listen(name, accepted)) {
      local_name_ = name;
      listeners_.push_back(std::move(*local));
    }
  }
  return {};
}

Engine::~Engine() { shut(); }

void Engine::shut() {
  alive_.reset();
  // readers of this host go by these words, and may be copying: what comes after is not what was registered
  registry_->close();
  listeners_.clear();
  for (auto& [address, opener] : std::exchange(openers_, {})) opener->abort();
  for (auto& [number, acceptor] : std::exchange(incoming_, {})) std::static_pointer_cast<Acceptor>(acceptor)->close();
  std::vector<TransferRef> ending;  // kept until the endpoints, which hold their slices, are closed below
  for (auto& [number, transfer] : active_) ending.push_back(transfer);
  for (auto& transfer : ending) transfer->abandon();
  auto links = std::exchange(links_, {});
  for (auto& [number, link] : links) link->close({Code::kClosed, "the engine was closed"});
  for (auto& [number, link] : std::exchange(lingering_, {})) link->close({Code::kClosed, "the engine was closed"});
}

// --- regions ---

Result<memory::RegionRef> Engine::add_region(std::byte* address, uint64_t length, uint8_t access, std::string name,
                                             std::shared_ptr<memory::Arena> arena) {
  if (name.size() > kRegionNameMax) {
    return fail(Code::kInvalid, "a region's name of " + std::to_string(name.size()) + " bytes; at most " +
                                    std::to_string(kRegionNameMax));
  }
  TRY(auto region, registry_->add(address, length, access, std::move(name), std::move(arena)));
  for (auto& transport : transports_) {
    auto attached = attach(*region, *transport);
    if (attached) continue;
    detach(*region);
    [[maybe_unused]] auto removed = registry_->remove(region->id, {});
    return std::unexpected(attached.error());
  }
  for (auto& [number, link] : links_) {
    leaves_.give(*link, region);
    link->region_added(*region);
  }
  return region;
}

Result<> Engine::attach(memory::Region& region, transport::Transport& transport) {
  const uint64_t most = transport.max_region_bytes();
  memory::Attachment& attachment = region.attached.emplace_back();
  attachment.transport = transport.name();
  attachment.chunk_bytes = region.length > most ? most : 0;
  for (uint64_t offset = 0; offset < region.length; offset += std::min(most, region.length - offset)) {
    const uint64_t length = std::min(most, region.length - offset);
    auto key = transport.attach(region, offset, length);
    if (!key) {
      return fail(key.error().code, std::string(transport.name()) + " cannot register bytes " + std::to_string(offset) +
                                        " to " + std::to_string(offset + length) + " of " +
                                        std::to_string(region.length) + ": " + key.error().message);
    }
    if (!*key) {
      MT_CHECK(offset == 0, "a transport reaches a region or not: " + attachment.transport);
      region.attached.pop_back();
      return {};
    }
    attachment.keys.push_back(std::move(**key));
  }
  return {};
}

void Engine::detach(memory::Region& region) {
  for (memory::Attachment& attachment : std::exchange(region.attached, {})) {
    auto transport = std::ranges::find(transports_, attachment.transport, [](const auto& t) { return t->name(); });
    for (size_t i = 0; i < attachment.keys.size(); ++i) {
      (*transport)->detach(region, i * attachment.chunk_bytes, attachment.keys[i]);
    }
  }
}

bool Engine::is_same_host_only(std::string_view transport) const {
  auto found = std::ranges::find(transports_, transport, [](const auto& t) { return t->name(); });
  return (*found)->same_host_only();
}

Result<> Engine::remove_region(uint32_t id, std::move_only_function<void()> on_quiet) {
  auto detach_first = [this, alive = alive(), region = std::weak_ptr(registry_->by_id(id)),
                       on_quiet = std::move(on_quiet)]() mutable {
    auto left = region.lock();
    if (left && !alive.expired()) detach(*left);
    if (on_quiet) on_quiet();
  };
  const memory::RegionRef gone = registry_->by_id(id);
  TRY_VOID(registry_->remove(id, std::move(detach_first)));
  if (!Link::announces(*gone)) return {};
  for (auto& [number, link] : links_) link->region_removed(id);
  return {};
}

// --- links ---

void Engine::accept(std::unique_ptr<io::Stream> stream, bool within) {
  if (incoming_.size() >= kIncomingMax) {  // the one that has been silent for longest makes room
    ++counters_.refused;
    auto oldest = std::static_pointer_cast<Acceptor>(incoming_.begin()->second);
    incoming_.erase(incoming_.begin());
    oldest->close();
  }
  uint64_t number = next_incoming_++;
  auto acceptor =
      std::make_shared<Acceptor>(*this, std::move(stream), within, [this, number] { incoming_.erase(number); });
  incoming_.emplace(number, acceptor);
  acceptor->start();
}

void Engine::open(const std::string& address, int64_t timeout_ns, Opened opened) {
  // to itself an engine goes within the process
  const std::string target = address == address_ ? own_address() : address;
  auto opening = opening_.find(target);
  if (opening != opening_.end()) {  // also while its link is there and has not heard of the peer's regions yet
    opening->second.push_back(std::move(opened));
    return;
  }
  for (auto& [number, link] : links_) {
    if (!link->initiator() || !link->open() || link->peer_address() != target) continue;
    if (link->heard_lately()) {
      reactor_.post([link = link, opened = std::move(opened)]() mutable { opened(link); });
    } else {
      opening_[target].push_back(std::move(opened));
      reopen(link, target, timeout_ns);
    }
    return;
  }
  opening_[target].push_back(std::move(opened));
  dial(target, timeout_ns);
}

// The peer of a link that was silent may be gone, and another one have its address.
void Engine::reopen(const LinkRef& link, const std::string& target, int64_t timeout_ns) {
  const int64_t deadline_ns = reactor_.now_ns() + timeout_ns;
  const int64_t patience_ns = std::min(timeout_ns / 2, options_.progress_timeout_ns);
  link->suspect(options_.progress_timeout_ns);  // others use it too: it is given that time, whoever is in a hurry here
  link->call(wire::kPing, {}, patience_ns,
             [this, alive = alive(), link, target, deadline_ns](const Result<rpc::Reply>& reply) {
               if (alive.expired()) return;
               if (reply && link->open()) return tell_opened(target, link);
               dial(target, std::max<int64_t>(deadline_ns - reactor_.now_ns(), 1));
             });
}

void Engine::dial(const std::string& target, int64_t timeout_ns) {
  auto opener = std::make_shared<Opener>(
      *this, target, timeout_ns, [this, target](Result<LinkRef> link) { finish_open(target, std::move(link)); });
  openers_[target] = opener;
  observer_.connecting(target);
  opener->start();
}

Engine::Distance Engine::distance(const std::string& address) const {
  if (address == address_) return Distance::kHere;
  for (const auto& [number, link] : links_) {
    if (!link->initiator() || link->peer_address() != address) continue;
    if (link->same_instance()) return Distance::kHere;
    return link->same_host() ? Distance::kHost : Distance::kElsewhere;
  }
  // Never spoken to: equal hosts in both addresses are a hint, and a hint is all that is asked for.
  const auto host = [](const std::string& whole) { return std::string_view(whole).substr(0, whole.rfind(':')); };
  return host(address) == host(address_) ? Distance::kHost : Distance::kElsewhere;
}

void Engine::finish_open(const std::string& address, const Result<LinkRef>& link) {
  openers_.erase(address);
  observer_.connected(address, link ? Code::kOk : link.error().code);
  tell_opened(address, link);
}

void Engine::tell_opened(const std::string& address, const Result<LinkRef>& link) {
  auto found = opening_.extract(address);
  if (found.empty()) return;
  for (Opened& opened : found.mapped()) opened(link);
}

LinkRef Engine::adopt(std::unique_ptr<rpc::Channel> channel, Link::Identity identity) {
  identity.number = next_link_++;
  rpc::Channel* raw = channel.get();
  auto link = std::make_shared<Link>(*this, std::move(channel), std::move(identity));
  links_.emplace(link->number(), link);
  ++counters_.links_opened;
  if (!keepalive_.running()) look_after_links();
  std::weak_ptr<Link> weak = link;
  raw->rebind({
      .request =
          [weak](rpc::Incoming request, rpc::Responder responder) {
            if (auto live = weak.lock()) live->handle_request(std::move(request), std::move(responder));
          },
      .notice =
          [weak](rpc::Incoming notice) {
            if (auto live = weak.lock()) live->handle_notice(std::move(notice));
          },
      .closed =
          [weak](Error cause) {
            if (auto live = weak.lock()) live->close({Code::kPeerLost, cause.message});
          },
  });
  return link;
}

void Engine::look_after_links() {
  if (options_.keepalive_ns <= 0) return;
  std::vector<LinkRef> links;
  for (auto& [number, link] : links_) links.push_back(link);
  for (auto& link : links) link->look_after(options_.keepalive_ns);
  if (!links_.empty()) keepalive_.start(options_.keepalive_ns / 4, [this] { look_after_links(); });
}

void Engine::link_closed(Link& link, const Error& cause) {
  links_.erase(link.number());
  pulls_.link_closed(link);
  holds_.link_closed(link.number());
  claims_.link_closed(link);
  if (cause.code != Code::kClosed) ++counters_.links_lost;
  auto handle = handle_numbers_.lower_bound({link.number(), 0});
  while (handle != handle_numbers_.end() && handle->first.first == link.number()) {
    retire_handle(handle->second);
    handle = handle_numbers_.erase(handle);
  }
  if (lost_tokens_.size() >= kLostPeersMax) lost_tokens_.erase(lost_tokens_.begin());
  auto& tokens = lost_tokens_[link.peer_instance()];
  tokens.push_back(link.token());
  if (tokens.size() > kLostTokensMax) tokens.erase(tokens.begin());
}

uint64_t Engine::keep_dialing(std::unique_ptr<rpc::Channel> channel) {
  dialing_.emplace(next_dialing_, std::move(channel));
  return next_dialing_++;
}

std::unique_ptr<rpc::Channel> Engine::take_dialing(uint64_t number) {
  auto node = dialing_.extract(number);
  return node ? std::move(node.mapped()) : nullptr;
}

std::vector<InstanceId> Engine::superseded(const InstanceId& peer) const {
  auto found = lost_tokens_.find(peer);
  return found == lost_tokens_.end() ? std::vector<InstanceId>{} : found->second;
}

bool Engine::linger(const LinkRef& link) {
  return lingering_.size() < kLingeringMax && lingering_.emplace(link->number(), link).second;
}

void Engine::superseded_confirmed(const std::vector<InstanceId>& tokens) {
  std::vector<LinkRef> over;
  for (auto& [number, link] : lingering_) {
    if (std::ranges::find(tokens, link->token()) != tokens.end()) over.push_back(link);
  }
  for (auto& link : over) link->close({Code::kPeerLost, "superseded by another link"});
}

void Engine::drop_links(const std::vector<InstanceId>& tokens) {
  for (const InstanceId& token : tokens) {
    if (LinkRef link = link_by_token(token)) link->close({Code::kPeerLost, "the peer opened another link instead"});
  }
}

LinkRef Engine::link_by_token(const InstanceId& token) const {
  for (const auto& [number, link] : links_) {
    if (link->token() == token) return link;
  }
  return nullptr;
}

void Engine::dispatch(const LinkRef& link, rpc::Incoming request, rpc::Responder responder) {
  auto handler = handlers_.find(request.type);
  if (handler == handlers_.end())
    return responder.refuse({Code::kUnsupported, "nobody answers message " + std::to_string(request.type)});
  handler->second(link, std::move(request), std::move(responder));
}

// --- handles ---

uint64_t Engine::handle(const LinkRef& link, uint32_t region) {
  auto remote = link->region(region);
  if (!remote || !link->open()) return 0;
  auto [at, added] = handle_numbers_.try_emplace({link->number(), region}, next_handle_);
  if (added) handles_.emplace(next_handle_++, Handle{link, remote});
  return at->second;
}

void Engine::region_gone(uint64_t link, uint32_t region) {
  auto found = handle_numbers_.find({link, region});
  if (found == handle_numbers_.end()) return;
  retire_handle(found->second);
  handle_numbers_.erase(found);
}

void Engine::retire_handle(uint64_t number) {
  dead_handles_.push_back(number);
  if (dead_handles_.size() <= kDeadHandlesMax) return;
  handles_.erase(dead_handles_.front());
  dead_handles_.pop_front();
}

Engine::Target Engine::resolve(uint64_t handle) const {
  auto found = handles_.find(handle);
  if (found == handles_.end()) return {};
  return {found->second.link.lock(), found->second.region};
}

// --- transfers ---

Result<TransferRef> Engine::make_transfer(TransferOptions options) {
  if (active_.size() >= options_.transfers_max)
    return fail(Code::kOverloaded, std::to_string(active_.size()) + " transfers are under way");
  if (!is_trace(options.trace)) return fail(Code::kInvalid, "a trace id is at most 64 printable characters");
  const uint64_t number = next_transfer_++;
  return active_.emplace(number, std::make_shared<Transfer>(*this, number, std::move(options))).first->second;
}

TransferRef Engine::transfer_quiet(uint64_t number) {
  auto node = active_.extract(number);
  return node ? std::move(node.mapped()) : nullptr;
}

PlanRef Engine::plan(std::span<const Record> records) {
  auto plan = std::make_shared<Plan>();
  Planner(*this, *plan).add(records);
  return plan;
}

void Engine::launch(const TransferRef& transfer, PlanRef plan) {
  transfer->launch(std::move(plan));
  sweep_soon(transfer->progress_timeout_ns());
}

void Engine::launch(const TransferRef& transfer, std::span<const Record> records) { launch(transfer, plan(records)); }

Result<TransferRef> Engine::submit(std::span<const Record> records, TransferOptions options) {
  TRY(auto transfer, make_transfer(std::move(options)));
  launch(transfer, records);
  return transfer;
}

Result<TransferRef> Engine::submit(PreparedBatch& batch, TransferOptions options) {
  TRY(auto transfer, make_transfer(std::move(options)));
  if (!batch.plan || !batch.plan->holds(*this)) batch.plan = plan(batch.records);
  launch(transfer, batch.plan);
  return transfer;
}

size_t Engine::hostages() const {
  const auto ended = std::ranges::count_if(active_, [](const auto& item) { return item.second->done(); });
  return leaves_.hostages() + static_cast<size_t>(ended);
}

void Engine::sweep_soon(int64_t timeout_ns) {
  const int64_t slow_ns = observer_.slow_ns() > 0 ? observer_.slow_ns() / 2 : INT64_MAX;
  const int64_t period_ns = std::max<int64_t>(std::min(timeout_ns / 8, slow_ns), kMillisecond);
  if (active_.empty() || (sweep_.running() && period_ns >= sweep_period_ns_)) return;
  sweep_period_ns_ = period_ns;
  sweep_.start(period_ns, [this] { sweep(); });
}

void Engine::sweep() {
  int64_t now = reactor_.now_ns();
  std::vector<TransferRef> live;
  live.reserve(active_.size());
  for (auto& [number, transfer] : active_) live.push_back(transfer);
  int64_t least = INT64_MAX;
  for (auto& transfer : live) {
    transfer->check_slow(now);
    transfer->check_deadline(now);
    if (!transfer->done()) least = std::min(least, transfer->progress_timeout_ns());
  }
  sweep_period_ns_ = INT64_MAX;
  if (least != INT64_MAX) sweep_soon(least);
}

}  // namespace moontide::engine
