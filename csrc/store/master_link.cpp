#include "store/master_link.h"

namespace moontide::store {
namespace {

constexpr int64_t kAskAgain = 20 * kMillisecond;

}  // namespace

MasterLink::MasterLink(io::Reactor& reactor, io::Network& network, const InstanceId& client,
                       const ClientOptions& options)
    : reactor_(reactor),
      client_(client),
      options_(options),
      dialer_(reactor, network, options.master, options.connect_timeout_ns,
              [this](std::unique_ptr<io::Stream> stream) { connected(std::move(stream)); }),
      keep_alive_(reactor),
      again_(reactor) {
  dialer_.dial();
}

MasterLink::~MasterLink() {
  alive_.reset();
  for (auto& [number, request] : std::exchange(requests_, {})) {
    reactor_.cancel(request.timer);
    request.answer(fail(Code::kClosed, "the store was closed"), request.sent > 1);
  }
}

void MasterLink::request(uint16_t type, Bytes payload, int64_t deadline_ns, Answer answer) {
  if (requests_.size() >= options_.requests_max) {
    return reactor_.post([answer = std::move(answer), waiting = requests_.size()]() mutable {
      answer(fail(Code::kOverloaded, std::to_string(waiting) + " requests to the master are under way"), false);
    });
  }
  uint64_t number = next_request_++;
  Request& request = requests_[number];
  request.type = type;
  request.payload = std::move(payload);
  request.answer = std::move(answer);
  request.timer = reactor_.call_after(deadline_ns - reactor_.now_ns(), [this, number] { expired(number); });
  if (welcomed_) send(number, request);
}

void MasterLink::notify(uint16_t type, Bytes payload) {
  if (welcomed_) channel_->notify(type, std::move(payload));
}

void MasterLink::send(uint64_t number, Request& request) {
  ++request.sent;
  auto answered = [this, alive = std::weak_ptr(alive_), number, session = session_](Result<rpc::Reply> reply) {
    if (alive.expired() || session != session_) return;  // asked again on a later connection
    if (reply) return finish(number, std::move(reply->payload));
    Code code = reply.error().code;
    if (code == Code::kUnavailable) {
      if (auto refused = requests_.find(number); refused != requests_.end()) refused->second.refused = true;
      if (!again_.running()) again_.start(kAskAgain, [this] { send_again(); });
      return;
    }
    if (code != Code::kPeerLost && code != Code::kCanceled) finish(number, std::unexpected(std::move(reply).error()));
  };
  channel_->call(request.type, request.payload, rpc::kNoTimeout, std::move(answered));
}

void MasterLink::send_again() {
  for (auto& [number, request] : requests_) {
    if (std::exchange(request.refused, false) && welcomed_) send(number, request);
  }
}

void MasterLink::finish(uint64_t number, Result<Bytes> outcome) {
  auto found = requests_.extract(number);
  if (found.empty()) return;
  Request& request = found.mapped();
  reactor_.cancel(request.timer);
  request.answer(std::move(outcome), request.sent > 1);
}

void MasterLink::expired(uint64_t number) {
  auto found = requests_.find(number);
  if (found == requests_.end()) return;
  found->second.timer = 0;
  if (found->second.sent > 0)
    return finish(number, fail(Code::kTimedOut, "the master at " + address() + " did not answer in time"));
  const std::string& why = last_error_.empty() ? dialer_.last_error() : last_error_;
  finish(number, fail(Code::kUnavailable, "no connection to the master at " + address() + ": " + why));
}

// ---- the connection

void MasterLink::connected(std::unique_ptr<io::Stream> stream) {
  ++session_;
  channel_ = std::make_unique<rpc::Channel>(reactor_, std::move(stream));
  channel_->start({.request = {}, .notice = {}, .closed = [this](Error cause) { lost(cause); }});
  auto welcomed = [this, alive = std::weak_ptr(alive_), session = session_](Result<rpc::Reply> reply) {
    if (alive.expired() || session != session_) return;
    if (!reply) return lost(reply.error());
    auto welcome = wire::decode_prefix<wire::ClientWelcome>(reply->payload);
    if (!welcome) return lost(welcome.error());
    welcomed_ = true;
    protocol_ = welcome->protocol;
    last_error_.clear();
    dialer_.succeeded();
    for (auto& [number, request] : requests_) {
      request.refused = false;
      send(number, request);
    }
    keep_alive();
  };
  channel_->call(wire::kClientHello, wire::encode(wire::ClientHello{{}, client_}), options_.connect_timeout_ns,
                 std::move(welcomed));
}

void MasterLink::lost(const Error& cause) {
  if (!channel_) return;
  ++session_;
  welcomed_ = false;
  last_error_ = cause.text();
  keep_alive_.stop();
  channel_->close();
  reactor_.post([channel = std::shared_ptr<rpc::Channel>(std::move(channel_))] {});  // it may be the caller
  dialer_.dial();
}

void MasterLink::keep_alive() {
  keep_alive_.start(options_.keep_alive_ns, [this] {
    auto answered = [this, alive = std::weak_ptr(alive_), session = session_](Result<rpc::Reply> reply) {
      if (alive.expired() || session != session_) return;
      if (!reply) return lost(reply.error());
      keep_alive();
    };
    channel_->call(wire::kKeepAlive, {}, 3 * options_.keep_alive_ns, std::move(answered));
  });
}

}  // namespace moontide::store
