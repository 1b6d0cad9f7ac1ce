#include "transport/tcp/tcp.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <unordered_map>

#include "transport/tcp/data_stream.h"

namespace moontide::transport {
namespace {

constexpr size_t kSlicesMax = 64;       // posted and not answered, of urgent ones and of the others
constexpr size_t kFencedIdsMax = 1024;  // remembered for streams that were fenced before they arrived
constexpr size_t kStreamsMax = 64;
// Urgent slices have a stream of their own, so that no bulk is before them in a socket; its id says so.
constexpr uint64_t kUrgentStream = uint64_t{1} << 63;

class TcpEndpoint final : public Endpoint, private tcp::DataStreamOwner {
 public:
  TcpEndpoint(LinkContext& link, uint32_t rail, uint32_t streams)
      : link_(link),
        rail_(rail),
        name_(rail == 0 ? "tcp" : "tcp." + std::to_string(rail)),
        streams_wanted_{streams, 1} {}

  std::string_view name() const override { return name_; }
  std::string_view transport() const override { return "tcp"; }
  void start(std::move_only_function<void(Result<>)> ready) override { ready({}); }
  bool reaches(const RemoteRegion& remote, Op) const override { return remote.key(transport()) != nullptr; }
  size_t room(bool urgent) const override { return used_[urgent] < kSlicesMax ? kSlicesMax - used_[urgent] : 0; }

  void post(Slice& slice) override {
    slice.endpoint = this;
    slice.tag = next_tag_++;
    ++used_[slice.urgent];
    if (has_stream(slice.urgent)) return send(slice);
    waiting_.push_back(&slice);
    want_streams(slice.urgent);
  }

  void cancel(Slice& slice) override {
    if (auto at = std::ranges::find(waiting_, &slice); at != waiting_.end()) {
      waiting_.erase(at);
      return complete(slice, fail(Code::kCanceled, ""));
    }
    auto found = pending_.find(slice.tag);
    if (found == pending_.end() || found->second.slice != &slice) return;
    if (slice.op == Op::kRead) {
      // the answer, also one that is arriving now, goes into scratch from here on (DataStream::want)
      forget(found);
      complete(slice, fail(Code::kCanceled, ""));
    } else if (tcp::DataStream* stream = found->second.stream) {
      // bytes of it may be in the socket already: give the stream up and have the owner drop it
      reset(*stream, {Code::kUnavailable, "a write on the same stream was canceled"}, slice.tag);
    }
  }

  void reset(const Error& cause) override {
    fail_waiting(cause);
    while (!streams_.empty()) reset(*streams_.front(), cause);
  }

  void revive(std::move_only_function<void(Result<>)> working) override {
    if (reviving_) std::exchange(reviving_, {})(fail(Code::kCanceled, "tried again"));
    reviving_ = std::move(working);
    if (link_.initiator()) {
      open_stream(false);
    } else {
      want_streams(false);
    }
  }

  // The twin has something to send and may not open streams itself.
  void message(Bytes payload, std::vector<io::Fd>) override {
    if (link_.initiator() && payload.size() == 1) want_streams(payload[0] != std::byte{0});
  }

  void accepted(uint64_t id, std::unique_ptr<io::Stream> stream) override {
    if (fenced_.contains(id) || streams_.size() >= kStreamsMax) return;
    add(id, std::move(stream));
  }

  void fence_stream(uint64_t id) override {
    if (fenced_.size() >= kFencedIdsMax) fenced_.erase(fenced_.begin());
    fenced_.insert(id);
    for (auto& stream : streams_) {
      if (stream->id() == id) {
        reset(*stream, {Code::kUnavailable, "the peer dropped the stream"});
        return;
      }
    }
  }

  bool retire(const Error& cause) override {
    closed_ = true;
    streams_.clear();  // nothing lands here or is read here any more
    for (Slice* slice : std::exchange(waiting_, {})) complete(*slice, std::unexpected(cause));
    std::vector<uint64_t> reads;
    for (auto& [tag, entry] : pending_) {
      entry.stream = nullptr;
      if (entry.slice->op == Op::kRead) reads.push_back(tag);
    }
    std::ranges::sort(reads);
    for (uint64_t tag : reads) finish(tag, std::unexpected(cause));
    return !pending_.empty();
  }

  void close(const Error& cause) override {
    closed_ = true;
    streams_.clear();  // nothing lands or is read any more
    auto waiting = std::exchange(waiting_, {});
    auto pending = std::exchange(pending_, {});
    for (Slice* slice : waiting) complete(*slice, std::unexpected(cause));
    for (auto& [tag, entry] : pending) complete(*entry.slice, std::unexpected(cause));
  }

 private:
  struct Pending {
    Slice* slice;
    tcp::DataStream* stream;                    // null: the stream is gone and being fenced
    bool sent = false;                          // a write: the socket has taken all of it
    std::optional<Code> answer = std::nullopt;  // came before that was known
  };
  using PendingMap = std::unordered_map<uint64_t, Pending>;

  // --- streams ---

  bool has_stream(bool urgent) const {
    return std::ranges::any_of(streams_, [&](const auto& stream) { return is_urgent(*stream) == urgent; });
  }
  static bool is_urgent(const tcp::DataStream& stream) { return (stream.id() & kUrgentStream) != 0; }

  void want_streams(bool urgent) {
    if (!link_.initiator()) {
      // asked again with each slice: asking is cheap, and an attempt may have failed
      link_.send(name(), Bytes(1, std::byte{urgent}), {});
      return;
    }
    size_t there = std::ranges::count_if(streams_, [&](const auto& s) { return is_urgent(*s) == urgent; });
    for (size_t i = there + opening_[urgent]; i < streams_wanted_[urgent]; ++i) open_stream(urgent);
  }

  void open_stream(bool urgent) {
    ++opening_[urgent];
    uint64_t id = next_stream_id_++ | (urgent ? kUrgentStream : 0);
    auto opened = [this, alive = std::weak_ptr<bool>(alive_), id, urgent](Result<std::unique_ptr<io::Stream>> stream) {
      if (alive.expired() || closed_) return;
      --opening_[urgent];
      if (stream) return add(id, std::move(*stream));
      if (!urgent && reviving_) std::exchange(reviving_, {})(std::unexpected(stream.error()));
      if (!has_stream(urgent) && opening_[urgent] == 0) fail_waiting(stream.error());
    };
    link_.open_stream(name(), rail_, id, std::move(opened));
  }

  void add(uint64_t id, std::unique_ptr<io::Stream> stream) {
    streams_.push_back(
        std::make_unique<tcp::DataStream>(id, std::move(stream), static_cast<tcp::DataStreamOwner&>(*this)));
    streams_.back()->start();
    if (reviving_) std::exchange(reviving_, {})({});
    for (Slice* slice : std::exchange(waiting_, {})) {
      if (has_stream(slice->urgent)) {
        send(*slice);
      } else {
        waiting_.push_back(slice);
      }
    }
  }

  void fail_waiting(const Error& cause) {
    auto waiting = std::exchange(waiting_, {});
    for (Slice* slice : waiting) {
      complete(*slice, fail(Code::kUnavailable, "no data stream: " + cause.text()));
    }
  }

  // Ends a stream. Reads on it are quiet at once; writes only when the owner of the target has dropped it too.
  // All are worth another try but `canceled`.
  void reset(tcp::DataStream& stream, const Error& cause, uint64_t canceled = 0) {
    uint64_t id = stream.id();
    std::vector<uint64_t> reads, writes;
    for (auto& [tag, entry] : pending_) {
      if (entry.stream != &stream) continue;
      entry.stream = nullptr;
      (entry.slice->op == Op::kRead ? reads : writes).push_back(tag);
    }
    std::erase_if(streams_, [&](const auto& candidate) { return candidate.get() == &stream; });
    std::ranges::sort(reads);
    std::ranges::sort(writes);
    for (uint64_t tag : reads) finish(tag, std::unexpected(Error{Code::kUnavailable, cause.message}));
    if (writes.empty()) return;
    link_.fence_stream(name(), id, [this, alive = std::weak_ptr<bool>(alive_), writes, cause, canceled] {
      if (alive.expired()) return;
      for (uint64_t tag : writes) {
        finish(tag, tag == canceled ? fail(Code::kCanceled, "") : fail(Code::kUnavailable, cause.message));
      }
    });
  }

  // --- slices ---

  void send(Slice& slice) {
    auto load = [&](const auto& s) { return std::pair(is_urgent(*s) != slice.urgent, s->outstanding); };
    auto& stream = **std::ranges::min_element(streams_, {}, load);
    pending_.emplace(slice.tag, Pending{&slice, &stream});
    stream.outstanding += slice.length + 1;
    if (slice.op == Op::kRead) {
      stream.send_read(slice.tag, slice);
    } else {
      stream.send_write(slice.tag, slice);
    }
  }

  void forget(PendingMap::iterator at) {
    if (at->second.stream) at->second.stream->outstanding -= at->second.slice->length + 1;
    pending_.erase(at);
  }

  void finish(uint64_t tag, Result<> outcome) {
    auto found = pending_.find(tag);
    if (found == pending_.end()) return;
    Slice& slice = *found->second.slice;
    forget(found);
    complete(slice, std::move(outcome));
  }

  void complete(Slice& slice, Result<> outcome) {
    --used_[slice.urgent];
    slice.owner->completed(slice, std::move(outcome));
  }

  // --- DataStreamOwner ---

  memory::Registry& registry() override { return link_.registry(); }

  Slice* reading(uint64_t tag) override {
    auto found = pending_.find(tag);
    return found != pending_.end() && found->second.slice->op == Op::kRead ? found->second.slice : nullptr;
  }

  void write_sent(uint64_t tag) override {
    auto found = pending_.find(tag);
    if (found == pending_.end()) return;
    found->second.sent = true;
    if (found->second.answer) answered(tag, Op::kWrite, *found->second.answer);
  }

  void progressed(uint64_t tag, uint64_t bytes) override {
    auto found = pending_.find(tag);
    if (found != pending_.end()) found->second.slice->owner->progressed(*found->second.slice, bytes);
  }

  void answered(uint64_t tag, Op op, Code code) override {
    auto found = pending_.find(tag);
    if (found == pending_.end() || found->second.slice->op != op) return;
    if (op == Op::kWrite && !found->second.sent) {
      // until the socket has taken the bytes it refers to memory that a completed slice hands back
      found->second.answer = code;
      return;
    }
    if (code == Code::kOk) {
      finish(tag, {});
    } else {
      finish(tag, fail(code, "refused by the owner of the memory"));
    }
  }

  void stream_closed(tcp::DataStream& stream, const Error& cause) override {
    reset(stream, {Code::kUnavailable, "data stream lost: " + cause.text()});
  }

  LinkContext& link_;
  const uint32_t rail_;
  const std::string name_;
  // Of these, the second counts what is urgent.
  const size_t streams_wanted_[2];
  size_t opening_[2] = {0, 0};
  size_t used_[2] = {0, 0};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<std::unique_ptr<tcp::DataStream>> streams_;
  std::deque<Slice*> waiting_;
  PendingMap pending_;
  std::set<uint64_t> fenced_;
  uint64_t next_tag_ = 1;
  uint64_t next_stream_id_ = 1;
  std::move_only_function<void(Result<>)> reviving_;
  bool closed_ = false;
};

}  // namespace

Result<std::shared_ptr<Endpoint>> TcpTransport::connect(LinkContext& link, uint32_t rail) {
  return std::make_shared<TcpEndpoint>(link, rail, streams_);
}

}  // namespace moontide::transport
