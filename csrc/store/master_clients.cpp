// The master's side of its clients: each request is one call of the catalog.
#include <algorithm>

#include "store/master.h"
#include "store/retention.h"

namespace moontide::store {
namespace {

constexpr size_t kListMost = 4096;

template <wire::Message T>
bool read(const rpc::Incoming& request, rpc::Responder& responder, T& message) {
  auto decoded = wire::decode<T>(request.payload);
  if (!decoded) {
    responder.refuse(decoded.error());
    return false;
  }
  message = std::move(*decoded);
  return true;
}

bool few_enough(size_t items, rpc::Responder& responder) {
  if (items <= wire::kStoreItemsMax) return true;
  responder.refuse({Code::kInvalid, std::to_string(items) + " items in one request, the limit is " +
                                        std::to_string(wire::kStoreItemsMax)});
  return false;
}

}  // namespace

void Master::client_request(Session& session, rpc::Incoming& request, rpc::Responder& responder) {
  if (request.type == wire::kClientHello) {
    auto hello = wire::decode_prefix<wire::ClientHello>(request.payload);
    if (!hello) return responder.refuse(hello.error());
    return client_hello(session, *hello, responder);
  }
  if (session.client.empty()) return responder.refuse({Code::kInvalid, "no hello came before the request"});
  if ((request.type == wire::kPutEnd || request.type == wire::kRemove) && earlier_leases()) {
    return responder.refuse({Code::kUnavailable, "leases of an earlier master may be alive, ask again"});
  }
  catalog_.advance(reactor_.now_ns());
  switch (request.type) {
    case wire::kPutStart: {
      wire::PutStart message;
      if (read(request, responder, message) && few_enough(message.items.size(), responder))
        put_start(session, std::move(message), responder);
      return;
    }
    case wire::kPutEnd: {
      wire::PutEnd message;
      if (read(request, responder, message) && few_enough(message.items.size(), responder))
        put_end(session, std::move(message), responder);
      return;
    }
    case wire::kPutRevoke: {
      wire::PutRevoke message;
      if (read(request, responder, message) && few_enough(message.items.size(), responder))
        put_revoke(session, std::move(message), responder);
      return;
    }
    case wire::kLocate: {
      wire::Keys message;
      if (read(request, responder, message) && few_enough(message.keys.size(), responder))
        locate(session, message, responder);
      return;
    }
    case wire::kExists: {
      wire::Keys message;
      if (!read(request, responder, message) || !few_enough(message.keys.size(), responder)) return;
      wire::Codes reply;
      for (bool found : catalog_.exists(message.keys)) reply.codes.push_back(found ? Code::kOk : Code::kNotFound);
      return responder.reply(reply);
    }
    case wire::kRemove: {
      wire::Keys message;
      if (read(request, responder, message) && few_enough(message.keys.size(), responder)) remove(message, responder);
      return;
    }
    case wire::kKeep: {
      wire::Keep message;
      if (!read(request, responder, message) || !few_enough(message.keys.size(), responder)) return;
      return keep(message, responder);
    }
    case wire::kDrain: {
      wire::Drain message;
      if (read(request, responder, message)) drain(message, responder);
      return;
    }
    case wire::kList: {
      wire::ListRequest message;
      if (read(request, responder, message)) list(message, responder);
      return;
    }
    default:
      responder.refuse({Code::kUnsupported, "unknown request " + std::to_string(request.type)});
  }
}

void Master::put_revoke(const Session& session, wire::PutRevoke message, rpc::Responder& responder) {
  std::vector<catalog::PutRef> puts;
  for (wire::PutRevokeItem& item : message.items) puts.push_back({std::move(item.key), item.generation});
  responder.reply(wire::Codes{catalog_.put_revoke(session.client, puts)});
  send_orders_soon();
}

void Master::remove(const wire::Keys& message, rpc::Responder& responder) {
  wire::Codes reply{catalog_.remove(message.keys)};
  send_orders_soon();
  const std::vector<std::string_view> keys(message.keys.begin(), message.keys.end());
  answer_settled(responder, std::move(reply), keys, {Code::kOk, Code::kNotFound});
}

void Master::keep(const wire::Keep& message, rpc::Responder& responder) {
  wire::Codes reply{catalog_.keep(message.keys, from_wire(message.kept), reactor_.now_ns())};
  while (send_orders()) {  // before the answer, as for a put
  }
  responder.reply(reply);
}

void Master::drain(const wire::Drain& message, rpc::Responder& responder) {
  wire::Drained reply{.code = catalog_.drain(message.node, message.on)};
  if (const catalog::Node* node = catalog_.node(message.node)) {
    reply.objects = node->replicas.size();
    reply.bytes = node->committed_bytes + node->unfinished_bytes;
  }
  responder.reply(reply);
}

void Master::client_hello(Session& session, const wire::ClientHello& hello, rpc::Responder& responder) {
  auto [min, max] = hello.protocol;
  if (min > wire::kProtocolMax || max < wire::kProtocolMin) {
    return responder.refuse({Code::kIncompatible, "client speaks protocol " + std::to_string(min) + " to " +
                                                      std::to_string(max) + ", this master " +
                                                      std::to_string(wire::kProtocolMin) + " to " +
                                                      std::to_string(wire::kProtocolMax)});
  }
  if (hello.client.empty() || !session.node.empty() || !session.client.empty()) {
    return responder.refuse({Code::kInvalid, "a client's hello without an id, or a second one"});
  }
  session.client = hello.client;
  catalog_.client_back(hello.client);
  session.protocol = std::min(max, wire::kProtocolMax);
  responder.reply(wire::ClientWelcome{session.protocol, catalog_.term()});
}

uint32_t Master::node_index(std::vector<wire::NodeRef>& nodes, const InstanceId& id) const {
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].node == id) return i;
  }
  const catalog::Node* node = catalog_.node(id);
  nodes.push_back({id, node != nullptr ? node->address : std::string()});
  return static_cast<uint32_t>(nodes.size() - 1);
}

void Master::put_start(Session& session, wire::PutStart message, rpc::Responder& responder) {
  catalog::Placement placement;
  if (!message.placement.value.empty()) {
    const wire::Placement& given = message.placement.value.front();
    placement = {given.replicas, given.prefer, given.avoid};
  }
  if (message.placement.value.size() > 1 || !catalog::placement_valid(placement)) {
    return responder.refuse({Code::kInvalid, "a put of " + std::to_string(placement.replicas) + " replicas, " +
                                                 std::to_string(placement.prefer.size()) + " nodes preferred and " +
                                                 std::to_string(placement.avoid.size()) + " avoided; the limits are " +
                                                 std::to_string(catalog::kMaxReplicas) + " and " +
                                                 std::to_string(catalog::kMaxPlacementNodes)});
  }
  std::vector<catalog::PutRequest> requests;
  requests.reserve(message.items.size());
  for (wire::PutStartItem& item : message.items) {
    const std::vector<uint8_t>& given = message.follows;
    bool follows = requests.size() < given.size() && given[requests.size()] != 0;
    const auto& replaces = message.replaces.value;
    requests.push_back({std::move(item.key), item.length, item.token, follows,
                        requests.size() < replaces.size() ? replaces[requests.size()] : std::nullopt});
  }
  auto grants = catalog_.put_start(session.client, requests, reactor_.now_ns(), placement);
  wire::PutStartReply reply;
  reply.items.resize(grants.size());
  for (size_t i = 0; i < grants.size(); ++i) {
    const catalog::PutGrant& grant = grants[i];
    wire::PutGranted& out = reply.items[i];
    out.code = grant.code;
    if (grant.code != Code::kOk) continue;
    out.node = node_index(reply.nodes, grant.node);
    out.generation = grant.generation;
    auto tag = [&](const InstanceId& node) {
      return ticket_tag(nodes_[node].secret, grant.generation, requests[i].key, grant.length);
    };
    out.tag = tag(grant.node);
    for (const InstanceId& node : grant.further) {
      reply.further.value.push_back({static_cast<uint32_t>(i), node_index(reply.nodes, node), tag(node)});
    }
  }
  responder.reply(reply);
  send_orders_soon();
}

void Master::put_end(Session& session, wire::PutEnd message, rpc::Responder& responder) {
  if (!message.kept.value.empty() && message.kept.value.size() != message.items.size()) {
    return responder.refuse({Code::kInvalid, "it is not said of every put how long it is kept"});
  }
  std::vector<catalog::PutPlaced> placed;
  placed.reserve(message.items.size());
  for (wire::PutEndItem& item : message.items) {
    const catalog::Retention retention = retention_at(message.kept, placed.size());
    placed.push_back({std::move(item.key), item.generation, {item.node, item.offset, item.crc}, retention, {}});
  }
  for (const wire::PutEndFurther& more : message.further.value) {
    if (more.item >= placed.size() || placed[more.item].further.size() + 1 >= catalog::kMaxReplicas)
      return responder.refuse({Code::kInvalid, "further replicas of no put, or too many of one"});
    placed[more.item].further.push_back({more.node, more.offset, placed[more.item].at.crc});
  }
  wire::Codes reply{catalog_.put_end(session.client, placed, reactor_.now_ns())};
  for (size_t i = 0; i < placed.size(); ++i) {
    // Granted by an earlier master perhaps, and the node that may have the entry has not come back yet: not known.
    // (Terms say nothing here: this master may have to begin a later one when that node comes.)
    auto is_back = [this](const catalog::PlacedAt& at) {
      const catalog::Node* node = catalog_.node(at.node);
      return node != nullptr && node->state == catalog::NodeState::kReady;
    };
    bool back = is_back(placed[i].at) && std::ranges::all_of(placed[i].further, is_back);
    bool may_come = reactor_.now_ns() < term_started_ns_ + options_.node_grace_ns;
    if (reply.codes[i] == Code::kStale && !back && may_come) reply.codes[i] = Code::kUnavailable;
  }
  // Before the answer: a put that was answered is known to its node as committed, also if this process ends right now.
  send_orders();
  std::vector<std::string_view> keys;
  keys.reserve(placed.size());
  for (const catalog::PutPlaced& one : placed) keys.push_back(one.key);
  answer_settled(responder, std::move(reply), keys, {Code::kOk});
}

void Master::locate(const Session& session, const wire::Keys& message, rpc::Responder& responder) {
  wire::LocateReply reply;
  reply.lease_ns = options_.catalog.lease_ns;
  for (const catalog::Place& place : catalog_.locate(message.keys, reactor_.now_ns())) {
    wire::Located& out = reply.items.emplace_back();
    out.code = place.code;
    if (place.code != Code::kOk) continue;
    reply.lease_ns = std::min(reply.lease_ns, place.lease_ns);  // an object's time may end before a whole lease
    out.node = node_index(reply.nodes, place.node);
    out.generation = place.generation;
    out.offset = place.offset;
    out.length = place.length;
    out.crc = place.crc;
    if (session.protocol < wire::kProtocolReplicas) continue;
    for (const catalog::ReplicaAt& at : place.further) {
      const auto item = static_cast<uint32_t>(reply.items.size() - 1);
      reply.further.value.push_back({item, node_index(reply.nodes, at.node), at.offset});
    }
  }
  responder.reply(reply);
}

void Master::list(const wire::ListRequest& message, rpc::Responder& responder) {
  size_t limit = std::clamp<size_t>(message.limit, 1, kListMost);
  catalog::ListPage page = catalog_.list(message.prefix, message.start_after, limit);
  wire::ListReply reply;
  for (catalog::Listed& item : page.items)
    reply.items.push_back({std::move(item.key), item.length, item.generation, item.node});
  reply.resume_after = std::move(page.resume_after);
  responder.reply(reply);
}

// ---- answers that wait for nodes

void Master::answer_settled(rpc::Responder& responder, wire::Codes reply, std::span<const std::string_view> keys,
                            std::initializer_list<Code> wait_for) {
  std::vector<std::pair<size_t, std::string>> unsettled;
  for (size_t i = 0; i < keys.size(); ++i) {
    bool concerned = std::ranges::find(wait_for, reply.codes[i]) != wait_for.end();
    if (concerned && !catalog_.settled(keys[i])) unsettled.emplace_back(i, std::string(keys[i]));
  }
  if (unsettled.empty()) return responder.reply(reply);
  if (waiting_.size() >= options_.waiting_max) {
    return responder.refuse({Code::kOverloaded, std::to_string(waiting_.size()) + " answers wait for nodes"});
  }
  waiting_.push_back(
      {std::move(responder), std::move(reply), std::move(unsettled), reactor_.now_ns() + options_.settle_timeout_ns});
}

void Master::settle() {
  int64_t now = reactor_.now_ns();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    std::erase_if(it->unsettled, [this](auto& item) { return catalog_.settled(item.second); });
    if (!it->unsettled.empty() && now < it->deadline_ns) {
      ++it;
      continue;
    }
    // What was asked for is decided, but not yet that every node has let go of the older entry: ask again.
    for (auto& [index, key] : it->unsettled) it->reply.codes[index] = Code::kUnavailable;
    it->responder.reply(it->reply);
    it = waiting_.erase(it);
  }
}

}  // namespace moontide::store
