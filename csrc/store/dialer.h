// Connects to one address, again after every loss, with growing random pauses, so that many who lost the same peer do
// not come back at once.
//
// Thread: the reactor's.
#pragma once

#include <memory>
#include <string>

#include "io/network.h"

namespace moontide::store {

class Dialer {
 public:
  using Connected = std::move_only_function<void(std::unique_ptr<io::Stream> stream)>;

  Dialer(io::Reactor& reactor, io::Network& network, std::string address, int64_t timeout_ns, Connected connected)
      : reactor_(reactor),
        network_(network),
        address_(std::move(address)),
        timeout_ns_(timeout_ns),
        connected_(std::move(connected)),
        pause_(reactor) {}

  // Connects after the pause that is due; `connected` runs in a later turn. Ignored while one attempt is under way.
  void dial();
  // The connection proved useful: the next pause is short again.
  void succeeded() { attempts_ = 0; }
  const std::string& address() const { return address_; }
  // Why the last attempt failed; empty when it did not.
  const std::string& last_error() const { return last_error_; }

 private:
  void attempt();

  io::Reactor& reactor_;
  io::Network& network_;
  std::string address_;
  int64_t timeout_ns_;
  Connected connected_;
  io::Timer pause_;
  uint32_t attempts_ = 0;
  bool connecting_ = false;
  std::string last_error_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
