// A client's line to the master: requests survive the loss of the connection. What was sent and not answered is sent
// again on the next one, in the order of asking, until its deadline; so every request here is one that may arrive
// twice.
//
// Thread: the reactor's.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "rpc/channel.h"
#include "store/dialer.h"
#include "store/options.h"
#include "wire/store_messages.h"

namespace moontide::store {

class MasterLink {
 public:
  // `resent`: the request went out more than once, so an earlier copy may have had its effect.
  using Answer = std::move_only_function<void(Result<Bytes> reply, bool resent)>;

  MasterLink(io::Reactor& reactor, io::Network& network, const InstanceId& client, const ClientOptions& options);
  // What is under way is answered with CLOSED, inside this call.
  ~MasterLink();

  // `answer` runs exactly once in a later turn: with the reply, the master's refusal, OVERLOADED, or at the deadline
  // UNAVAILABLE (never reached it; says why) or TIMED_OUT. A master that answers UNAVAILABLE is asked again.
  void request(uint16_t type, Bytes payload, int64_t deadline_ns, Answer answer);
  // Lost when there is no connection.
  void notify(uint16_t type, Bytes payload);

  bool connected() const { return welcomed_; }
  // Of the connection; 0: there was none yet.
  uint16_t protocol() const { return protocol_; }
  const std::string& address() const { return dialer_.address(); }

 private:
  struct Request {
    uint16_t type = 0;
    Bytes payload;
    Answer answer;
    io::TimerId timer = 0;
    uint32_t sent = 0;
    bool refused = false;  // waits for send_again()
  };

  void connected(std::unique_ptr<io::Stream> stream);
  void lost(const Error& cause);
  void send(uint64_t number, Request& request);
  void finish(uint64_t number, Result<Bytes> outcome);
  void expired(uint64_t number);
  void send_again();
  void keep_alive();

  io::Reactor& reactor_;
  const InstanceId client_;
  const ClientOptions& options_;
  Dialer dialer_;
  std::unique_ptr<rpc::Channel> channel_;
  uint64_t session_ = 0;
  bool welcomed_ = false;
  uint16_t protocol_ = 0;
  std::string last_error_;
  std::map<uint64_t, Request> requests_;
  uint64_t next_request_ = 1;
  io::Timer keep_alive_;
  io::Timer again_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace moontide::store
