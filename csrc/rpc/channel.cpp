#include "rpc/channel.h"

#include <algorithm>

namespace moontide::rpc {
namespace {

// So many messages or bytes have come: time to say so.
constexpr uint64_t kAckMessages = 16;
constexpr size_t kAckBytes = 64u << 10;

}  // namespace

Responder::~Responder() {
  // still usable means never answered
  if (auto channel = channel_.lock()) (*channel)->answered(id_, fail(Code::kInternal, "the request was dropped"), {});
}

void Responder::reply(Bytes payload, const std::vector<int>& fds) {
  if (auto channel = std::exchange(channel_, {}).lock()) (*channel)->answered(id_, std::move(payload), fds);
}

void Responder::refuse(const Error& error) {
  if (auto channel = std::exchange(channel_, {}).lock()) (*channel)->answered(id_, std::unexpected(error), {});
}

Channel::Channel(io::Reactor& reactor, std::unique_ptr<io::Stream> stream, ChannelLimits limits)
    : reactor_(reactor),
      stream_(std::move(stream)),
      limits_(limits),
      self_(std::make_shared<Channel*>(this)),
      heard_ns_(reactor.now_ns()) {}

Channel::~Channel() { close(); }

void Channel::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  ++bindings_;
  stream_->start(*this);
}

void Channel::rebind(Handlers handlers) {
  handlers_ = std::move(handlers);
  ++bindings_;
}

void Channel::call(uint16_t type, Bytes payload, int64_t timeout_ns, Answer answer, const std::vector<int>& fds) {
  Error refusal;
  if (!open()) {
    refusal = {Code::kPeerLost, "the connection is closed"};
  } else if (calls_.size() >= limits_.requests_out_max || pending() > limits_.pending_bytes_max) {
    refusal = {Code::kOverloaded, std::to_string(calls_.size()) + " requests and " + std::to_string(pending()) +
                                      " bytes are waiting on this connection"};
  } else if (payload.size() > wire::kFramePayloadMax) {
    refusal = {Code::kTooLarge, "message of " + std::to_string(payload.size()) + " bytes"};
  } else {
    uint64_t id = next_id_++;
    Call call{std::move(answer), 0};
    if (timeout_ns != kNoTimeout) {
      call.timer = reactor_.call_after(timeout_ns, [this, id, timeout_ns] {
        complete(id, fail(Code::kTimedOut, "no answer for " + std::to_string(timeout_ns / kMillisecond) + " ms"));
      });
    }
    calls_.emplace(id, std::move(call));
    wire::FrameHeader header;
    header.kind = wire::FrameKind::kRequest;
    header.type = type;
    header.id = id;
    send(header, payload, fds);
    return;
  }
  reactor_.post(
      [answer = std::move(answer), refusal = std::move(refusal)]() mutable { answer(std::unexpected(refusal)); });
}

void Channel::notify(uint16_t type, Bytes payload, const std::vector<int>& fds) {
  if (!open() || payload.size() > wire::kFramePayloadMax) return;
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kNotice;
  header.type = type;
  send(header, payload, fds);
}

void Channel::send(const wire::FrameHeader& header_in, ByteView payload, const std::vector<int>& fds) {
  wire::FrameHeader header = header_in;
  header.length = static_cast<uint32_t>(payload.size());
  header.fd_count = static_cast<uint8_t>(fds.size());
  Bytes frame(sizeof header + payload.size());
  std::memcpy(frame.data(), &header, sizeof header);
  if (!payload.empty()) std::memcpy(frame.data() + sizeof header, payload.data(), payload.size());
  if (header.kind != wire::FrameKind::kRequest && pending() > limits_.pending_bytes_max) {
    // calls are refused above the bound; a peer that does not take its answers is not a peer any more
    return fail_soon({Code::kOverloaded, "the peer does not read its answers"});
  }
  if (kept_bytes_max_ > 0 && header.kind != wire::FrameKind::kAck) keep(frame);
  if (!stream_) return;
  if (fds.empty()) {
    stream_->write(frame);
  } else if (!stream_->write_with_fds(frame, fds)) {
    header.fd_count = 0;  // not a local socket: the message goes without them
    std::memcpy(frame.data(), &header, sizeof header);
    stream_->write(frame);
  }
}

// --- another stream under the same channel ---

void Channel::keep(ByteView frame) {
  kept_bytes_ += frame.size();
  kept_.push_back(to_bytes(frame));
  if (kept_bytes_ > kept_bytes_max_) fail_soon({Code::kOverloaded, "the peer does not say what has come"});
}

void Channel::acknowledged(uint64_t count) {
  if (count < dropped_ || count - dropped_ > kept_.size()) {
    return finish({Code::kPeerLost, "the peer has more messages than were sent"}, Code::kPeerLost);
  }
  for (; dropped_ < count; ++dropped_) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
}

void Channel::count_received(size_t bytes) {
  ++received_;
  untold_bytes_ += bytes;
  if (received_ - told_ < kAckMessages && untold_bytes_ < kAckBytes) return;
  told_ = received_;
  untold_bytes_ = 0;
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kAck;
  header.id = received_;
  send(header, {}, {});
}

uint64_t Channel::suspend() {
  if (stream_) {
    stream_->close();
    // the stream may be the caller: it goes in a later turn
    reactor_.post([stream = std::shared_ptr<io::Stream>(std::move(stream_))] {});
    suspended_ = true;
    header_filled_ = payload_filled_ = 0;  // the rest of a message will not come; it is sent again
    payload_.clear();
  }
  return received_;
}

void Channel::resume(std::unique_ptr<io::Stream> stream, uint64_t peer_received) {
  if (!suspended_) return;
  suspended_ = false;
  stream_ = std::move(stream);
  std::weak_ptr<Channel*> alive = self_;
  acknowledged(peer_received);
  if (alive.expired() || !stream_) return;
  for (const Bytes& frame : kept_) stream_->write(frame);
  stream_->start(*this);
}

void Channel::answered(uint64_t id, const Result<Bytes>& outcome, const std::vector<int>& fds) {
  bool was_full = requests_in_ >= limits_.requests_in_max;
  --requests_in_;
  if (!open()) return;
  wire::FrameHeader header;
  header.kind = wire::FrameKind::kReply;
  header.id = id;
  if (outcome && outcome->size() <= wire::kFramePayloadMax) {
    send(header, *outcome, fds);
  } else {
    Error error = outcome ? Error{Code::kTooLarge, "the reply is too long"} : outcome.error();
    header.type = static_cast<uint16_t>(error.code);
    send(header, as_bytes(std::string_view(error.message).substr(0, 4096)), {});
  }
  if (was_full && stream_) stream_->resume();
}

MutableBytes Channel::want() {
  if (header_filled_ < sizeof header_) {
    // a peer that asks faster than it is answered waits
    if (header_filled_ == 0 && requests_in_ >= limits_.requests_in_max) return {};
    return std::as_writable_bytes(std::span(&header_, 1)).subspan(header_filled_);
  }
  // room grows with what has arrived: a header alone makes nobody allocate its length
  size_t room = std::min<size_t>(header_.length, std::max<size_t>(payload_filled_ * 2, 64u << 10));
  if (payload_.size() < room) payload_.resize(room);
  return MutableBytes(payload_).subspan(payload_filled_);
}

void Channel::arrived(size_t count) {
  if (header_filled_ < sizeof header_) {
    header_filled_ += count;
    if (header_filled_ < sizeof header_) return;
    if (auto checked = header_.check(); !checked) return finish(checked.error(), Code::kPeerLost);
    if (header_.length > limits_.payload_max) {
      return finish({Code::kInvalid, "message of " + std::to_string(header_.length) + " bytes, the limit is " +
                                         std::to_string(limits_.payload_max)},
                    Code::kPeerLost);
    }
    payload_filled_ = 0;
    if (header_.length > 0) return;
  } else {
    payload_filled_ += count;
  }
  if (payload_filled_ == header_.length) frame_complete();
}

void Channel::arrived_fds(std::vector<io::Fd> fds) {
  for (io::Fd& fd : fds) {
    if (fds_.size() < limits_.fds_max) fds_.push_back(std::move(fd));
  }
}

void Channel::frame_complete() {
  heard_ns_ = reactor_.now_ns();
  Incoming incoming;
  incoming.type = header_.type;
  payload_.resize(header_.length);
  incoming.payload = std::exchange(payload_, {});
  for (uint8_t i = 0; i < header_.fd_count && !fds_.empty(); ++i) {
    incoming.fds.push_back(std::move(fds_.front()));
    fds_.pop_front();
  }
  wire::FrameKind kind = header_.kind;
  uint64_t id = header_.id;
  header_filled_ = 0;
  if (kind == wire::FrameKind::kAck) return acknowledged(id);
  if (kept_bytes_max_ > 0) count_received(incoming.payload.size());
  if (kind == wire::FrameKind::kReply) {
    auto code = static_cast<Code>(incoming.type);
    if (code == Code::kOk) {
      complete(id, Reply{std::move(incoming.payload), std::move(incoming.fds)});
    } else {
      if (code > Code::kInternal) code = Code::kInternal;
      complete(id, fail(code, std::string(as_text(incoming.payload))));
    }
    return;
  }
  // handlers may destroy the channel: run a copy that outlives it, and put it back if the channel is still there
  std::weak_ptr<Channel*> alive = self_;
  uint64_t binding = bindings_;
  if (kind == wire::FrameKind::kNotice) {
    if (!handlers_.notice) return;
    auto notice = std::move(handlers_.notice);
    notice(std::move(incoming));
    if (!alive.expired() && binding == bindings_) handlers_.notice = std::move(notice);
    return;
  }
  ++requests_in_;
  Responder responder(self_, id);
  if (!handlers_.request) return responder.refuse({Code::kUnsupported, "no requests are answered here"});
  auto request = std::move(handlers_.request);
  request(std::move(incoming), std::move(responder));
  if (!alive.expired() && binding == bindings_) handlers_.request = std::move(request);
}

void Channel::complete(uint64_t id, Result<Reply> outcome) {
  auto found = calls_.find(id);
  if (found == calls_.end()) return;  // answered after its deadline
  Call call = std::move(found->second);
  calls_.erase(found);
  reactor_.cancel(call.timer);
  call.answer(std::move(outcome));
}

void Channel::fail_soon(Error cause) {
  reactor_.post([alive = std::weak_ptr<Channel*>(self_), cause = std::move(cause)]() mutable {
    if (auto channel = alive.lock()) (*channel)->finish(std::move(cause), Code::kPeerLost);
  });
}

void Channel::closed(Error cause) { finish(std::move(cause), Code::kPeerLost); }

void Channel::finish(Error cause, Code for_calls) {
  if (!open()) return;
  suspended_ = false;
  kept_.clear();
  if (stream_) {
    stream_->close();
    // the stream may be the caller: it goes in a later turn
    reactor_.post([stream = std::shared_ptr<io::Stream>(std::move(stream_))] {});
  }
  std::vector<std::pair<uint64_t, Call>> calls(std::make_move_iterator(calls_.begin()),
                                               std::make_move_iterator(calls_.end()));
  calls_.clear();
  std::ranges::sort(calls, {}, [](const auto& item) { return item.first; });
  for (auto& [id, call] : calls) {
    reactor_.cancel(call.timer);
    reactor_.post(
        [answer = std::move(call.answer), cause, for_calls]() mutable { answer(fail(for_calls, cause.message)); });
  }
  if (for_calls == Code::kPeerLost && handlers_.closed) {
    auto on_closed = std::move(handlers_.closed);
    on_closed(std::move(cause));
  }
}

void Channel::close() { finish({Code::kCanceled, "closed here"}, Code::kCanceled); }

std::unique_ptr<io::Stream> Channel::detach() {
  MT_CHECK(calls_.empty(), "calls outstanding: " + std::to_string(calls_.size()));
  return std::move(stream_);
}

}  // namespace moontide::rpc
