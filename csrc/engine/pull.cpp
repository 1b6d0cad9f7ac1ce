#include "engine/pull.h"

#include "engine/engine.h"

namespace moontide::engine {
namespace {

constexpr size_t kPullsMax = 64;    // asked for and not answered, per link
constexpr size_t kUrgentPulls = 8;  // of these, kept for urgent ones
constexpr size_t kItemsMax = 256;
constexpr uint64_t kBytesMax = 4u << 20;  // of one pull; whoever wants more asks again

}  // namespace

size_t PullEndpoint::room(bool urgent) const {
  const size_t most = urgent ? kPullsMax : kPullsMax - kUrgentPulls;
  return pending_.size() < most ? most - pending_.size() : 0;
}

void PullEndpoint::post(transport::Slice& slice) {
  slice.endpoint = this;
  slice.tag = next_tag_++;
  wire::Pull request;
  request.id = slice.tag;
  for (const transport::Piece& piece : slice.pieces) {
    auto local =
        link_.registry().find_local(reinterpret_cast<uint64_t>(piece.local), piece.length, memory::Use::kGranted);
    if (!local) {
      slice.owner->completed(slice, std::unexpected(local.error()));
      return;
    }
    request.items.push_back({(*local)->id, (*local)->generation, static_cast<uint64_t>(piece.local - (*local)->address),
                             slice.remote->id, slice.remote->generation, piece.offset, piece.length});
  }
  pending_.emplace(slice.tag, &slice);
  // the transfer watches progress; the answer is what says that the peer does not read and write any more
  link_.call(wire::kPull, wire::encode_traced(std::move(request), slice.owner->trace(), link_.version()),
             rpc::kNoTimeout, [this, alive = std::weak_ptr<bool>(alive_), tag = slice.tag](Result<rpc::Reply> reply) {
               if (alive.expired()) return;
               auto found = pending_.find(tag);
               if (found == pending_.end()) return;
               transport::Slice& slice = *found->second;
               pending_.erase(found);
               if (reply) {
                 slice.owner->progressed(slice, slice.length);
                 slice.owner->completed(slice, {});
               } else {
                 slice.owner->completed(slice, std::unexpected(reply.error()));
               }
             });
}

void PullEndpoint::cancel(transport::Slice& slice) {
  if (rpc::Channel* channel = link_.channel())
    channel->notify(wire::kPullCancel, wire::encode(wire::PullCancel{slice.tag}));
}

bool PullEndpoint::retire(const Error&) {
  for (auto& [tag, slice] : pending_) cancel(*slice);  // a stopped peer finds it right behind the pulls
  return !pending_.empty();
}

void PullEndpoint::close(const Error& cause) {
  auto pending = std::exchange(pending_, {});
  for (auto& [tag, slice] : pending) slice->owner->completed(*slice, std::unexpected(cause));
}

void PullServer::pull(const LinkRef& link, ByteView payload, rpc::Responder responder) {
  auto traced = wire::decode_traced<wire::Pull>(payload, link->version());
  if (!traced) return responder.refuse(traced.error());
  const wire::Pull* request = &traced->request;
  if (request->items.size() > kItemsMax) return responder.refuse({Code::kInvalid, "too many items in a pull"});
  auto first = running_.lower_bound({link->number(), 0});
  auto last = running_.lower_bound({link->number() + 1, 0});
  if (std::distance(first, last) >= static_cast<ptrdiff_t>(kPullsMax)) {
    return responder.refuse({Code::kOverloaded, "too many pulls at a time"});
  }
  uint64_t total = 0;
  std::vector<Record> records;
  for (const wire::PullItem& item : request->items) {
    auto target = engine_.registry().check_remote(item.target, item.target_generation, item.target_offset, item.length,
                                                  memory::kWritable);
    if (!target) return responder.refuse(target.error());
    if (!range_inside(total, item.length, kBytesMax)) return responder.refuse({Code::kTooLarge, "too long a pull"});
    total += item.length;
    auto source = link->region(item.source);
    if (!source || source->generation != item.source_generation)
      return responder.refuse({Code::kStale, "the source region is not known here"});
    records.push_back({static_cast<uint32_t>(transport::Op::kRead), 0,
                       reinterpret_cast<uint64_t>((*target)->address + item.target_offset),
                       engine_.handle(link, item.source), item.source_offset, item.length});
  }
  auto key = std::make_pair(link->number(), request->id);
  auto answer = std::make_shared<rpc::Responder>(std::move(responder));
  TransferOptions options;
  // answered at quiet, not at the outcome: the asker's slice is over only when nothing is read or written any more
  options.trace = std::move(traced->trace);
  options.served = true;
  options.quiet = [this, key, answer, engine = &engine_] {
    auto found = running_.find(key);
    if (found == running_.end()) return;
    TransferRef transfer = found->second;
    running_.erase(found);
    ++engine->mutable_counters().pulls_served;
    if (transfer->error().code == Code::kOk) {
      answer->reply(Bytes{});
    } else {
      answer->refuse(transfer->error());
    }
  };
  if (running_.contains(key)) return answer->refuse({Code::kInvalid, "pull id in use"});
  auto transfer = engine_.make_transfer(std::move(options));
  if (!transfer) return answer->refuse(transfer.error());
  running_.emplace(key, *transfer);
  engine_.launch(*transfer, records);
}

void PullServer::cancel(const LinkRef& link, uint64_t id) {
  auto found = running_.find({link->number(), id});
  if (found == running_.end()) return;
  TransferRef transfer = found->second;
  transfer->cancel();
}

void PullServer::link_closed(const Link& link) {
  std::vector<TransferRef> ending;
  for (auto at = running_.lower_bound({link.number(), 0}); at != running_.end() && at->first.first == link.number();
       ++at) {
    ending.push_back(at->second);
  }
  for (auto& transfer : ending) transfer->cancel();
}

}  // namespace moontide::engine
