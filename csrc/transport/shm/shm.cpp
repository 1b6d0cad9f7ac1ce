#include "transport/shm/shm.h"

#include <map>
#include <mutex>
#include <shared_mutex>

#include "memory/copy.h"
#include "wire/codec.h"

namespace moontide::transport {
namespace {

// An arena is named by the id of the region that covers it whole (Engine::allocate registers it so).
struct ArenaKey {
  uint32_t region = 0;
  uint64_t size = 0;
  auto fields() { return std::tie(region, size); }
};

// The descriptor is the right to read all of the arena, and to write it where its owner left that open.
bool readable_arena(const memory::Region& region) {
  return region.arena && region.arena->fd() >= 0 && (region.access & memory::kReadable) != 0;
}

constexpr uint64_t kMappedBytesMax = uint64_t{1} << 42;  // per peer, of address space
constexpr size_t kArenasMax = 4096;                      // per peer: what it may make this process map

class ShmEndpoint final : public Endpoint {
 public:
  explicit ShmEndpoint(LinkContext& link) : link_(link), generations_(link.generations()) {}

  std::string_view name() const override { return "shm"; }
  bool synchronous() const override { return true; }

  void start(std::move_only_function<void(Result<>)> ready) override {
    if (!generations_) {
      ready(fail(Code::kUnsupported, "the peer's generation table is not mapped"));
      return;
    }
    for (const auto& [id, region] : link_.registry().all()) announce(*region);
    ready({});
  }

  void announce(const memory::Region& region) {
    if (!readable_arena(region)) return;
    link_.send(name(), wire::encode(ArenaKey{region.id, region.arena->size()}), {region.arena->fd()});
  }

  void message(Bytes payload, std::vector<io::Fd> fds) override {
    auto key = wire::decode<ArenaKey>(payload);
    if (!key || fds.size() != 1) return;
    std::unique_lock lock(mutex_);
    if (mappings_.size() >= kArenasMax) return;
    // what is not mapped is reached by another path
    if (!range_inside(mapped_bytes_, key->size, kMappedBytesMax)) return;
    auto mapping = memory::Mapping::map(fds[0].get(), key->size);
    if (!mapping || !mappings_.emplace(key->region, *mapping).second) return;
    mapped_bytes_ += key->size;
  }

  bool reaches(const RemoteRegion& remote, Op op) const override {
    if (remote.key(name()) == nullptr || (op == Op::kWrite && !remote.leave)) return false;
    std::shared_lock lock(mutex_);
    auto found = mappings_.find(remote.id);
    if (found == mappings_.end() || found->second->size() < remote.length) return false;
    return op == Op::kRead || found->second->writable_data() != nullptr;
  }

  Result<> copy(const RemoteRegion& remote, Op op, std::span<const Piece> pieces) override {
    std::shared_ptr<memory::Mapping> mapping;
    {
      std::shared_lock lock(mutex_);
      auto found = mappings_.find(remote.id);
      if (found == mappings_.end())
        return fail(Code::kStale, "arena of region " + std::to_string(remote.id) + " is not mapped");
      mapping = found->second;
    }
    for (const Piece& piece : pieces) {
      if (!range_inside(piece.offset, piece.length, mapping->size())) return fail(Code::kDenied, "outside the arena");
      if (op == Op::kWrite && mapping->writable_data() == nullptr) return fail(Code::kDenied, "the arena is sealed");
      if (op == Op::kRead) {
        memory::copy(piece.local, mapping->data() + piece.offset, piece.length);
      } else {
        memory::copy(mapping->writable_data() + piece.offset, piece.local, piece.length);
      }
    }
    if (!generations_->is_current(remote.word, remote.generation)) {
      return fail(Code::kStale, "region " + std::to_string(remote.id) + " was unregistered meanwhile");
    }
    return {};
  }

  std::shared_ptr<const std::byte> view(const RemoteRegion& remote) const override {
    if (!reaches(remote, Op::kRead)) return nullptr;
    std::shared_lock lock(mutex_);
    auto found = mappings_.find(remote.id);
    return found == mappings_.end() ? nullptr : std::shared_ptr<const std::byte>(found->second, found->second->data());
  }

  void region_added(const memory::Region& region) override { announce(region); }

  void region_gone(const RemoteRegion& remote) override {
    std::unique_lock lock(mutex_);
    auto found = mappings_.find(remote.id);
    if (found == mappings_.end()) return;
    mapped_bytes_ -= found->second->size();
    mappings_.erase(found);
  }

  void close(const Error&) override {}

 private:
  LinkContext& link_;
  std::shared_ptr<memory::GenerationView> generations_;
  mutable std::shared_mutex mutex_;  // copies run outside the engine's lock
  std::map<uint32_t, std::shared_ptr<memory::Mapping>> mappings_;
  uint64_t mapped_bytes_ = 0;
};

}  // namespace

Result<std::optional<Bytes>> ShmTransport::attach(const memory::Region& region, uint64_t, uint64_t) {
  if (!readable_arena(region)) return std::nullopt;
  return Bytes{};
}

Result<std::shared_ptr<Endpoint>> ShmTransport::connect(LinkContext& link, uint32_t) {
  if (!link.same_host())
    return fail(Code::kUnsupported, "the peer is not on this host or in another network namespace");
  return std::make_shared<ShmEndpoint>(link);
}

}  // namespace moontide::transport
