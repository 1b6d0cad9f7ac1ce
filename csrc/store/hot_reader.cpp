#include "store/hot_reader.h"

#include <algorithm>
#include <cstring>

namespace moontide::store {
namespace {

constexpr int64_t kSearchFirst = 2 * kSecond;  // doubles while there is none near
constexpr int64_t kSearchEvery = 16 * kSecond;
constexpr int64_t kSearchTimeout = 5 * kSecond;
constexpr int64_t kTellEvery = 10 * kMillisecond;
constexpr int64_t kTellTimeout = 5 * kSecond;
constexpr int64_t kIndexTimeout = 20 * kMillisecond;  // without progress; memory of this host answers at once
constexpr size_t kReadsPerMessage = 256;

}  // namespace

struct HotReader::Look {
  std::shared_ptr<HeaderSlots> headers;
  std::vector<Generation> generations;
  std::vector<std::byte*> slots;
  engine::TransferRef transfer;
  Found found;
  bool looked = false;
  bool quiet = false;
  void give_back() {
    if (!looked || !quiet) return;
    for (std::byte* slot : std::exchange(slots, {})) headers->give(slot);
    transfer.reset();
  }
};

HotReader::HotReader(io::Reactor& reactor, engine::Engine& engine, MasterLink& master,
                     std::shared_ptr<HeaderSlots> headers, const ClientOptions& options)
    : reactor_(reactor),
      engine_(engine),
      master_(master),
      headers_(std::move(headers)),
      options_(options),
      search_pause_ns_(kSearchFirst),
      tell_timer_(reactor) {}

HotReader::~HotReader() = default;

// ---- which cache

bool HotReader::ready() {
  if (link_ && link_->open()) return true;
  link_.reset();
  if (reactor_.now_ns() >= search_after_ns_) search();
  return false;
}

void HotReader::search() {
  if (!master_.connected()) return;
  const int64_t now_ns = reactor_.now_ns();
  search_after_ns_ = now_ns + search_pause_ns_;
  search_pause_ns_ = std::min(search_pause_ns_ * 2, kSearchEvery);
  if (master_.protocol() < wire::kProtocolHotCache) return;
  master_.request(wire::kHotCaches, {}, now_ns + kSearchTimeout,
                  [this, alive = std::weak_ptr(alive_)](const Result<Bytes>& payload, bool) {
                    if (alive.expired() || !payload) return;
                    auto reply = wire::decode<wire::HotCachesReply>(*payload);
                    if (reply) try_caches(std::move(reply->nodes));
                  });
}

void HotReader::try_caches(std::vector<wire::NodeRef> nodes) {
  for (wire::NodeRef& node : nodes) {
    const bool near = engine_.distance(node.address) != engine::Engine::Distance::kElsewhere;
    if (!near && !options_.hot_anywhere) continue;
    return engine_.open(node.address, options_.connect_timeout_ns,
                        [this, alive = std::weak_ptr(alive_), node](const Result<engine::LinkRef>& link) {
                          if (!alive.expired() && link) opened(node, *link);
                        });
  }
}

void HotReader::opened(const wire::NodeRef& node, const engine::LinkRef& link) {
  const std::string index_name = wire::hot_index_name(node.node);
  for (const auto& [id, region] : link->regions()) {
    if (region->name != index_name || region->length < kHotBucketBytes) continue;
    // What cannot be mapped would cost a round trip per look.
    const bool at_hand = link->same_instance() || link->view(*region) != nullptr || options_.hot_anywhere;
    if (!at_hand || link->version() < wire::kProtocolHotCache) return;
    link_ = link;
    search_pause_ns_ = kSearchFirst;
    node_ = node.node;
    index_handle_ = engine_.handle(link, id);
    buckets_ = region->length / kHotBucketBytes;
  }
}

void HotReader::failed() {
  link_.reset();
  search_after_ns_ = reactor_.now_ns() + kSearchFirst;
}

bool HotReader::is_afar(const Location& location) const {
  if (options_.hot_anywhere) return location.node != node_;
  return engine_.distance(location.address) == engine::Engine::Distance::kElsewhere;
}

// ---- what it has

void HotReader::look(const std::vector<Generation>& generations, Found found) {
  auto look = std::make_shared<Look>();
  look->headers = headers_;
  look->generations = generations;
  look->found = std::move(found);
  std::vector<engine::Record> records;
  for (Generation generation : generations) {
    auto slot = headers_->take();
    if (!slot) break;  // the others are read from afar
    std::memset(*slot, 0, kHotBucketBytes);
    look->slots.push_back(*slot);
    records.push_back({.op = static_cast<uint32_t>(transport::Op::kRead),
                       .flags = 0,
                       .local = reinterpret_cast<uint64_t>(*slot),
                       .handle = index_handle_,
                       .offset = hot_bucket(generation, buckets_) * kHotBucketBytes,
                       .length = kHotBucketBytes});
  }
  auto done = [this, alive = std::weak_ptr(alive_), look] {
    if (look->transfer && !alive.expired()) looked(look);  // without: inside submit(), which goes on below
  };
  auto quiet = [look] {
    look->quiet = true;
    look->give_back();
  };
  auto transfer = engine_.submit(
      records, {.progress_timeout_ns = kIndexTimeout, .done = std::move(done), .quiet = std::move(quiet), .trace = {}});
  if (!transfer) {
    look->quiet = true;
    return looked(look);
  }
  look->transfer = std::move(*transfer);
  if (look->transfer->done()) looked(look);
}

void HotReader::looked(const std::shared_ptr<Look>& look) {
  if (std::exchange(look->looked, true)) return;
  std::vector<std::optional<uint64_t>> offsets(look->generations.size());
  bool answered = look->transfer != nullptr;
  for (size_t i = 0; answered && i < look->slots.size(); ++i) {
    answered = look->transfer->results()[i] == Code::kOk;
    if (answered) offsets[i] = find_in_bucket({look->slots[i], kHotBucketBytes}, look->generations[i]);
  }
  if (!answered) failed();
  look->give_back();
  auto found = std::exchange(look->found, nullptr);
  found(std::move(offsets));
}

// ---- what was read

void HotReader::read_here(Generation generation, uint64_t bytes) {
  reads_.hits.push_back({generation, bytes});
  tell_soon();
}

void HotReader::read_afar(const std::string& key, const Location& location) {
  reads_.afar.push_back({.key = key,
                         .generation = location.generation,
                         .length = location.length,
                         .crc = location.crc,
                         .source = location.node,
                         .address = location.address,
                         .offset = location.offset});
  tell_soon();
}

void HotReader::tell_soon() {
  if (reads_.hits.size() + reads_.afar.size() >= kReadsPerMessage) return tell();
  if (!tell_timer_.running()) tell_timer_.start(kTellEvery, [this] { tell(); });
}

void HotReader::tell() {
  tell_timer_.stop();
  wire::HotReads reads = std::exchange(reads_, {});
  if (auto to = link()) to->call(wire::kHotReads, wire::encode(reads), kTellTimeout, [](const Result<rpc::Reply>&) {});
}

}  // namespace moontide::store
