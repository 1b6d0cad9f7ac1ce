// A stream whose other end is the fuzz target: it hands bytes to the sink in pieces of any size and takes what was
// written when the target says so. References are read only then, so a hand-back too early is a read of freed memory.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>

#include "fuzz/fuzz.h"
#include "io/network.h"

namespace moontide::fuzz {

// The state of the connection; outlives the stream, which may be destroyed inside the sink's calls.
struct Wire {
  struct Write {
    Bytes copy{};
    std::vector<ByteView> references{};
    io::Stream::Sent sent{};
    size_t size = 0;
  };
  io::StreamSink* sink = nullptr;
  bool open = true;
  std::deque<Write> writes;
  size_t pending = 0;
  Bytes coming;  // sent by the target and not taken by the sink yet

  // Gives the sink what is coming, at most `piece` bytes at a time, until it pauses or is gone.
  void deliver(size_t piece) {
    size_t at = 0;
    const Bytes bytes = std::exchange(coming, {});
    while (at < bytes.size() && open && sink != nullptr) {
      MutableBytes places[4];
      places[0] = sink->want();
      if (places[0].empty()) break;
      const size_t more = 1 + sink->want_more(std::span(places).subspan(1));
      size_t given = 0;
      for (size_t i = 0; i < more && given < piece && at + given < bytes.size(); ++i) {
        const size_t n = std::min({places[i].size(), piece - given, bytes.size() - at - given});
        std::memcpy(places[i].data(), bytes.data() + at + given, n);
        given += n;
        if (n < places[i].size()) break;
      }
      at += given;
      sink->arrived(given);
    }
    coming.insert(coming.begin(), bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end());
  }

  // Takes the oldest write, as the kernel would; the bytes it had.
  Bytes take_write() {
    if (writes.empty()) return {};
    Write write = std::move(writes.front());
    writes.pop_front();
    pending -= write.size;
    Bytes all = std::move(write.copy);
    for (ByteView part : write.references) all.insert(all.end(), part.begin(), part.end());
    if (write.sent) write.sent({});
    return all;
  }

  // The other end or the network ends it.
  void end() {
    if (!open || sink == nullptr) return;
    open = false;
    std::exchange(sink, nullptr)->closed({Code::kPeerLost, "ended"});
  }
};

class WireStream : public io::Stream {
 public:
  explicit WireStream(std::shared_ptr<Wire> wire) : wire_(std::move(wire)) {}
  ~WireStream() override { drop(); }

  void start(io::StreamSink& sink) override { wire_->sink = &sink; }
  void resume() override {}
  void write(ByteView bytes) override { queue({.copy = to_bytes(bytes), .size = bytes.size()}); }
  void write_reference(ByteView bytes, Sent sent) override {
    queue({.references = {bytes}, .sent = std::move(sent), .size = bytes.size()});
  }
  void write_references(ByteView head, std::span<const ByteView> parts, Sent sent) override {
    size_t size = head.size();
    for (ByteView part : parts) size += part.size();
    queue({to_bytes(head), {parts.begin(), parts.end()}, std::move(sent), size});
  }
  Result<> write_with_fds(ByteView, const std::vector<int>&) override {
    return fail(Code::kUnsupported, "no descriptors here");
  }
  size_t pending() const override { return wire_->pending; }
  void close() override { drop(); }
  std::string local_address() const override { return "fuzz"; }
  std::string peer_address() const override { return "fuzz"; }
  Result<io::PeerCredentials> credentials() const override { return fail(Code::kUnsupported, "nobody is there"); }

 private:
  void queue(Wire::Write write) {
    if (!wire_->open) return;
    wire_->pending += write.size;
    wire_->writes.push_back(std::move(write));
  }
  void drop() {
    wire_->open = false;
    wire_->sink = nullptr;
    wire_->writes.clear();
    wire_->pending = 0;
  }

  std::shared_ptr<Wire> wire_;
};

}  // namespace moontide::fuzz
