#include "transport/self/self.h"

#include "memory/copy.h"

namespace moontide::transport {
namespace {

class SelfEndpoint final : public Endpoint {
 public:
  explicit SelfEndpoint(memory::Registry& registry) : registry_(registry) {}
  std::string_view name() const override { return "self"; }
  bool synchronous() const override { return true; }
  void start(std::move_only_function<void(Result<>)> ready) override { ready({}); }
  bool reaches(const RemoteRegion& remote, Op) const override { return remote.key(name()) != nullptr; }

  Result<> copy(const RemoteRegion& remote, Op op, std::span<const Piece> pieces) override {
    uint64_t address;
    std::memcpy(&address, remote.key(name())->data(), sizeof address);
    auto* base = reinterpret_cast<std::byte*>(address);
    for (const Piece& piece : pieces) {
      std::byte* there = base + piece.offset;
      if (op == Op::kRead) {
        move(piece.local, there, piece.length);
      } else {
        move(there, piece.local, piece.length);
      }
    }
    if (!registry_.generations().is_current(remote.word, remote.generation)) {
      return fail(Code::kStale, "region " + std::to_string(remote.id) + " was unregistered meanwhile");
    }
    return {};
  }

  std::shared_ptr<const std::byte> view(const RemoteRegion& remote) const override {
    memory::RegionRef region = registry_.by_id(remote.id);
    return region && region->arena ? std::shared_ptr<const std::byte>(region->arena, region->address) : nullptr;
  }

  void close(const Error&) override {}

 private:
  // source and target may be the same memory here
  static void move(std::byte* to, const std::byte* from, uint64_t size) {
    bool apart = to + size <= from || from + size <= to;
    if (apart) {
      memory::copy(to, from, size);
    } else {
      std::memmove(to, from, size);
    }
  }

  memory::Registry& registry_;
};

}  // namespace

Result<std::optional<Bytes>> SelfTransport::attach(const memory::Region& region, uint64_t, uint64_t) {
  auto address = reinterpret_cast<uint64_t>(region.address);
  return to_bytes(std::as_bytes(std::span(&address, 1)));
}

Result<std::shared_ptr<Endpoint>> SelfTransport::connect(LinkContext& link, uint32_t) {
  if (!link.same_instance()) return fail(Code::kUnsupported, "another process");
  return std::make_shared<SelfEndpoint>(registry_);
}

}  // namespace moontide::transport
