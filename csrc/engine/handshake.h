// How links come about. The opener connects, asks who is there (probe), moves to the local socket when both are on one
// host, and says hello; the acceptor answers and both have a link. Versions are refused here, with both values.
#pragma once

#include <memory>
#include <string>

#include "engine/link.h"

namespace moontide::engine {

class Engine;

// Opens one link; keeps itself alive until `opened` has run, once.
class Opener final : public std::enable_shared_from_this<Opener> {
 public:
  using Opened = std::move_only_function<void(Result<LinkRef>)>;
  Opener(Engine& engine, std::string address, int64_t timeout_ns, Opened opened);
  void start();
  // The engine goes: nothing is called back any more.
  void abort();

 private:
  void connect(const std::string& address, std::move_only_function<void(Result<>)> next);
  void probe();
  void probed(const wire::ProbeReply& peer);
  void hello(bool local);
  void greeted(bool local, Result<rpc::Reply> reply);
  void finish(Result<LinkRef> link);
  int64_t left_ns() const;

  Engine& engine_;
  std::weak_ptr<bool> engine_alive_;
  std::string address_;
  bool within_;  // to this engine itself, through an in-process stream
  int64_t deadline_ns_;
  Opened opened_;
  std::unique_ptr<rpc::Channel> channel_;
  std::unique_ptr<rpc::Channel> fallback_;  // the tcp connection, while the local one is tried
  wire::ProbeReply peer_;
  std::vector<InstanceId> superseded_;  // named in the hello
};

// A connection that came in and has not said what it is. Gives up after the connect timeout.
class Acceptor final : public std::enable_shared_from_this<Acceptor> {
 public:
  // `within`: the stream comes from this engine itself.
  Acceptor(Engine& engine, std::unique_ptr<io::Stream> stream, bool within, std::move_only_function<void()> over);
  void start();
  void close();

 private:
  void request(rpc::Incoming request, rpc::Responder responder);
  Result<> check_protocol(const wire::ProtocolRange& theirs) const;
  void hello(rpc::Incoming request, rpc::Responder responder);
  void resume(rpc::Incoming incoming, rpc::Responder responder);
  void data_stream(rpc::Incoming request, rpc::Responder responder);
  void finish();

  Engine& engine_;
  std::unique_ptr<rpc::Channel> channel_;
  bool within_;
  std::move_only_function<void()> over_;
  io::Timer deadline_;
  int asked_ = 0;
};

}  // namespace moontide::engine
