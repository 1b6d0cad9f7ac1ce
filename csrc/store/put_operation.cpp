#include "store/put_operation.h"

#include <algorithm>

#include "store/retention.h"

namespace moontide::store {
namespace {

constexpr uint32_t kRoundsMax = 4;  // times a put begins anew after its node or its master lost it
constexpr uint32_t kPullsMax = 4;   // times a node is asked for one grant
constexpr int64_t kPauseFirst = 2 * kMillisecond;
constexpr int64_t kPauseMost = 100 * kMillisecond;
constexpr int64_t kRevokeWithin = 5 * kSecond;

// Joining a master, or the same put is being pulled for an earlier request; lost on the way; too much to do.
bool may_pass(Code code) {
  return code == Code::kUnavailable || code == Code::kPeerLost || code == Code::kOverloaded || code == Code::kTimedOut;
}

}  // namespace

PutOperation::PutOperation(Client& client, std::vector<PutItem> items, Commit commit, OperationOptions options,
                           catalog::Placement placement)
    : Operation(client.reactor_, items.size(), std::move(options)),
      client_(&client),
      commit_(commit),
      placement_(std::move(placement)),
      items_(items.size()),
      patience_(client.reactor_) {
  for (size_t i = 0; i < items.size(); ++i) items_[i].wanted = std::move(items[i]);
}

void PutOperation::start(int64_t timeout_ns) {
  started_ns_ = reactor().now_ns();
  begin(timeout_ns);
  std::vector<size_t> ready;
  for (size_t i = 0; i < items_.size(); ++i) {
    if (auto prepared = prepare(items_[i]); !prepared) {
      fail_item(i, prepared.error());
    } else {
      ready.push_back(i);
    }
  }
  grant(ready);
}

Result<> PutOperation::prepare(Item& item) {
  PutItem& wanted = item.wanted;
  if (!catalog::key_valid(wanted.key)) {
    return fail(Code::kInvalid, "a key of " + std::to_string(wanted.key.size()) + " bytes, must be from 1 to " +
                                    std::to_string(catalog::kMaxKeyBytes));
  }
  if (!wanted.value.empty()) {
    wanted.parts = {{reinterpret_cast<uint64_t>(wanted.value.data()), wanted.value.size()}};
  }
  std::erase_if(wanted.parts, [](const Part& part) { return part.length == 0; });
  item.length = total_length(wanted.parts);
  item.is_inline = item.length <= client_->options_.inline_bytes;
  item.token = client_->next_token_++;
  if (item.is_inline) return {};
  if (wanted.parts.size() > wire::kStorePartsMax)
    return fail(Code::kInvalid, std::to_string(wanted.parts.size()) + " parts");
  for (const Part& part : wanted.parts) {
    TRY(auto region, client_->regions_.acquire(part, memory::kReadable));
    item.regions.push_back(region);
    item.sources.push_back(
        {region->id, region->generation, part.address - reinterpret_cast<uint64_t>(region->address), part.length});
  }
  return {};
}

// ---- grant

void PutOperation::grant(const std::vector<size_t>& indices) {
  for (size_t from = 0; from < indices.size(); from += wire::kStoreItemsMax) {
    size_t to = std::min(indices.size(), from + wire::kStoreItemsMax);
    std::vector<size_t> chunk(indices.begin() + static_cast<ptrdiff_t>(from),
                              indices.begin() + static_cast<ptrdiff_t>(to));
    wire::PutStart message;
    for (size_t i : chunk) {
      message.items.push_back({items_[i].wanted.key, items_[i].length, items_[i].token});
      message.follows.value.push_back(items_[i].wanted.follows);
      message.replaces.value.push_back(items_[i].wanted.replaces);
    }
    const auto replaces = [](const std::optional<Generation>& what) { return what.has_value(); };
    if (std::ranges::none_of(message.replaces.value, replaces)) message.replaces.value.clear();
    if (std::ranges::count(message.follows.value, 0) == std::ssize(chunk)) message.follows.value.clear();
    if (placement_.replicas != 1 || !placement_.prefer.empty() || !placement_.avoid.empty()) {
      message.placement.value = {{static_cast<uint8_t>(placement_.replicas), placement_.prefer, placement_.avoid}};
    }
    client_->master_.request(wire::kPutStart, wire::encode(message), deadline_ns(),
                             [self = self(), chunk](Result<Bytes> reply, bool) {
                               if (!self->done()) self->granted(chunk, reply);
                             });
  }
}

void PutOperation::granted(const std::vector<size_t>& indices, const Result<Bytes>& answer) {
  auto reply = answer ? wire::decode<wire::PutStartReply>(*answer) : std::unexpected(answer.error());
  if (reply && reply->items.size() != indices.size())
    reply = fail(Code::kInvalid, "the master's answer has another length");
  std::map<uint32_t, std::vector<Pull>> by_node;
  for (size_t n = 0; n < indices.size(); ++n) {
    size_t i = indices[n];
    if (!open(i)) continue;
    if (!reply) {
      fail_item(i, why(i, reply.error()));
      continue;
    }
    const wire::PutGranted& grant = reply->items[n];
    if (grant.code != Code::kOk || grant.node >= reply->nodes.size()) {
      not_granted(i, grant.code);
      continue;
    }
    Item& item = items_[i];
    item.generation = grant.generation;
    item.targets.clear();
    item.targets.push_back(Target::of(reply->nodes[grant.node], grant.tag));
    item.stage = Stage::kPull;
    item.waits_for = {Code::kOk, ""};
    ++item.rounds;
    by_node[grant.node].push_back({i, 0, item.rounds});
  }
  for (size_t n = 0; reply && n < reply->further.value.size(); ++n) {
    const wire::PutGrantedFurther& more = reply->further.value[n];
    if (more.item >= indices.size() || more.node >= reply->nodes.size()) continue;
    const size_t i = indices[more.item];
    Item& item = items_[i];
    if (!open(i) || item.stage != Stage::kPull || item.targets.size() == catalog::kMaxReplicas) continue;
    item.targets.push_back(Target::of(reply->nodes[more.node], more.tag));
    by_node[more.node].push_back({i, item.targets.size() - 1, item.rounds});
  }
  for (auto& [node, group] : by_node) pull(group);
}

void PutOperation::not_granted(size_t index, Code code) {
  switch (code) {
    case Code::kNoSpace:
      return retry(index, {code, "the pool is full of objects that are in use"});
    case Code::kUnavailable: {
      Error error{code, "the pool has no node that takes objects"};
      bool wait = reactor().now_ns() - started_ns_ < client_->options_.no_node_wait_ns;
      return wait ? retry(index, error) : fail_item(index, error);
    }
    case Code::kAlreadyExists:
      if (items_[index].wanted.replaces) return retry(index, {Code::kTimedOut, "another put of the key is under way"});
      return fail_item(index, {code, "the key has an object, or a put of it is under way"});
    case Code::kStale:
      return fail_item(index, {code, "the key does not have the object that was to be replaced"});
    case Code::kTooLarge:
      return fail_item(index, {code, std::to_string(items_[index].length) + " bytes fit into no segment of the pool"});
    default:
      return fail_item(index, {code == Code::kOk ? Code::kInvalid : code, "refused by the master"});
  }
}

// ---- pull

PutOperation::Target* PutOperation::target_of(const Pull& pull) {
  Item& item = items_[pull.item];
  if (!open(pull.item) || item.stage != Stage::kPull || item.rounds != pull.round) return nullptr;
  Target& target = item.targets[pull.target];
  return target.state == Target::State::kPulling ? &target : nullptr;
}

void PutOperation::pull(const std::vector<Pull>& pulls) {
  int64_t left = std::max<int64_t>(deadline_ns() - reactor().now_ns(), kMillisecond);
  auto timeout = std::min(left, client_->options_.connect_timeout_ns);
  const Pull& first = pulls.front();
  client_->engine_.open(items_[first.item].targets[first.target].node.address, timeout,
                        [self = self(), pulls](Result<engine::LinkRef> link) {
                          if (self->done()) return;
                          if (link) return self->pull_from(*link, pulls);
                          std::vector<size_t> landed;
                          for (const Pull& one : pulls) self->pull_failed(one, link.error(), landed);
                          if (!landed.empty()) self->commit(landed);
                        });
}

void PutOperation::pull_from(const engine::LinkRef& link, const std::vector<Pull>& pulls) {
  wire::StorePull message;
  std::vector<Pull> group;
  size_t bytes = 0, parts = 0;
  auto send = [&] {
    if (group.empty()) return;
    send_pull(link, std::exchange(message, {}), std::exchange(group, {}));
    bytes = parts = 0;
  };
  for (const Pull& one : pulls) {
    if (target_of(one) == nullptr) continue;
    const Item& item = items_[one.item];
    size_t size = item.wanted.key.size() + 64 + item.sources.size() * 28 + (item.is_inline ? item.length : 0);
    bool full = group.size() == wire::kStoreItemsMax || parts + item.sources.size() > wire::kStorePartsMax ||
                bytes + size > wire::kStoreRequestBytes;
    if (full) send();
    add_to(message, one);
    group.push_back(one);
    bytes += size;
    parts += item.sources.size();
  }
  send();
}

void PutOperation::add_to(wire::StorePull& message, const Pull& pull) const {
  const Item& item = items_[pull.item];
  wire::StorePullItem& out = message.items.emplace_back();
  out = {item.wanted.key, item.generation, item.length, item.targets[pull.target].tag, item.sources, {}};
  if (!item.is_inline) return;
  out.inline_value.reserve(item.length);
  for (const Part& part : item.wanted.parts) {
    auto* at = reinterpret_cast<const std::byte*>(part.address);
    out.inline_value.insert(out.inline_value.end(), at, at + part.length);
  }
}

void PutOperation::send_pull(const engine::LinkRef& link, wire::StorePull message, std::vector<Pull> pulls) {
  int64_t left = std::max<int64_t>(deadline_ns() - reactor().now_ns(), kMillisecond);
  std::string name = trace().empty() ? engine::make_trace(client_->id_, items_[pulls.front().item].token) : trace();
  link->call(wire::kStorePull, wire::encode_traced(std::move(message), std::move(name), link->version()), left,
             [self = self(), pulls = std::move(pulls)](Result<rpc::Reply> reply) {
               if (!self->done()) self->pulled(pulls, reply);
             });
}

void PutOperation::pulled(const std::vector<Pull>& pulls, const Result<rpc::Reply>& answer) {
  auto reply = answer ? wire::decode<wire::StorePullReply>(answer->payload) : std::unexpected(answer.error());
  if (reply && reply->items.size() != pulls.size())
    reply = fail(Code::kInvalid, "the node's answer has another length");
  std::vector<size_t> landed;
  for (size_t n = 0; n < pulls.size(); ++n) {
    Target* target = target_of(pulls[n]);
    if (target == nullptr) continue;
    if (!reply) {
      pull_failed(pulls[n], reply.error(), landed);
    } else if (reply->items[n].code == Code::kOk) {
      target->placed = reply->items[n];
      target->state = Target::State::kLanded;
      target_over(pulls[n].item, {Code::kOk, ""}, landed);
    } else {
      pull_failed(pulls[n], {reply->items[n].code, "the node could not take the object"}, landed);
    }
  }
  if (!landed.empty()) commit(landed);
}

void PutOperation::pull_failed(const Pull& pull, const Error& error, std::vector<size_t>& landed) {
  Target* target = target_of(pull);
  if (target == nullptr) return;
  const auto& targets = items_[pull.item].targets;
  const bool needed =
      std::ranges::none_of(targets, [](const Target& one) { return one.state == Target::State::kLanded; });
  if (may_pass(error.code) && needed && ++target->pulls_failed < kPullsMax) {
    target->state = Target::State::kAgain;  // the ticket is good for another try
    return retry(pull.item, error);
  }
  target->state = Target::State::kFailed;
  target_over(pull.item, error, landed);
}

void PutOperation::target_over(size_t index, const Error& error, std::vector<size_t>& landed) {
  Item& item = items_[index];
  const auto any = [&](Target::State state) {
    return std::ranges::any_of(item.targets, [&](const Target& one) { return one.state == state; });
  };
  const bool some = any(Target::State::kLanded);
  if (any(Target::State::kPulling) || any(Target::State::kAgain)) {
    const int64_t left = std::max<int64_t>(deadline_ns() - reactor().now_ns(), 0);
    if (some && !patience_.running()) patience_.start(left / 2, [this] { give_up_slow(); });
    return;
  }
  if (!some) return none_landed(index, error);
  item.stage = Stage::kCommit;
  item.waits_for = {Code::kOk, ""};  // an end from here on is in doubt: it must not be called by an older name
  landed.push_back(index);
}

void PutOperation::give_up_slow() {
  std::vector<size_t> landed;
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (!open(i) || item.stage != Stage::kPull) continue;
    if (std::ranges::none_of(item.targets, [](const Target& one) { return one.state == Target::State::kLanded; }))
      continue;
    for (Target& target : item.targets) {
      if (target.state != Target::State::kLanded) target.state = Target::State::kFailed;
    }
    std::erase(retries_, i);  // what waits there is a pull that was given up
    target_over(i, {Code::kTimedOut, ""}, landed);
  }
  if (!landed.empty()) commit(landed);
}

void PutOperation::none_landed(size_t index, const Error& error) {
  const bool over = error.code == Code::kStale && items_[index].targets.size() == 1;  // at the master too
  if (over) return start_over(index, error);
  // The master may know a better node by now; NO_SPACE: no extent is long enough, the node's free bytes lie apart.
  const bool another = may_pass(error.code) || error.code == Code::kNoSpace || error.code == Code::kStale;
  if (!another) return fail_item(index, error);
  revoke({index});
  start_over(index, error);
}

// ---- commit

Location PutOperation::location(const Item& item) {
  Location found{.node = {}, .address = {}, .generation = item.generation, .offset = 0, .length = item.length};
  for (const Target& target : item.targets) {
    if (target.state != Target::State::kLanded) continue;
    if (found.node.empty()) {
      found.node = target.node.node;
      found.address = target.node.address;
      found.offset = target.placed.offset;
    } else if (target.placed.crc == crc_of(item)) {  // else the memory changed between the pulls
      found.further.push_back({target.node.node, target.node.address, target.placed.offset});
    }
  }
  return found;
}

uint32_t PutOperation::crc_of(const Item& item) {
  return std::ranges::find(item.targets, Target::State::kLanded, &Target::state)->placed.crc;
}

void PutOperation::commit(const std::vector<size_t>& indices) {
  std::vector<size_t> awaited;
  for (size_t i : indices) {
    Item& item = items_[i];
    const bool may_wait = commit_ == Commit::kAsync && !item.wanted.replaces;
    if (may_wait && !client_->commits_.full()) {
      client_->commits_.add(item.wanted.key, location(item), crc_of(item), item.wanted.retention);
      item.stage = Stage::kOver;
      client_->counters_.put_bytes += item.length;
      settle(i, item.length);
    } else {
      awaited.push_back(i);
    }
  }
  if (awaited.empty()) return;
  wire::PutEnd message;
  for (size_t i : awaited) {
    const Item& item = items_[i];
    const Location placed = location(item);
    const auto index = static_cast<uint32_t>(message.items.size());
    message.items.push_back({item.wanted.key, item.generation, placed.node, placed.offset, crc_of(item)});
    message.kept.value.push_back(to_wire(item.wanted.retention));
    for (const OtherPlace& place : placed.further) message.further.value.push_back({index, place.node, place.offset});
  }
  message.kept.value = if_any(std::move(message.kept.value));
  client_->master_.request(wire::kPutEnd, wire::encode(message), deadline_ns(),
                           [self = self(), awaited](Result<Bytes> reply, bool resent) {
                             if (!self->done()) self->committed(awaited, reply, resent);
                           });
}

void PutOperation::committed(const std::vector<size_t>& indices, const Result<Bytes>& answer, bool resent) {
  auto reply = answer ? wire::decode<wire::Codes>(*answer) : std::unexpected(answer.error());
  if (reply && reply->codes.size() != indices.size())
    reply = fail(Code::kInvalid, "the master's answer has another length");
  for (size_t n = 0; n < indices.size(); ++n) {
    size_t i = indices[n];
    Item& item = items_[i];
    if (!open(i)) continue;
    Code code = reply ? reply->codes[n] : reply.error().code;
    if (code == Code::kOk) {
      item.stage = Stage::kOver;
      client_->counters_.put_bytes += item.length;
      settle(i, item.length);
    } else if (code == Code::kUnavailable || code == Code::kOverloaded) {
      item.maybe_committed = true;
      retry(i, {Code::kTimedOut, "an older object of the key is still on a node that does not answer"});
    } else if (code == Code::kStale && !resent && !item.maybe_committed) {
      if (item.targets.size() > 1) revoke({i});  // those that landed are gone, and the put may still be open
      start_over(i, {code, "the put ended before it was committed"});  // it was never seen by anybody: putting it again
                                                                       // is still one put
    } else {
      item.stage = Stage::kOver;  // it may be there: nothing to revoke
      fail_item(i, {code, reply ? "the put was not committed" : reply.error().message});
    }
  }
}

// ---- again

void PutOperation::start_over(size_t index, Error why) {
  Item& item = items_[index];
  item.stage = Stage::kGrant;
  if (item.rounds >= kRoundsMax) return fail_item(index, std::move(why));
  item.token = client_->next_token_++;
  retry(index, std::move(why));
}

void PutOperation::retry(size_t index, Error why) {
  items_[index].waits_for = std::move(why);
  retries_.push_back(index);
  if (retry_timer()->running()) return;
  int64_t most = std::min(kPauseMost, kPauseFirst << std::min<uint32_t>(pauses_++, 10));
  auto pause = most / 2 + static_cast<int64_t>(reactor().random().below(static_cast<uint64_t>(most / 2)));
  retry_timer()->start(pause, [this] { run_retries(); });
}

void PutOperation::run_retries() {
  std::vector<size_t> to_grant, to_commit;
  std::map<InstanceId, std::vector<Pull>> to_pull;
  for (size_t i : std::exchange(retries_, {})) {
    if (!open(i)) continue;
    switch (items_[i].stage) {
      case Stage::kGrant:
        to_grant.push_back(i);
        break;
      case Stage::kPull:
        for (size_t t = 0; t < items_[i].targets.size(); ++t) {
          Target& target = items_[i].targets[t];
          if (target.state != Target::State::kAgain) continue;
          target.state = Target::State::kPulling;
          to_pull[target.node.node].push_back({i, t, items_[i].rounds});
        }
        break;
      case Stage::kCommit:
        to_commit.push_back(i);
        break;
      case Stage::kOver:
        break;
    }
  }
  if (!to_grant.empty()) grant(to_grant);
  for (auto& [node, group] : to_pull) pull(group);
  if (!to_commit.empty()) commit(to_commit);
}

// ---- the end

void PutOperation::fail_item(size_t index, Error error) {
  ++client_->counters_.puts_failed;
  if (items_[index].stage == Stage::kPull) revoke({index});
  items_[index].stage = Stage::kOver;
  settle(index, std::unexpected(std::move(error)));
}

void PutOperation::revoke(const std::vector<size_t>& indices) {
  for (size_t from = 0; from < indices.size(); from += wire::kStoreItemsMax) {
    wire::PutRevoke message;
    for (size_t n = from; n < std::min(indices.size(), from + wire::kStoreItemsMax); ++n) {
      const Item& item = items_[indices[n]];
      message.items.push_back({item.wanted.key, item.generation});
    }
    // Not awaited: without it the put expires at the master.
    client_->master_.request(wire::kPutRevoke, wire::encode(message), reactor().now_ns() + kRevokeWithin,
                             [](Result<Bytes>, bool) {});
  }
}

Error PutOperation::why(size_t item, const Error& cause) const {
  const Error& waits_for = items_[item].waits_for;
  return cause.code == Code::kTimedOut && waits_for.code != Code::kOk ? waits_for : cause;
}

std::string PutOperation::peer_of(const Item& item) {
  for (const Target& target : item.targets) {
    if (target.state != Target::State::kLanded) return target.node.address;
  }
  return item.targets.empty() ? std::string() : item.targets.front().node.address;
}

void PutOperation::ended(const std::vector<size_t>& unfinished) {
  patience_.stop();
  std::vector<size_t> to_revoke;
  for (size_t i : unfinished) {
    if (items_[i].stage == Stage::kPull) to_revoke.push_back(i);
  }
  if (!items_.empty()) {
    const size_t item = unfinished.empty() ? 0 : unfinished.front();
    client_->tell_if_slow("put", *this, item, items_[item].wanted.key, peer_of(items_[item]));
  }
  client_->counters_.puts += items_.size();
  client_->counters_.puts_failed += unfinished.size();
  if (!to_revoke.empty()) revoke(to_revoke);
  for (Item& item : items_) {
    for (auto& region : item.regions) {
      hold();
      client_->regions_.release(region, [self = self()] { self->release(); });
    }
    item.regions.clear();
  }
  client_->operations_.erase(shared_from_this());
}

}  // namespace moontide::store
