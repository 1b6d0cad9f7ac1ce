// Keeps the control channel of a link with several rails alive: the side that opened the link asks for a sign of life
// again and again, and moves the channel to another pair of devices when none comes. No message is lost or doubled.
//
// Thread: under the engine's lock. Lives as long as the link and its channel.
#pragma once

#include <memory>

#include "engine/identity.h"
#include "engine/rails.h"
#include "io/reactor.h"
#include "rpc/channel.h"

namespace moontide::engine {

class Link;

class Control {
 public:
  Control(Engine& engine, Link& link, rpc::Channel& channel, const LinkIdentity& identity);

  // When the peer last showed life on the channel.
  int64_t alive_ns() const { return alive_ns_; }
  void heard();

  // The peer comes by another rail: stops the old connection and says how many messages came over it.
  uint64_t suspend() { return channel_.suspend(); }
  void resumed(std::unique_ptr<io::Stream> stream, uint64_t peer_received);

 private:
  void beat();
  void move();
  void try_next();
  void tried(Result<Connection> connection);

  Engine& engine_;
  Link& link_;
  rpc::Channel& channel_;
  const LinkIdentity& identity_;
  io::Timer timer_;
  int64_t alive_ns_;
  uint32_t rail_ = 0;
  int64_t move_until_ns_ = 0;
};

}  // namespace moontide::engine
