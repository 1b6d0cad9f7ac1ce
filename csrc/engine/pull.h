// Writes between processes of one host: the side whose memory changes runs the copy. PullEndpoint asks the peer's
// engine to read from here; PullServer is that engine's side of it.
#pragma once

#include <map>
#include <memory>

#include "rpc/channel.h"
#include "transport/transport.h"
#include "wire/engine_messages.h"

namespace moontide::engine {

class Engine;
class Link;
class Transfer;

class PullEndpoint final : public transport::Endpoint {
 public:
  explicit PullEndpoint(Link& link) : link_(link) {}
  std::string_view name() const override { return "pull"; }
  void start(std::move_only_function<void(Result<>)> ready) override { ready({}); }
  bool reaches(const transport::RemoteRegion&, transport::Op op) const override { return op == transport::Op::kWrite; }
  size_t room(bool urgent) const override;
  void post(transport::Slice& slice) override;
  void cancel(transport::Slice& slice) override;
  bool retire(const Error& cause) override;
  void close(const Error& cause) override;

 private:
  Link& link_;
  std::map<uint64_t, transport::Slice*> pending_;
  uint64_t next_tag_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

class PullServer {
 public:
  explicit PullServer(Engine& engine) : engine_(engine) {}
  void pull(const std::shared_ptr<Link>& link, ByteView request, rpc::Responder responder);
  void cancel(const std::shared_ptr<Link>& link, uint64_t id);
  // The link is over: what it asked for ends.
  void link_closed(const Link& link);

 private:
  Engine& engine_;
  std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<Transfer>> running_;  // by link and the peer's id
};

}  // namespace moontide::engine
