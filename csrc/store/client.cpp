#include "store/client.h"

#include <algorithm>

#include "base/hash.h"
#include "store/get_operation.h"
#include "store/put_operation.h"
#include "store/retention.h"

namespace moontide::store {
namespace {

constexpr size_t kTouchesPerNotice = 256;
constexpr int64_t kTouchEvery = kSecond / 2;

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
      touch_timer_(reactor) {}

Client::~Client() {
  alive_.reset();
  for (const OperationRef& operation : std::exchange(operations_, {})) {
    operation->end({Code::kClosed, "the store was closed"});
  }
}

void Client::track(const OperationRef& operation) {
  if (!operation->done()) operations_.insert(operation);
}

OperationRef Client::put(std::vector<PutItem> items, Commit commit, OperationOptions options) {
  int64_t timeout_ns = timeout_or_default(options.timeout_ns);
  auto operation = std::make_shared<PutOperation>(*this, std::move(items), commit, std::move(options));
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
                  [answer = std::move(answer), count](Result<Bytes> payload, bool) mutable {
                    if (!payload) return answer(std::unexpected(payload.error()));
                    auto reply = wire::decode<wire::LocateReply>(*payload);
                    if (reply && reply->items.size() != count)
                      reply = fail(Code::kInvalid, "the master's answer has another length");
                    answer(std::move(reply));
                  });
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
    master_.request(type, encode(std::move(some)), deadline_ns, [gather, from, count](Result<Bytes> payload, bool) {
      auto reply = payload ? wire::decode<wire::Codes>(*payload) : std::unexpected(payload.error());
      if (reply && reply->codes.size() != count) reply = fail(Code::kInvalid, "the master's answer has another length");
      if (!reply && !gather->error) gather->error = reply.error();
      // (A remove that was sent again answers NOT_FOUND for what its earlier copy removed. It must not be called OK: a
      // master that started in between answers so before it has heard of its nodes.)
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

void Client::lengths(std::vector<std::string> keys, int64_t timeout_ns, LengthsDone done) {
  struct Gather {
    std::vector<Result<uint64_t>> lengths;
    size_t left = 0;
    std::optional<Error> error;
    LengthsDone done;
    void finish() {
      if (--left > 0) return;
      if (error) return done(std::unexpected(*error));
      done(std::move(lengths));
    }
  };
  auto gather = std::make_shared<Gather>();
  gather->lengths.assign(keys.size(), fail(Code::kNotFound, "no such object"));
  gather->done = std::move(done);
  int64_t asked_ns = reactor_.now_ns(), deadline_ns = asked_ns + timeout_or_default(timeout_ns);
  std::vector<size_t> unknown;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (auto location = known_location(keys[i])) {
      gather->lengths[i] = location->length;
    } else {
      unknown.push_back(i);
    }
  }
  if (unknown.empty()) {
    ++gather->left;
    return reactor_.post([gather] { gather->finish(); });
  }
  for (size_t from = 0; from < unknown.size(); from += wire::kStoreItemsMax) {
    std::vector<size_t> chunk(
        unknown.begin() + static_cast<ptrdiff_t>(from),
        unknown.begin() + static_cast<ptrdiff_t>(std::min(unknown.size(), from + wire::kStoreItemsMax)));
    std::vector<std::string> asked;
    for (size_t i : chunk) asked.push_back(keys[i]);
    ++gather->left;
    locate(asked, deadline_ns, [this, gather, chunk, asked, asked_ns](Result<wire::LocateReply> reply) {
      if (!reply) gather->error = reply.error();
      for (size_t n = 0; reply && n < chunk.size(); ++n) {
        const wire::Located& place = reply->items[n];
        if (place.code != Code::kOk || place.node >= reply->nodes.size()) continue;
        const wire::NodeRef& node = reply->nodes[place.node];
        remember(asked[n], {node.node, node.address, place.generation, place.offset, place.length},
                 asked_ns + reply->lease_ns);
        gather->lengths[chunk[n]] = place.length;
      }
      gather->finish();
    });
  }
}

void Client::list(const std::string& prefix, const std::string& start_after, uint32_t limit, int64_t timeout_ns,
                  std::move_only_function<void(Result<wire::ListReply>)> done) {
  master_.request(wire::kList, wire::encode(wire::ListRequest{prefix, start_after, limit}),
                  reactor_.now_ns() + timeout_or_default(timeout_ns),
                  [done = std::move(done)](Result<Bytes> payload, bool) mutable {
                    done(payload ? wire::decode<wire::ListReply>(*payload) : std::unexpected(payload.error()));
                  });
}

void Client::pool_stats(int64_t timeout_ns, std::move_only_function<void(Result<wire::PoolStatsReply>)> done) {
  master_.request(wire::kPoolStats, {}, reactor_.now_ns() + timeout_or_default(timeout_ns),
                  [done = std::move(done)](Result<Bytes> payload, bool) mutable {
                    done(payload ? wire::decode<wire::PoolStatsReply>(*payload) : std::unexpected(payload.error()));
                  });
}

}  // namespace moontide::store
