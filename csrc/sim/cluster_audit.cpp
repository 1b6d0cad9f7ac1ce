// What a cluster's checker sees of its insides.
#include <map>

#include "base/crc32c.h"
#include "sim/cluster.h"
#include "sim/values.h"

namespace moontide::sim {
namespace {

std::string bytes_text(uint64_t bytes) { return std::to_string(bytes) + " bytes"; }

Result<> violated(const std::string& what) { return fail(Code::kInternal, what); }

}  // namespace

const catalog::Node* Cluster::in_catalog(const NodeMachine& node) const {
  const MasterMachine& master = masters_.back();
  if (!master.machine->process().alive()) return nullptr;
  return master.master->catalog().node(node.node->id());
}

Result<> Cluster::audit_node(const NodeMachine& run) const {
  const std::string& host = run.machine->process().host();
  const store::Segment& segment = run.node->storage().segment();
  std::map<uint64_t, std::pair<uint64_t, std::string>> extents;  // offset → end, key
  uint64_t entries_bytes = 0;
  for (const auto& [generation, entry] : segment.inventory()) {
    const uint64_t footprint = catalog::entry_footprint(entry.length);
    entries_bytes += footprint;
    if (!range_inside(entry.offset, footprint, run.arena->size())) {
      return violated(host + ": the entry of " + entry.key + " lies outside the segment");
    }
    if (!extents.emplace(entry.offset, std::make_pair(entry.offset + footprint, entry.key)).second) {
      return violated(host + ": two entries at offset " + std::to_string(entry.offset));
    }
    store::EntryHeader header;
    std::memcpy(&header, run.arena->data() + entry.offset, sizeof header);
    if (!store::header_matches(header, generation, entry.key, entry.length)) {
      return violated(host + ": the header of " + entry.key + " generation " + generation.text() + " is not its own");
    }
    const MutableBytes payload = segment.payload(entry.offset, entry.length);
    if (crc32c(payload) != entry.crc) return violated(host + ": the bytes of " + entry.key + " changed at rest");
    // (What was never confirmed may have been pulled from memory that its client had taken back; nobody is shown it.)
    if (entry.confirmed && value_number(payload) == 0)
      return violated(host + ": the entry of " + entry.key + " holds nobody's bytes");
  }
  uint64_t end = 0;
  std::string before;
  for (const auto& [offset, extent] : extents) {
    if (offset < end) return violated(host + ": the entries of " + before + " and " + extent.second + " overlap");
    end = extent.first;
    before = extent.second;
  }
  if (segment.extents().used() < entries_bytes) {
    return violated(host + ": entries of " + bytes_text(entries_bytes) + " in " + bytes_text(segment.extents().used()) +
                    " of extents");
  }
  const catalog::Node* known = in_catalog(run);
  if (run.node->joined() && known != nullptr && known->state == catalog::NodeState::kReady &&
      run.node->term() == masters_.back().master->term() && known->used_bytes() < entries_bytes) {
    return violated(host + ": holds entries of " + bytes_text(entries_bytes) + ", the catalog counts " +
                    bytes_text(known->used_bytes()));
  }
  if (known != nullptr && known->state == catalog::NodeState::kReady) TRY_VOID(audit_replicas(run, *known));
  return {};
}

Result<> Cluster::audit_hot_cache(const NodeMachine& run, bool at_rest) {
  const store::HotCache* cache = run.node->hot_cache();
  if (cache == nullptr) return {};
  const std::string host = run.machine->process().host() + "'s hot cache: ";
  const store::Segment& segment = cache->segment();
  std::map<uint64_t, uint64_t> extents;  // offset → end
  uint64_t entries_bytes = 0;
  for (const auto& [generation, entry] : segment.inventory()) {
    const uint64_t footprint = catalog::entry_footprint(entry.length);
    entries_bytes += footprint;
    extents.emplace(entry.offset, entry.offset + footprint);
    const MutableBytes payload = segment.payload(entry.offset, entry.length);
    store::EntryHeader header;
    std::memcpy(&header, payload.data() - sizeof header, sizeof header);
    if (!store::header_matches(header, generation, entry.key, entry.length) || crc32c(payload) != entry.crc) {
      return violated(host + "the entry of " + entry.key + " generation " + generation.text() + " is not its own");
    }
    if (value_number(payload) == 0) return violated(host + "the entry of " + entry.key + " holds nobody's bytes");
  }
  uint64_t end = 0;
  for (const auto& [offset, to] : extents) {
    if (offset < end) return violated(host + "entries overlap");
    end = to;
  }
  if (cache->facts().entries != extents.size()) return violated(host + "two entries in one place, or one unknown");
  if (segment.extents().used() < entries_bytes || (at_rest && segment.extents().used() != entries_bytes)) {
    return violated(host + "entries take " + bytes_text(entries_bytes) + ", the allocator gave out " +
                    bytes_text(segment.extents().used()));
  }
  if (at_rest && cache->pulls_under_way() != 0) return violated(host + "pulls that never end");
  return {};
}

// What the catalog shows is there: a replica is out of its books before its node hears of it.
Result<> Cluster::audit_replicas(const NodeMachine& run, const catalog::Node& known) {
  const auto& inventory = run.node->storage().segment().inventory();
  for (size_t cursor = 0; const catalog::Replica* replica = known.replicas.next(cursor);) {
    if (!replica->placed) continue;
    const Generation generation = replica->object->generation;
    const std::string key(replica->object->key());
    const auto entry = inventory.find(generation);
    if (entry == inventory.end() || entry->second.key != key || entry->second.offset != replica->offset) {
      return violated(run.machine->process().host() + ": lost " + key + " of generation " + generation.text() +
                      ", which the catalog shows");
    }
  }
  return {};
}

Result<> Cluster::audit() {
  if (masters_.back().machine->process().alive()) {
    TRY_VOID(masters_.back().master->catalog().check_invariants());
    TRY_VOID(follower_.follow(*masters_.back().master));
  }
  for (const auto& runs : nodes_) {
    if (!runs.back().machine->process().alive()) continue;
    TRY_VOID(audit_node(runs.back()));
    TRY_VOID(audit_hot_cache(runs.back(), false));
  }
  for (const auto& runs : clients_) {
    for (const auto& run : runs) {
      if (!run->buffers_untouched()) {
        return violated(run->machine().process().host() + ": a buffer changed after its operation was quiet");
      }
    }
  }
  return {};
}

std::string Cluster::describe() const {
  std::string text = "master: ";
  const MasterMachine& master = masters_.back();
  if (!master.machine->process().alive()) {
    text += "dead\n";
  } else {
    const catalog::Stats stats = master.master->catalog().stats();
    text += "term " + std::to_string(master.master->term()) + ", " + std::to_string(stats.committed) + " committed, " +
            std::to_string(stats.unfinished) + " unfinished, " + std::to_string(stats.retiring) + " retiring\n";
  }
  for (const auto& runs : nodes_) {
    const NodeMachine& run = runs.back();
    text += run.machine->process().host() + ": " + (run.machine->process().alive() ? "" : "dead, ") +
            (run.node->joined() ? "joined" : "not joined (" + run.node->last_error() + ")") + ", term " +
            std::to_string(run.node->term());
    if (const catalog::Node* known = in_catalog(run)) {
      text += ", in the catalog: state " + std::to_string(static_cast<int>(known->state)) + ", " +
              std::to_string(known->replicas.size()) + " objects, " + std::to_string(known->retiring.size()) +
              " retiring";
    }
    text += '\n';
    for (const auto& [generation, entry] : run.node->storage().segment().inventory()) {
      text += "  " + generation.text() + " " + entry.key + (entry.confirmed ? "" : " (not confirmed)") + " #" +
              std::to_string(value_number(run.node->storage().segment().payload(entry.offset, entry.length))) + "\n";
    }
  }
  return text;
}

bool Cluster::assembled() const {
  for (const auto& runs : nodes_) {
    const NodeMachine& run = runs.back();
    const catalog::Node* known = in_catalog(run);
    if (!run.node->joined() || known == nullptr || known->state != catalog::NodeState::kReady) return false;
  }
  for (const auto& runs : clients_) {
    if (!runs.back()->client().connected()) return false;
  }
  return true;
}

Result<> Cluster::audit_at_rest() {
  TRY_VOID(audit());
  for (const auto& runs : nodes_) {
    const NodeMachine& run = runs.back();
    const std::string& host = run.machine->process().host();
    const catalog::Node* known = in_catalog(run);
    if (!run.node->joined() || known == nullptr || known->state != catalog::NodeState::kReady) {
      return violated(host + " has not joined: " + run.node->last_error());
    }
    if (run.node->storage().jobs() != 0) return violated(host + ": pulls that never end");
    TRY_VOID(audit_hot_cache(run, true));
    if (run.engine->hostages() != 0) return violated(host + ": transfers that never become quiet");
    if (known->unfinished_bytes != 0)
      return violated(host + ": " + bytes_text(known->unfinished_bytes) + " reserved for ever");
    if (known->retiring_bytes != 0)
      return violated(host + ": " + bytes_text(known->retiring_bytes) + " retiring for ever");
    uint64_t entries_bytes = 0;
    for (const auto& [generation, entry] : run.node->storage().segment().inventory()) {
      entries_bytes += catalog::entry_footprint(entry.length);
    }
    const uint64_t used = run.node->storage().segment().extents().used();
    if (known->committed_bytes != entries_bytes || used != entries_bytes) {
      return violated(host + ": the catalog counts " + bytes_text(known->committed_bytes) + ", entries take " +
                      bytes_text(entries_bytes) + ", the allocator gave out " + bytes_text(used));
    }
  }
  const catalog::Stats stats = masters_.back().master->catalog().stats();
  if (stats.unfinished != 0 || stats.retiring != 0) {
    return violated("the catalog has " + std::to_string(stats.unfinished) + " unfinished and " +
                    std::to_string(stats.retiring) + " retiring objects at rest");
  }
  for (const auto& runs : clients_) {
    const ClientMachine& run = *runs.back();
    if (run.pending() != 0) return violated(std::to_string(run.pending()) + " operations without an outcome");
    if (run.unquiet() != 0) return violated(std::to_string(run.unquiet()) + " operations that never become quiet");
    if (run.engine().hostages() != 0) return violated("a client's transfer never becomes quiet");
    if (run.client().commits().pending() != 0) return violated("a client's commits are never answered");
  }
  return {};
}

}  // namespace moontide::sim
