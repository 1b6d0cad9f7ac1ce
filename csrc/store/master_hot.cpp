// The master's side of hot caches: who keeps one, and what they say of it. No object lies there as far as it knows.
#include "store/master.h"

namespace moontide::store {
namespace {

constexpr size_t kNodesMost = 4096;  // of one answer

}  // namespace

void Master::hot_facts(Session& session, const Bytes& payload) {
  if (auto facts = wire::decode<wire::HotFacts>(payload)) session.hot = *facts;
}

void Master::hot_caches(rpc::Responder& responder) const {
  wire::HotCachesReply reply;
  for (const auto& [number, session] : sessions_) {
    if (!session.hot || reply.nodes.size() == kNodesMost) continue;
    const catalog::Node* node = catalog_.node(session.node);
    if (node != nullptr && node->state == catalog::NodeState::kReady) reply.nodes.push_back({node->id, node->address});
  }
  responder.reply(reply);
}

const wire::HotFacts* Master::hot_facts_of(const InstanceId& node) const {
  auto facts = nodes_.find(node);
  if (facts == nodes_.end()) return nullptr;
  auto session = sessions_.find(facts->second.session);
  return session == sessions_.end() || !session->second.hot ? nullptr : &*session->second.hot;
}

void Master::add_hot_stats(wire::PoolStatsReply& reply) const {
  wire::HotFacts sum;
  for (const auto& [number, session] : sessions_) {
    if (!session.hot) continue;
    sum.capacity_bytes += session.hot->capacity_bytes;
    sum.used_bytes += session.hot->used_bytes;
    sum.entries += session.hot->entries;
  }
  reply.counts.push_back({"hot_capacity_bytes", sum.capacity_bytes});
  reply.counts.push_back({"hot_used_bytes", sum.used_bytes});
  reply.counts.push_back({"hot_entries", sum.entries});
}

}  // namespace moontide::store
