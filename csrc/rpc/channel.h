// A symmetric channel of small framed messages over one stream: either end calls, answers and notifies; requests are
// pipelined and answered in any order. Bounded: frame length, requests outstanding each way.
//
// Thread: the reactor's. Ownership: the channel owns its stream; callbacks run in turns of the reactor, never inside a
// call, except `closed`, which never runs inside close(). Destroying the channel from within a callback is allowed.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "io/network.h"
#include "wire/codec.h"
#include "wire/frame.h"

namespace moontide::rpc {

// A request or notice that came in.
struct Incoming {
  uint16_t type = 0;
  Bytes payload;
  std::vector<io::Fd> fds;
};

struct Reply {
  Bytes payload;
  std::vector<io::Fd> fds;
};

inline constexpr int64_t kNoTimeout = -1;

class Channel;

// Answers one request, once; may be kept and used in a later turn. Dropped without an answer, it answers INTERNAL.
// Harmless after the channel is gone.
class Responder {
 public:
  Responder(std::weak_ptr<Channel*> channel, uint64_t id) : channel_(std::move(channel)), id_(id) {}
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&&) = delete;
  ~Responder();

  void reply(Bytes payload, const std::vector<int>& fds = {});
  void refuse(const Error& error);
  template <wire::Message T>
  void reply(const T& message) {
    reply(wire::encode(message));
  }

 private:
  std::weak_ptr<Channel*> channel_;
  uint64_t id_;
};

struct ChannelLimits {
  size_t requests_in_max = 4096;                  // unanswered requests of the peer; beyond it reading pauses
  size_t requests_out_max = 65536;                // own calls outstanding; beyond it OVERLOADED
  size_t pending_bytes_max = 64u << 20;           // queued for sending; beyond it calls fail with OVERLOADED
  uint32_t payload_max = wire::kFramePayloadMax;  // of what comes in; beyond it the channel ends
  size_t fds_max = 64;                            // descriptors that came in and belong to no message yet
};

// For a peer that has not said hello.
inline constexpr ChannelLimits kStrangerLimits{
    .requests_in_max = 16, .pending_bytes_max = 64u << 10, .payload_max = 16u << 10, .fds_max = 1};

class Channel final : private io::StreamSink {
 public:
  using Answer = std::move_only_function<void(Result<Reply> reply)>;
  static constexpr uint64_t kFirstCall = 1;  // the id of the first call of either end

  struct Handlers {
    std::move_only_function<void(Incoming request, Responder responder)> request;  // absent: UNSUPPORTED
    std::move_only_function<void(Incoming notice)> notice;                         // absent: dropped
    std::move_only_function<void(Error cause)> closed;                             // the last thing the channel calls
  };

  Channel(io::Reactor& reactor, std::unique_ptr<io::Stream> stream, ChannelLimits limits = {});
  ~Channel() override;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Starts reading. Called once, before any message is expected.
  void start(Handlers handlers);

  // Other handlers from the next message on: a connection changes hands after its handshake.
  void rebind(Handlers handlers);
  // Other limits from now on: a peer that has said who it is gets more than a stranger.
  void limit(const ChannelLimits& limits) { limits_ = limits; }

  // `answer` runs exactly once: with the reply, the peer's refusal, TIMED_OUT after `timeout_ns` (kNoTimeout: the
  // caller has a deadline of its own), PEER_LOST when the
  // stream ends first, CANCELED when the channel is closed or destroyed here.
  void call(uint16_t type, Bytes payload, int64_t timeout_ns, Answer answer, const std::vector<int>& fds = {});

  // Fire and forget, in order with calls.
  void notify(uint16_t type, Bytes payload, const std::vector<int>& fds = {});

  // Ends the channel; outstanding calls get CANCELED in later turns, `closed` is not called.
  void close();

  // From the next message on, what was sent is kept until the other side has said that it came, so that the channel may
  // change streams: suspend(), then resume(). Both sides begin at the same message. Above `bytes_max` kept the channel
  // ends with OVERLOADED.
  void keep_for_resume(size_t bytes_max) { kept_bytes_max_ = bytes_max; }
  // Gives the stream up, not the channel: nothing of it arrives any more. Returns how many messages have arrived.
  uint64_t suspend();
  // Goes on over `stream`, after the `peer_received` messages that the other side has.
  void resume(std::unique_ptr<io::Stream> stream, uint64_t peer_received);
  uint64_t received() const { return received_; }
  // When the last message came, of any kind; at first, when the channel was made.
  int64_t heard_ns() const { return heard_ns_; }

  bool open() const { return stream_ != nullptr || suspended_; }
  io::Stream* stream() { return stream_.get(); }
  size_t calls_outstanding() const { return calls_.size(); }

  // Hands the stream over, for a connection that turns out to carry something else than messages (data streams of a
  // transport). Called from the request handler of the last message, or with nothing outstanding; start the stream with
  // another sink next. The channel is closed after it.
  std::unique_ptr<io::Stream> detach();

 private:
  friend class Responder;
  struct Call {
    Answer answer;
    io::TimerId timer;
  };

  MutableBytes want() override;
  void arrived(size_t count) override;
  void arrived_fds(std::vector<io::Fd> fds) override;
  void closed(Error cause) override;

  void frame_complete();
  void send(const wire::FrameHeader& header, ByteView payload, const std::vector<int>& fds);
  void keep(ByteView frame);
  void acknowledged(uint64_t count);
  void count_received(size_t bytes);
  size_t pending() const { return (stream_ ? stream_->pending() : 0) + (suspended_ ? kept_bytes_ : 0); }
  void answered(uint64_t id, const Result<Bytes>& outcome, const std::vector<int>& fds);
  void fail_soon(Error cause);
  void finish(Error cause, Code for_calls);
  void complete(uint64_t id, Result<Reply> outcome);

  io::Reactor& reactor_;
  std::unique_ptr<io::Stream> stream_;
  ChannelLimits limits_;
  Handlers handlers_;
  std::shared_ptr<Channel*> self_;  // what Responders and posted turns hold weakly

  wire::FrameHeader header_;
  size_t header_filled_ = 0;
  Bytes payload_;
  size_t payload_filled_ = 0;
  std::deque<io::Fd> fds_;

  std::unordered_map<uint64_t, Call> calls_;
  uint64_t next_id_ = kFirstCall;
  size_t requests_in_ = 0;
  size_t kept_bytes_max_ = 0;  // 0: nothing is kept
  std::deque<Bytes> kept_;     // messages sent and not acknowledged
  size_t kept_bytes_ = 0;
  uint64_t dropped_ = 0;   // messages sent and acknowledged
  uint64_t received_ = 0;  // messages
  uint64_t told_ = 0;      // of these, acknowledged to the other side
  size_t untold_bytes_ = 0;
  int64_t heard_ns_;
  bool suspended_ = false;
  uint64_t bindings_ = 0;  // how often handlers were set: a running one is not put back over a newer one
};

}  // namespace moontide::rpc
