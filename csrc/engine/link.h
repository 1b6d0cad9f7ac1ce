// A link: everything between this engine and one peer. One control channel, the endpoints of the transports that work
// between the two, and what is known of the peer's regions. Links are symmetric once they stand: whoever accepted may
// use the other side's regions as well.
//
// Thread: under the engine's lock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/control.h"
#include "engine/identity.h"
#include "engine/observer.h"
#include "engine/options.h"
#include "engine/scheduler.h"
#include "rpc/channel.h"
#include "transport/transport.h"
#include "wire/engine_messages.h"

namespace moontide::engine {

class Engine;
class Transfer;

class Link final : public transport::LinkContext, public std::enable_shared_from_this<Link> {
 public:
  using Identity = LinkIdentity;

  Link(Engine& engine, std::unique_ptr<rpc::Channel> channel, Identity identity);
  ~Link() override;

  // Makes the endpoints and tells the peer about regions and paths. `ready` runs once, when the peer has told as much.
  void start(std::move_only_function<void(Result<>)> ready);
  // The link is over, on the word of the peer or of the kernel: outstanding slices, calls and holds of the peer end
  // with `cause`.
  void close(Error cause);
  // This side gives it up. The same, but writes that the peer may still be landing stay hostage until it has dropped
  // the link too (its end of the channel, its death, or its answer to the hello of a later link).
  void give_up(Error cause);
  // No progress on this link: ask the peer for a sign of life, and end the link when there is none.
  void suspect(int64_t timeout_ns);
  // A peer of this host ends with its connection, one of another host may vanish without a word: this side looks, from
  // time to time, and before it relies on a link again.
  void look_after(int64_t keepalive_ns);
  bool heard_lately() const;
  // `known` runs once, in a later turn: whether the peer answered in time; where not, the link was given up.
  void ask_for_life(int64_t timeout_ns, std::move_only_function<void(bool alive)> known);

  bool open() const { return channel_ != nullptr && !given_up_; }
  uint64_t number() const { return identity_.number; }
  uint16_t version() const { return identity_.version; }
  const InstanceId& token() const { return identity_.token; }
  const std::string& peer_address() const { return identity_.peer_address; }
  rpc::Channel* channel() { return channel_.get(); }

  // Of the application on top of the engine: a request to the peer's handler of `type` (>= kApplicationFirst), a
  // notification of the link's end (kept until then).
  void call(uint16_t type, Bytes payload, int64_t timeout_ns, rpc::Channel::Answer answer);
  void on_closed(std::move_only_function<void(const Error&)> callback) {
    closed_callbacks_.push_back(std::move(callback));
  }

  const std::map<uint32_t, transport::RemoteRegionRef>& regions() const { return regions_; }
  transport::RemoteRegionRef region(uint32_t id) const;
  // Runs `changed` once, when the peer has announced another region or the link is over; forgotten once `whom` is gone.
  void on_region(std::weak_ptr<void> whom, std::move_only_function<void()> changed);

  // The best usable path for `op` on `remote`; `local` decides whether the peer could pull. Null: none.
  std::shared_ptr<transport::Endpoint> choose(const transport::RemoteRegion& remote, transport::Op op,
                                              const memory::Region& local, uint32_t attempt) const;
  // Where the peer's region lies in this process; see transport::Endpoint::view.
  std::shared_ptr<const std::byte> view(const transport::RemoteRegion& remote) const { return scheduler_.view(remote); }
  Scheduler& scheduler() { return scheduler_; }
  // How much of a batch goes into one slice: small ones for slow paths, so that there is something to share.
  uint64_t slice_bytes() const;
  // The peer has shown life since then (known where a link has several rails).
  bool alive_since(int64_t time_ns) const { return control_ && control_->alive_ns() >= time_ns; }
  void count_path_failure();

  PeerSeen& seen() { return *seen_; }

  // Transport → "" or the reason why this side cannot use it on this link.
  const std::map<std::string, std::string>& paths() const { return paths_; }

  // Called by the engine.
  // Whether peers are told of it: what they may neither read nor write nor find by name is none of their business.
  static bool announces(const memory::Region& region);
  void region_added(const memory::Region& region);
  void region_removed(uint32_t id);
  void send_leave(const memory::Region& region, int holders);
  void handle_request(rpc::Incoming request, rpc::Responder responder);
  void handle_notice(rpc::Incoming notice);
  void accept_stream(const std::string& transport, uint64_t id, std::unique_ptr<io::Stream> stream);

  // LinkContext
  io::Reactor& reactor() override;
  memory::Registry& registry() override;
  bool initiator() const override { return identity_.initiator; }
  bool same_host() const override { return identity_.same_host; }
  bool same_instance() const override { return identity_.same_engine; }
  InstanceId peer_instance() const override { return identity_.peer; }
  const io::PeerCredentials* credentials() const override {
    return identity_.same_host ? &identity_.credentials : nullptr;
  }
  std::shared_ptr<memory::GenerationView> generations() const override { return identity_.generations; }
  void send(std::string_view transport, Bytes message, const std::vector<int>& fds) override;
  uint32_t rails() const override { return identity_.rail_count(); }
  Control* control() { return control_.get(); }
  void open_stream(std::string_view endpoint, uint32_t rail, uint64_t id,
                   std::move_only_function<void(Result<std::unique_ptr<io::Stream>>)> opened) override;
  void fence_stream(std::string_view transport, uint64_t id, std::move_only_function<void()> fenced) override;

 private:
  int64_t silent_ns() const;
  void add_endpoints(transport::Transport& transport);
  void settle(Path& path, const Result<>& outcome);
  void settled_one();
  void send_ready(bool settled);
  void peer_said(const wire::Ready& message);
  void tell_ready();
  void over(const Error& cause);
  void send_regions(const std::vector<const memory::Region*>& regions);
  wire::RegionInfo describe(const memory::Region& region);
  void add_regions(const wire::Regions& regions);
  void forget_region(uint32_t id);
  void give_back(transport::RemoteRegion& region);
  void take_leave(const wire::Leave& message, std::vector<io::Fd> fds);
  void use_leave(transport::RemoteRegion& region);
  void tell_region_watches();
  transport::Endpoint* endpoint(std::string_view name);

  Engine& engine_;
  std::unique_ptr<rpc::Channel> channel_;
  Identity identity_;
  PeerSeenRef seen_;
  Scheduler scheduler_;
  std::unique_ptr<Control> control_;  // where there are several rails
  std::shared_ptr<transport::Endpoint> pull_;
  std::map<std::string, std::string> paths_;
  std::map<std::string, std::string> peer_paths_;
  size_t unsettled_ = 0;
  bool peer_ready_ = false;
  bool suspected_ = false;
  bool looked_after_ = false;  // asked for a sign of life, without haste
  bool given_up_ = false;
  bool told_over_ = false;
  std::move_only_function<void(Result<>)> ready_;
  std::map<uint32_t, transport::RemoteRegionRef> regions_;
  size_t chunks_ = 0;  // of their keys
  // Leaves that the peer gave for regions that it has not told of yet: generation, leave. They come first, so that
  // whoever sees a region may write it.
  std::map<uint32_t, std::pair<uint64_t, std::shared_ptr<io::HeldLeave>>> early_leaves_;
  size_t leaves_ = 0;  // that the peer gave for others
  struct RegionWatch {
    std::weak_ptr<void> whom;
    std::move_only_function<void()> changed;
  };
  std::vector<RegionWatch> region_watches_;
  std::vector<std::move_only_function<void(const Error&)>> closed_callbacks_;
};

using LinkRef = std::shared_ptr<Link>;

}  // namespace moontide::engine
