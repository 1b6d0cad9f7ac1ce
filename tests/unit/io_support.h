// Helpers of the io tests: driving an EpollReactor from the test's thread, and sinks that record.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/epoll_reactor.h"
#include "io/network.h"
#include "io/socket.h"

namespace moontide::io::test {

// Runs turns until `ready` or five seconds passed.
inline bool run_until(EpollReactor& reactor, const std::function<bool()>& ready, int64_t within_ns = 5 * kSecond) {
  const int64_t deadline_ns = reactor.now_ns() + within_ns;
  EpollReactor::Harvest harvest;
  while (!ready()) {
    if (reactor.now_ns() >= deadline_ns) return false;
    reactor.wait(reactor.prepare_wait(deadline_ns), harvest);
    reactor.dispatch(harvest);
  }
  return true;
}

// Keeps what arrives; gives at most `room` bytes at a time, nothing once `capacity` bytes are there.
class RecordingSink : public StreamSink {
 public:
  explicit RecordingSink(size_t room = 4096, size_t capacity = SIZE_MAX) : room_(room), capacity_(capacity) {}

  MutableBytes want() override {
    const size_t size = std::min(room_, capacity_ - data.size());
    buffer_.resize(size);
    return buffer_;
  }
  void arrived(size_t count) override {
    CHECK(count > 0);
    CHECK(count <= buffer_.size());
    data.insert(data.end(), buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(count));
    if (on_arrived) on_arrived();
  }
  void arrived_fds(std::vector<Fd> more) override {
    for (Fd& fd : more) fds.push_back(std::move(fd));
  }
  void closed(Error cause) override {
    ++closes;
    error = std::move(cause);
    if (on_closed) on_closed();
  }
  void set_capacity(size_t capacity) { capacity_ = capacity; }
  std::string text() const { return std::string(as_text(data)); }

  Bytes data;
  std::vector<Fd> fds;
  int closes = 0;
  Error error;
  std::function<void()> on_arrived;
  std::function<void()> on_closed;

 private:
  size_t room_;
  size_t capacity_;
  Bytes buffer_;
};

// Two ends of one connection.
struct Pair {
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Stream> client;
  std::unique_ptr<Stream> server;
};

inline Pair connect_pair(EpollReactor& reactor, Network& network, const std::string& address) {
  Pair pair;
  auto listener = network.listen(address, [&pair](std::unique_ptr<Stream> stream) { pair.server = std::move(stream); });
  REQUIRE_MESSAGE(listener, (listener ? "" : listener.error().text()));
  pair.listener = std::move(*listener);
  network.connect(pair.listener->address(), kSecond, [&pair](Result<std::unique_ptr<Stream>> stream) {
    REQUIRE_MESSAGE(stream, (stream ? "" : stream.error().text()));
    pair.client = std::move(*stream);
  });
  REQUIRE(run_until(reactor, [&pair] { return pair.client && pair.server; }));
  return pair;
}

inline Bytes pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  SeededRandom random(seed);
  random.fill(bytes);
  return bytes;
}

}  // namespace moontide::io::test
