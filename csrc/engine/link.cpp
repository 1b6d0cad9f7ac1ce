#include "engine/link.h"

#include <algorithm>

#include "engine/engine.h"

namespace moontide::engine {
namespace {

constexpr size_t kRemoteRegionsMax = memory::GenerationTable::kWords;
constexpr size_t kRegionsPerNotice = 512;
constexpr size_t kKeysMax = 16;       // of a region
constexpr size_t kKeyBytesMax = 256;  // of one chunk
constexpr size_t kChunksMax = 4096;   // of one key
constexpr size_t kChunksInAllMax = 1u << 20;
constexpr size_t kPathsMax = 64;
constexpr size_t kLeavesMax = 1024;
constexpr size_t kTextMax = 1024;
constexpr int64_t kFreshNs = kSecond;  // who was heard so lately is there
constexpr int64_t kFenceTimeouts = 4;  // progress timeouts that the peer has for the answer to a fence
constexpr const char* kSettingUp = "being set up";

constexpr uint64_t kSliceBytesLeast = 64u << 10;
constexpr uint64_t kSliceBytesMost = 1u << 20;
constexpr double kSliceNs = 1.0 * kMillisecond;  // what a path should need for one

// Nothing longer than what an engine of this kind announces: a peer must not fill the memory of this process.
bool is_modest(const wire::RegionInfo& info) {
  if (info.name.size() > kRegionNameMax || info.keys.size() > kKeysMax) return false;
  return std::ranges::all_of(info.keys, [](const wire::RegionKey& key) {
    return key.transport.size() <= kKeyBytesMax && key.chunks.size() <= kChunksMax &&
           std::ranges::all_of(key.chunks, [](const Bytes& chunk) { return chunk.size() <= kKeyBytesMax; });
  });
}

// One chunk for each `chunk_bytes` of the region, and addresses (self and cma) as long as addresses are.
bool is_whole(const wire::RegionKey& key, uint64_t length) {
  if (key.chunk_bytes == 0) {
    if (key.chunks.size() != 1) return false;
  } else if (length == 0 || key.chunks.size() != (length - 1) / key.chunk_bytes + 1) {
    return false;
  }
  if (key.transport != "self" && key.transport != "cma") return true;
  return std::ranges::all_of(key.chunks, [](const Bytes& chunk) { return chunk.size() == sizeof(uint64_t); });
}

size_t chunks_of(const transport::RemoteRegion& region) {
  size_t sum = 0;
  for (const transport::RemoteKey& key : region.keys) sum += key.chunks.size();
  return sum;
}

}  // namespace

Link::Link(Engine& engine, std::unique_ptr<rpc::Channel> channel, Identity identity)
    : engine_(engine),
      channel_(std::move(channel)),
      identity_(std::move(identity)),
      seen_(engine.observer().peer(identity_.peer, identity_.peer_address)),
      scheduler_(*this) {}

Link::~Link() = default;

io::Reactor& Link::reactor() { return engine_.reactor(); }
memory::Registry& Link::registry() { return engine_.registry(); }

// --- setting up ---

void Link::start(std::move_only_function<void(Result<>)> ready) {
  ready_ = std::move(ready);
  if (rails() > 1) control_ = std::make_unique<Control>(engine_, *this, *channel_, identity_);
  std::vector<const memory::Region*> regions;
  for (const auto& [id, region] : registry().all()) regions.push_back(region.get());
  for (auto& transport : engine_.transports()) add_endpoints(*transport);
  send_ready(false);
  unsettled_ = scheduler_.paths().size() + 1;  // one for the regions: whoever is told that the link is ready knows them
  for (Path& path : scheduler_.paths()) {
    path.endpoint->start([this, &path, weak = weak_from_this()](Result<> outcome) {
      auto self = weak.lock();
      if (self && open()) settle(path, outcome);
    });
  }
  pull_ = std::make_shared<PullEndpoint>(*this);
  scheduler_.add(pull_).ready = true;  // not one of those that are chosen by their order
  for (const auto& [id, region] : registry().all()) engine_.leaves().give(*this, region);
  send_regions(regions);
  settled_one();
}

void Link::add_endpoints(transport::Transport& transport) {
  for (uint32_t rail = 0; rail < (transport.per_rail() ? rails() : 1); ++rail) {
    auto endpoint = transport.connect(*this, rail);
    if (!endpoint) {
      paths_[std::string(transport.name())] = endpoint.error().message;
      return;
    }
    paths_[std::string((*endpoint)->name())] = kSettingUp;
    scheduler_.add(std::move(*endpoint));
  }
}

void Link::settle(Path& path, const Result<>& outcome) {
  if (std::exchange(path.settled, true)) return;
  path.ready = outcome.has_value();
  paths_[std::string(path.endpoint->name())] = outcome ? "" : outcome.error().message;
  settled_one();
}

void Link::settled_one() {
  if (--unsettled_ > 0) return;
  send_ready(true);
  tell_ready();
}

void Link::send_ready(bool settled) {
  wire::Ready message;
  message.settled = settled;
  for (const auto& [name, reason] : paths_) message.paths.push_back({name, reason});
  channel_->notify(wire::kReady, wire::encode(message));
}

void Link::peer_said(const wire::Ready& message) {
  peer_paths_.clear();
  for (const wire::PathState& path : message.paths) {
    if (path.transport.size() > kKeyBytesMax || path.reason.size() > kTextMax) continue;
    if (peer_paths_.size() < kPathsMax) peer_paths_[path.transport] = path.reason;
  }
  // an endpoint without a twin would wait for it for ever
  for (Path& path : scheduler_.paths()) {
    if (!open()) return;
    if (path.endpoint == pull_) continue;
    auto twin = peer_paths_.find(std::string(path.endpoint->name()));
    if (twin == peer_paths_.end()) {
      settle(path, fail(Code::kUnsupported, "the peer does not have it"));
    } else if (!twin->second.empty() && twin->second != kSettingUp) {
      settle(path, fail(Code::kUnsupported, "the peer cannot use it: " + twin->second));
    }
  }
  peer_ready_ = message.settled;
  tell_ready();
}

void Link::tell_ready() {
  if (peer_ready_ && unsettled_ == 0 && ready_) std::exchange(ready_, {})({});
}

// --- regions ---

wire::RegionInfo Link::describe(const memory::Region& region) {
  wire::RegionInfo info{region.id, region.generation, region.length, region.access, region.word, region.name, {}};
  for (const memory::Attachment& attached : region.attached) {
    // addresses are for peers of this host, which can use them, and for nobody else
    if (engine_.is_same_host_only(attached.transport) && !same_host() && !same_instance()) continue;
    info.keys.push_back({attached.transport, attached.chunk_bytes, attached.keys});
  }
  return info;
}

bool Link::announces(const memory::Region& region) {
  return (region.access & (memory::kReadable | memory::kWritable)) != 0 || !region.name.empty();
}

void Link::send_regions(const std::vector<const memory::Region*>& regions) {
  wire::Regions message;
  for (const memory::Region* region : regions) {
    if (!announces(*region)) continue;
    message.regions.push_back(describe(*region));
    if (message.regions.size() == kRegionsPerNotice) {
      channel_->notify(wire::kRegions, wire::encode(message));
      message.regions.clear();
    }
  }
  if (!message.regions.empty()) channel_->notify(wire::kRegions, wire::encode(message));
}

void Link::region_added(const memory::Region& region) {
  if (!open()) return;
  for (Path& path : scheduler_.paths()) path.endpoint->region_added(region);
  send_regions({&region});
}

void Link::send_leave(const memory::Region& region, int holders) {
  channel_->notify(wire::kLeave, wire::encode(wire::Leave{region.id, region.generation}), {holders});
}

void Link::region_removed(uint32_t id) {
  if (open()) channel_->notify(wire::kRegionGone, wire::encode(wire::RegionGone{id}));
}

void Link::add_regions(const wire::Regions& message) {
  for (const wire::RegionInfo& info : message.regions) {
    if (regions_.size() >= kRemoteRegionsMax) return close({Code::kOverloaded, "the peer announces too many regions"});
    if (!is_modest(info)) return close({Code::kInvalid, "the peer announces a region with too long a name or key"});
    auto region = std::make_shared<transport::RemoteRegion>();
    region->id = info.id;
    region->generation = info.generation;
    region->length = info.length;
    region->access = info.access;
    region->word = info.word;
    region->name = info.name;
    for (const wire::RegionKey& key : info.keys) {
      if (is_whole(key, info.length)) region->keys.push_back({key.transport, key.chunk_bytes, key.chunks});
    }
    forget_region(info.id);
    chunks_ += chunks_of(*region);
    if (chunks_ > kChunksInAllMax) return close({Code::kOverloaded, "the peer announces too many keys"});
    use_leave(*region);
    regions_[info.id] = std::move(region);
  }
  tell_region_watches();
}

void Link::on_region(std::weak_ptr<void> whom, std::move_only_function<void()> changed) {
  std::erase_if(region_watches_, [](const RegionWatch& watch) { return watch.whom.expired(); });
  region_watches_.push_back({std::move(whom), std::move(changed)});
}

void Link::tell_region_watches() {
  for (RegionWatch& watch : std::exchange(region_watches_, {})) {
    if (!watch.whom.expired()) watch.changed();  // and may watch again
  }
}

void Link::forget_region(uint32_t id) {
  auto found = regions_.find(id);
  if (found == regions_.end()) return;
  give_back(*found->second);
  chunks_ -= chunks_of(*found->second);
  for (Path& path : scheduler_.paths()) path.endpoint->region_gone(*found->second);
  regions_.erase(found);
  engine_.region_gone(number(), id);
}

// What is not taken is closed, and so given back.
void Link::take_leave(const wire::Leave& message, std::vector<io::Fd> fds) {
  const bool room = leaves_ + early_leaves_.size() < kLeavesMax;
  if (!same_host() || fds.size() != 1 || !room || regions_.contains(message.region)) return;
  early_leaves_[message.region] = {message.generation, std::make_shared<io::HeldLeave>(std::move(fds[0]))};
}

void Link::use_leave(transport::RemoteRegion& region) {
  auto early = early_leaves_.extract(region.id);
  if (!early || early.mapped().first != region.generation || (region.access & memory::kDirect) == 0) return;
  region.leave = std::move(early.mapped().second);
  ++leaves_;
}

void Link::give_back(transport::RemoteRegion& region) {
  region.live = false;
  if (std::exchange(region.leave, nullptr)) --leaves_;
}

transport::RemoteRegionRef Link::region(uint32_t id) const {
  auto found = regions_.find(id);
  return found == regions_.end() ? nullptr : found->second;
}

// --- paths ---

std::shared_ptr<transport::Endpoint> Link::choose(const transport::RemoteRegion& remote, transport::Op op,
                                                  const memory::Region& local, uint32_t attempt) const {
  std::vector<std::shared_ptr<transport::Endpoint>> usable;
  for (const Path& path : scheduler_.paths()) {
    if (path.usable() && path.endpoint != pull_ && path.endpoint->reaches(remote, op)) usable.push_back(path.endpoint);
  }
  bool direct = !usable.empty() && usable.front()->synchronous();
  if (op == transport::Op::kWrite && same_host() && !direct) {
    auto can = [this](const char* name) {
      auto found = peer_paths_.find(name);
      return found != peer_paths_.end() && found->second.empty();
    };
    bool granted = (local.access & memory::kReadable) != 0;  // the peer reads it: only what was given leave for
    bool in_arena = local.arena && local.arena->fd() >= 0;
    if (granted && ((in_arena && can("shm")) || can("cma"))) usable.insert(usable.begin(), pull_);
  }
  if (usable.empty()) return nullptr;
  return usable[std::min<size_t>(attempt, usable.size() - 1)];
}

uint64_t Link::slice_bytes() const {
  const double rate = same_host() || same_instance() ? 0 : scheduler_.bytes_per_ns("tcp");
  if (rate <= 0) return kSliceBytesMost;
  const auto bytes = static_cast<uint64_t>(rate * kSliceNs) / kSliceBytesLeast * kSliceBytesLeast;
  return std::clamp<uint64_t>(bytes, kSliceBytesLeast, kSliceBytesMost);
}

void Link::count_path_failure() { ++engine_.mutable_counters().paths_failed; }

transport::Endpoint* Link::endpoint(std::string_view name) {
  for (Path& path : scheduler_.paths()) {
    if (path.endpoint->name() == name) return path.endpoint.get();
  }
  return nullptr;
}

// --- messages ---

void Link::handle_request(rpc::Incoming request, rpc::Responder responder) {
  if (!open()) return responder.refuse({Code::kClosed, "the link is over here"});
  switch (request.type) {
    case wire::kPing:
      if (control_) control_->heard();
      return responder.reply(Bytes{});
    case wire::kPull:
      return engine_.pulls().pull(shared_from_this(), request.payload, std::move(responder));
    case wire::kFence: {
      auto fence = wire::decode<wire::Fence>(request.payload);
      if (!fence) return responder.refuse(fence.error());
      if (auto* target = endpoint(fence->transport)) target->fence_stream(fence->stream);
      return responder.reply(Bytes{});
    }
    case wire::kNotify: {
      auto message = wire::decode<wire::Notify>(request.payload);
      if (!message) return responder.refuse(message.error());
      auto put = engine_.mailbox().put(identity_.peer, std::move(message->payload));
      return put ? responder.reply(Bytes{}) : responder.refuse(put.error());
    }
    case wire::kHoldClaim: {
      auto hold = wire::decode<wire::HoldId>(request.payload);
      if (!hold) return responder.refuse(hold.error());
      auto claimed = engine_.holds().claim(hold->id, number());
      if (!claimed) return responder.refuse(claimed.error());
      return responder.reply(wire::HoldClaimed{*claimed->payload, static_cast<uint64_t>(claimed->ttl_ns)});
    }
    case wire::kHoldRelease: {
      auto hold = wire::decode<wire::HoldId>(request.payload);
      if (!hold) return responder.refuse(hold.error());
      auto released = engine_.holds().release(hold->id, number());
      if (!released) return responder.refuse(released.error());
      return responder.reply(Bytes{});
    }
    default:
      return engine_.dispatch(shared_from_this(), std::move(request), std::move(responder));
  }
}

void Link::handle_notice(rpc::Incoming notice) {
  if (notice.type == wire::kBye) return close({Code::kPeerLost, "closed by the peer"});
  if (!open()) return;
  auto malformed = [this](const Error& error) { close({Code::kPeerLost, "the peer sent garbage: " + error.message}); };
  switch (notice.type) {
    case wire::kRegions: {
      auto message = wire::decode<wire::Regions>(notice.payload);
      return message ? add_regions(*message) : malformed(message.error());
    }
    case wire::kRegionGone: {
      auto message = wire::decode<wire::RegionGone>(notice.payload);
      return message ? forget_region(message->id) : malformed(message.error());
    }
    case wire::kLeave: {
      auto message = wire::decode<wire::Leave>(notice.payload);
      return message ? take_leave(*message, std::move(notice.fds)) : malformed(message.error());
    }
    case wire::kReady: {
      auto message = wire::decode<wire::Ready>(notice.payload);
      if (!message) return malformed(message.error());
      return peer_said(*message);
    }
    case wire::kTransport: {
      auto message = wire::decode<wire::TransportMessage>(notice.payload);
      if (!message) return malformed(message.error());
      if (auto* target = endpoint(message->transport))
        target->message(std::move(message->payload), std::move(notice.fds));
      return;
    }
    case wire::kPullCancel: {
      auto message = wire::decode<wire::PullCancel>(notice.payload);
      return message ? engine_.pulls().cancel(shared_from_this(), message->id) : malformed(message.error());
    }
    case wire::kHoldRenew: {
      auto message = wire::decode<wire::HoldId>(notice.payload);
      return message ? engine_.holds().renew(message->id, number()) : malformed(message.error());
    }
    default:
      return;  // a newer peer's notices are not ours to understand
  }
}

void Link::call(uint16_t type, Bytes payload, int64_t timeout_ns, rpc::Channel::Answer answer) {
  if (open()) return channel_->call(type, std::move(payload), timeout_ns, std::move(answer));
  reactor().post(
      [answer = std::move(answer)]() mutable { answer(fail(Code::kPeerLost, "the link to the peer is over")); });
}

void Link::send(std::string_view transport, Bytes message, const std::vector<int>& fds) {
  if (channel_)
    channel_->notify(wire::kTransport, wire::encode(wire::TransportMessage{std::string(transport), std::move(message)}),
                     fds);
}

void Link::open_stream(std::string_view endpoint, uint32_t rail, uint64_t id,
                       std::move_only_function<void(Result<std::unique_ptr<io::Stream>>)> opened) {
  wire::DataStreamHello hello{identity_.token, std::string(endpoint), id};
  connect_rail(engine_, identity_, rail, engine_.options().connect_timeout_ns, wire::kDataStream, wire::encode(hello),
               [weak = weak_from_this(), opened = std::move(opened)](Result<Connection> connection) mutable {
                 auto self = weak.lock();
                 if (!self || !self->open()) return;
                 if (!connection) return opened(std::unexpected(connection.error()));
                 opened(std::move(connection->stream));
               });
}

void Link::accept_stream(const std::string& transport, uint64_t id, std::unique_ptr<io::Stream> stream) {
  if (auto* target = endpoint(transport)) target->accepted(id, std::move(stream));
}

void Link::fence_stream(std::string_view transport, uint64_t id, std::move_only_function<void()> fenced) {
  const int64_t timeout_ns = engine_.options().progress_timeout_ns;
  call(wire::kFence, wire::encode(wire::Fence{std::string(transport), id}), kFenceTimeouts * timeout_ns,
       [this, weak = weak_from_this(), fenced = std::move(fenced)](Result<rpc::Reply> reply) mutable {
         auto self = weak.lock();
         if (!self) return;
         if (reply) return fenced();
         // Without an answer only the end of the link is the fence: the endpoints hear of that.
         const Code code = reply.error().code;
         if (code == Code::kPeerLost || code == Code::kCanceled || !open()) return;
         give_up({Code::kPeerLost, "the peer does not answer a fence: " + reply.error().message});
       });
  suspect(timeout_ns);
}

// --- the end ---

void Link::ask_for_life(int64_t timeout_ns, std::move_only_function<void(bool)> known) {
  call(wire::kPing, {}, timeout_ns,
       [this, weak = weak_from_this(), timeout_ns, known = std::move(known)](Result<rpc::Reply> reply) mutable {
         auto self = weak.lock();
         if (self && !reply && open()) {
           give_up({Code::kPeerLost, "no sign of life for " + std::to_string(timeout_ns / kMillisecond) + " ms"});
         }
         known(self && reply);
       });
}

void Link::suspect(int64_t timeout_ns) {
  if (!open() || std::exchange(suspected_, true)) return;
  ask_for_life(timeout_ns, [this, weak = weak_from_this()](bool) {
    if (auto self = weak.lock()) suspected_ = false;
  });
}

int64_t Link::silent_ns() const { return engine_.reactor().now_ns() - channel_->heard_ns(); }

bool Link::heard_lately() const {
  if (same_host() || same_instance() || silent_ns() < kFreshNs) return true;
  const int64_t since_ns = engine_.reactor().now_ns() - kFreshNs;
  return std::ranges::any_of(scheduler_.paths(), [&](const Path& path) { return path.progress_ns > since_ns; });
}

void Link::look_after(int64_t keepalive_ns) {
  if (!open() || same_host() || same_instance() || looked_after_) return;
  if (silent_ns() < keepalive_ns) return;
  looked_after_ = true;
  ask_for_life(keepalive_ns, [this, weak = weak_from_this()](bool) {
    if (auto self = weak.lock()) looked_after_ = false;
  });
}

void Link::give_up(Error cause) {
  if (!open()) return;
  auto self = shared_from_this();
  given_up_ = true;
  bool kept = pull_ && pull_->retire(cause);
  for (Path& path : scheduler_.paths()) kept |= path.endpoint != pull_ && path.endpoint->retire(cause);
  over(cause);
  if (!kept || !engine_.linger(self)) return close(std::move(cause));
  channel_->notify(wire::kBye, {});
}

void Link::close(Error cause) {
  if (!channel_) return;
  auto self = shared_from_this();
  channel_->close();
  reactor().post([channel = std::shared_ptr<rpc::Channel>(std::move(channel_))] {});  // it may be the caller
  control_.reset();
  for (Path& path : scheduler_.paths()) path.endpoint->close(cause);
  engine_.lingered(*this);
  over(cause);
}

// What ends with the link, whoever ended it; once.
void Link::over(const Error& cause) {
  if (std::exchange(told_over_, true)) return;
  for (auto& [id, region] : regions_) give_back(*region);
  early_leaves_.clear();
  engine_.link_closed(*this, cause);
  if (ready_) std::exchange(ready_, {})(std::unexpected(cause));
  for (auto& callback : std::exchange(closed_callbacks_, {})) callback(cause);
  tell_region_watches();
}

}  // namespace moontide::engine
