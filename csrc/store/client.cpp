#include "store/client.h"

#include <algorithm>

#include "base/hash.h"
#include "store/get_operation.h"
#include "store/put_operation.h"
#include "store/retention.h"
#include "store/view_request.h"

namespace moontide::store {
namespace {

constexpr size_t kTouchesPerNotice = 256;
constexpr int64_t kTouchEvery = kSecond / 2;

// Not inlined: g++ 12 would take the payload for uninitialized.
template <wire::Message T>
[[gnu::noinline]] Result<T> read_answer(const Result<Bytes>& payload) {
  if (!payload) return std::unexpected(payload.error());
  return wire::decode<T>(*payload);
}

}  // namespace

Client::Client(io::Reactor& reactor, io::Network& network, engine::Engine& engine, ClientOptions options)
    : reactor_(reactor),
      engine_(engine),
      options_(std::move(options)),
      id_(InstanceId::make(reactor.random())),
      master_(reactor, network, id_, options_),
      commits_(reactor, master_, options_.commits_max),
      locations_(options_.locations_max),
      regions_(engine),
      checksums_(std::make_shared<ChecksumQueue>(reactor)),
      headers_(std::make_shared<HeaderSlots>(engine)),
      hot_(reactor, engine, master_, headers_, options_),
      touch_timer_(reactor),
      viewing_(std::make_shared<Viewing>(engine)) {}

Client::~Client() {
  alive_.reset();
  for (const OperationRef& operation : std::exchange(operations_, {})) {
    operation->end({Code::kClosed, "the store was closed"});
  }
  for (const auto& request : std::set(view_requests_)) request->end({Code::kClosed, "the store was closed"});
}

void Client::track(const OperationRef& operation) {
  if (!operation->done()) operations_.insert(operation);
}

OperationRef Client::put(std::vector<PutItem> items, Commit commit, OperationOptions options,
                         catalog::Placement placement) {
  int64_t timeout_ns = timeout_or_default(options.timeout_ns);
  auto operation =
      std::make_shared<PutOperation>(*this, std::move(items), commit, std::move(options), std::move(placement));
  operation->start(timeout_ns);
  track(operation);
  return operation;
}

OperationRef Client::get(std::vector<GetItem> items, OperationOptions options) {
  int64_t timeout_ns = timeout_or_default(options.timeout_ns);
  auto operation = std::make_shared<GetOperation>(*this, std::move(items), std::move(options));
  operation->start(timeout_ns);
  track(operation);
  return operation;
}

void Client::view(std::vector<std::string> keys, int64_t timeout_ns, ViewsDone done) {
  const int64_t deadline_ns = reactor_.now_ns() + timeout_or_default(timeout_ns);
  auto request = std::make_shared<ViewRequest>(*this, std::move(keys), deadline_ns, std::move(done));
  view_requests_.insert(request);
  request->start();
}

void Client::tell_if_slow(const char* kind, const Operation& operation, size_t item, std::string_view key,
                          const std::string& peer) {
  const int64_t age_ns = reactor_.now_ns() - operation.began_ns();
  if (!engine_.observer().is_slow(age_ns)) return;
  engine::SlowEvent event;
  event.kind = kind;
  event.over = true;
  const auto& result = operation.results()[item];
  event.code = result ? Code::kOk : result.error().code;
  event.key_hash = hash64(as_bytes(key));
  event.trace = operation.trace();
  event.peer = peer;
  event.age_ns = age_ns;
  engine_.observer().report(std::move(event));
}

// ---- places

std::optional<Location> Client::known_location(const std::string& key) {
  if (const Location* own = commits_.find(key)) return *own;
  return locations_.get(key, reactor_.now_ns());
}

void Client::locate(const std::vector<std::string>& keys, int64_t deadline_ns, LocateAnswer answer) {
  size_t count = keys.size();
  master_.request(wire::kLocate, wire::encode(wire::Keys{keys}), deadline_ns,
                  [answer = std::move(answer), count](const Result<Bytes>& payload, bool) mutable {
                    auto reply = read_answer<wire::LocateReply>(payload);
                    if (reply && reply->items.size() != count)
                      reply = fail(Code::kInvalid, "the master's answer has another length");
                    answer(std::move(reply));
                  });
}

std::vector<std::optional<Location>> Client::locations_in(const wire::LocateReply& reply) const {
  std::vector<std::optional<Location>> found(reply.items.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const wire::Located& place = reply.items[i];
    if (place.code != Code::kOk || place.node >= reply.nodes.size()) continue;
    const wire::NodeRef& node = reply.nodes[place.node];
    found[i] = Location{node.node, node.address, place.generation, place.offset, place.length, place.crc};
  }
  for (const wire::LocatedFurther& more : reply.further.value) {
    if (more.item >= found.size() || !found[more.item] || more.node >= reply.nodes.size()) continue;
    const wire::NodeRef& node = reply.nodes[more.node];
    Location& location = *found[more.item];
    OtherPlace other{node.node, node.address, more.offset};
    auto at = location.further.begin();
    const auto distance = engine_.distance(other.address);
    if (distance < engine_.distance(location.address)) {
      std::swap(other.node, location.node);
      std::swap(other.address, location.address);
      std::swap(other.offset, location.offset);
    } else {
      at = std::ranges::find_if(location.further,
                                [&](const OtherPlace& one) { return engine_.distance(one.address) > distance; });
    }
    location.further.insert(at, std::move(other));
  }
  return found;
}

void Client::touched(const std::string& key) {
  touched_.push_back(key);
  if (touched_.size() >= kTouchesPerNotice) return flush_touches();
  if (!touch_timer_.running()) touch_timer_.start(kTouchEvery, [this] { flush_touches(); });
}

void Client::flush_touches() { master_.notify(wire::kTouch, wire::encode(wire::Keys{std::exchange(touched_, {})})); }

// ---- requests about many keys

void Client::ask_codes(uint16_t type, std::vector<std::string> keys, int64_t timeout_ns, CodesDone done,
                       const EncodeKeys& encode) {
  struct Gather {
    std::vector<Code> codes;
    size_t left = 0;
    std::optional<Error> error;
    CodesDone done;
  };
  auto gather = std::make_shared<Gather>();
  gather->codes.resize(keys.size());
  gather->done = std::move(done);
  gather->left = std::max<size_t>((keys.size() + wire::kStoreItemsMax - 1) / wire::kStoreItemsMax, 1);
  int64_t deadline_ns = reactor_.now_ns() + timeout_or_default(timeout_ns);
  for (size_t from = 0, chunk = gather->left; chunk > 0; --chunk, from += wire::kStoreItemsMax) {
    size_t count = std::min(wire::kStoreItemsMax, keys.size() - from);
    std::vector<std::string> some;
    for (size_t i = 0; i < count; ++i) some.push_back(std::move(keys[from + i]));
    master_.request(type, encode(std::move(some)), deadline_ns,
                    [gather, from, count](const Result<Bytes>& payload, bool) {
                      auto reply = read_answer<wire::Codes>(payload);
                      if (reply && reply->codes.size() != count)
                        reply = fail(Code::kInvalid, "the master's answer has another length");
                      if (!reply && !gather->error) gather->error = reply.error();
                      // (A remove that was sent again answers NOT_FOUND for what its earlier copy removed. It must not
                      // be called OK: a master that started in between answers so before it has heard of its nodes.)
                      for (size_t i = 0; reply && i < count; ++i) gather->codes[from + i] = reply->codes[i];
                      if (--gather->left > 0) return;
                      if (gather->error) return gather->done(std::unexpected(*gather->error));
                      gather->done(std::move(gather->codes));
                    });
  }
}

void Client::exists(std::vector<std::string> keys, int64_t timeout_ns, CodesDone done) {
  std::vector<bool> own;
  for (const std::string& key : keys) own.push_back(commits_.find(key) != nullptr);
  ask_codes(wire::kExists, std::move(keys), timeout_ns,
            [own = std::move(own), done = std::move(done)](Result<std::vector<Code>> codes) mutable {
              for (size_t i = 0; codes && i < own.size(); ++i) {
                if (own[i]) (*codes)[i] = Code::kOk;
              }
              done(std::move(codes));
            });
}

void Client::remove(std::vector<std::string> keys, int64_t timeout_ns, CodesDone done) {
  for (const std::string& key : keys) {
    locations_.drop(key);
    commits_.forget(key);
  }
  ask_codes(wire::kRemove, std::move(keys), timeout_ns, std::move(done));
}

void Client::keep(std::vector<std::string> keys, const catalog::Retention& retention, int64_t timeout_ns,
                  CodesDone done) {
  for (const std::string& key : keys) locations_.drop(key);  // its lease may be longer than the object's time
  ask_codes(wire::kKeep, std::move(keys), timeout_ns, std::move(done),
            [kept = to_wire(retention)](std::vector<std::string> some) {
              return wire::encode(wire::Keep{std::move(some), kept});
            });
}

void Client::drain(const InstanceId& node, bool on, int64_t timeout_ns, DrainedDone done) {
  master_.request(wire::kDrain, wire::encode(wire::Drain{node, on}), reactor_.now_ns() + timeout_or_default(timeout_ns),
                  [done = std::move(done)](const Result<Bytes>& payload, bool) mutable {
                    done(read_answer<wire::Drained>(payload));
                  });
}

void Client::locate_all(const std::vector<std::string>& keys, const std::vector<size_t>& indices, int64_t timeout_ns,
                        EachLocation each, std::move_only_function<void(Result<> outcome)> done) {
  struct Gather {
    EachLocation each;
    std::move_only_function<void(Result<> outcome)> done;
    size_t left = 0;
    Result<> outcome;
    void finish() {
      if (--left == 0) done(std::move(outcome));
    }
  };
  auto gather = std::make_shared<Gather>(Gather{std::move(each), std::move(done), 0, {}});
  if (indices.empty()) {
    ++gather->left;
    return reactor_.post([gather] { gather->finish(); });
  }
  int64_t asked_ns = reactor_.now_ns(), deadline_ns = asked_ns + timeout_or_default(timeout_ns);
  for (size_t from = 0; from < indices.size(); from += wire::kStoreItemsMax) {
    std::vector<size_t> chunk(
        indices.begin() + static_cast<ptrdiff_t>(from),
        indices.begin() + static_cast<ptrdiff_t>(std::min(indices.size(), from + wire::kStoreItemsMax)));
    std::vector<std::string> asked;
    for (size_t i : chunk) asked.push_back(keys[i]);
    ++gather->left;
    locate(asked, deadline_ns, [this, gather, chunk, asked, asked_ns](Result<wire::LocateReply> reply) {
      if (!reply) gather->outcome = std::unexpected(reply.error());
      auto found = reply ? locations_in(*reply) : std::vector<std::optional<Location>>{};
      for (size_t n = 0; n < found.size(); ++n) {
        if (!found[n]) continue;
        remember(asked[n], *found[n], asked_ns + reply->lease_ns);
        gather->each(chunk[n], *found[n]);
      }
      gather->finish();
    });
  }
}

void Client::lengths(std::vector<std::string> keys, int64_t timeout_ns, LengthsDone done) {
  auto lengths = std::make_shared<std::vector<Result<uint64_t>>>(keys.size(), fail(Code::kNotFound, "no such object"));
  std::vector<size_t> unknown;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (auto location = known_location(keys[i])) {
      (*lengths)[i] = location->length;
    } else {
      unknown.push_back(i);
    }
  }
  locate_all(
      keys, unknown, timeout_ns, [lengths](size_t i, const Location& location) { (*lengths)[i] = location.length; },
      [lengths, done = std::move(done)](const Result<>& outcome) mutable {
        if (!outcome) return done(std::unexpected(outcome.error()));
        done(std::move(*lengths));
      });
}

void Client::places(const std::vector<std::string>& keys, int64_t timeout_ns, PlacesDone done) {
  auto places = std::make_shared<std::vector<Result<Location>>>(keys.size(), fail(Code::kNotFound, "no such object"));
  std::vector<size_t> to_ask;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (const Location* own = commits_.find(keys[i])) {  // not answered by the master yet
      (*places)[i] = *own;
    } else {
      to_ask.push_back(i);
    }
  }
  locate_all(
      keys, to_ask, timeout_ns, [places](size_t i, const Location& location) { (*places)[i] = location; },
      [places, done = std::move(done)](const Result<>& outcome) mutable {
        if (!outcome) return done(std::unexpected(outcome.error()));
        done(std::move(*places));
      });
}

void Client::list(const std::string& prefix, const std::string& start_after, uint32_t limit, int64_t timeout_ns,
                  std::move_only_function<void(Result<wire::ListReply>)> done) {
  master_.request(wire::kList, wire::encode(wire::ListRequest{prefix, start_after, limit}),
                  reactor_.now_ns() + timeout_or_default(timeout_ns),
                  [done = std::move(done)](const Result<Bytes>& payload, bool) mutable {
                    done(read_answer<wire::ListReply>(payload));
                  });
}

void Client::pool_stats(int64_t timeout_ns, std::move_only_function<void(Result<wire::PoolStatsReply>)> done) {
  master_.request(wire::kPoolStats, {}, reactor_.now_ns() + timeout_or_default(timeout_ns),
                  [done = std::move(done)](const Result<Bytes>& payload, bool) mutable {
                    done(read_answer<wire::PoolStatsReply>(payload));
                  });
}

}  // namespace moontide::store
