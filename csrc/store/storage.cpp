#include "store/storage.h"

#include "store/pull_job.h"
#include "store/repair_job.h"
#include "store/retention.h"

namespace moontide::store {

Storage::Storage(engine::Engine& engine, std::shared_ptr<memory::Arena> arena, const SipKey& secret,
                 const NodeOptions& options, Retired retired, Repaired repaired)
    : engine_(engine),
      options_(options),
      segment_(std::move(arena)),
      views_(engine, segment_, options_, [this] { retired_({}); }),
      gate_(secret, options.refused_max),
      checksums_(engine.reactor()),
      headers_(engine),
      retired_(std::move(retired)),
      repaired_(std::move(repaired)) {}

Storage::~Storage() = default;

void Storage::serve(const engine::LinkRef& link, rpc::Incoming request, rpc::Responder responder) {
  if (jobs_.size() >= options_.jobs_max) {
    return responder.refuse({Code::kOverloaded, std::to_string(jobs_.size()) + " pulls are under way at this node"});
  }
  auto traced = wire::decode_traced<wire::StorePull>(request.payload, link->version());
  if (!traced) return responder.refuse(traced.error());
  wire::StorePull* pull = &traced->request;
  size_t parts = 0;
  for (const wire::StorePullItem& item : pull->items) parts += item.parts.size();
  if (pull->items.size() > wire::kStoreItemsMax || parts > wire::kStorePartsMax) {
    return responder.refuse({Code::kInvalid, std::to_string(pull->items.size()) + " objects of " +
                                                 std::to_string(parts) + " parts in one request"});
  }
  auto job = std::make_shared<PullJob>(*this, link, std::move(*pull), std::move(traced->trace), std::move(responder));
  jobs_.insert(job);
  job->start();
}

void Storage::close_gate(uint32_t term) {
  gate_open_ = false;
  gate_.enter_term(term);
  repairs_.clear();
  retire_when_over_.clear();  // the master orders again what it still waits for
}

void Storage::open_gate(Generation floor) {
  gate_.raise_floor(floor);
  gate_open_ = true;
  for (auto& job : std::exchange(at_gate_, {})) job->gate_opened();
}

void Storage::obey(const wire::NodeOrder& order) {
  gate_.raise_floor(order.floor);
  const int64_t now_ns = engine_.reactor().now_ns();
  for (size_t i = 0; i < order.confirm.size(); ++i) {
    const catalog::Retention retention = retention_at(order.kept, i);
    segment_.confirm(order.confirm[i], retention.pin, retention.ttl_ns > 0 ? now_ns + retention.ttl_ns : 0);
  }
  std::vector<Generation> over;
  for (const wire::RetireItem& item : order.retire) {
    gate_.refuse(item.generation);
    repairs_.erase(item.generation);
    if (pulling_.contains(item.generation)) {
      retire_when_over_.insert(item.generation);
      continue;
    }
    if (segment_.retire(item.generation)) ++counters_.retired;
    over.push_back(item.generation);
  }
  if (!over.empty()) retired_(std::move(over));
  for (const wire::RepairItem& item : order.repair.value) {
    auto job = std::make_shared<RepairJob>(*this, item);
    repair_jobs_.insert(job);
    job->start();
  }
}

void Storage::pull_over(Generation generation) {
  pulling_.erase(generation);
  repairs_.erase(generation);
  if (retire_when_over_.erase(generation) > 0) retired_({generation});
}

wire::Inventory Storage::inventory_after(Generation after, size_t max) const {
  wire::Inventory page;
  const int64_t now_ns = engine_.reactor().now_ns();
  const auto& inventory = segment_.inventory();
  for (auto it = inventory.upper_bound(after); it != inventory.end() && page.items.size() < max; ++it) {
    const Segment::Entry& entry = it->second;
    page.items.push_back({entry.key, it->first, entry.length, entry.offset, entry.crc, entry.confirmed});
    int64_t left_ns = entry.expires_ns == 0 ? 0 : std::max<int64_t>(entry.expires_ns - now_ns, 1);
    page.kept.value.push_back(to_wire({entry.pin, left_ns}));
  }
  page.kept.value = if_any(std::move(page.kept.value));
  return page;
}

}  // namespace moontide::store
