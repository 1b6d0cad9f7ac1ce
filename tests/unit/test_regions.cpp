// Registered memory as the engine sees it: the same memory registered more than once, registrations that a device takes
// in chunks only, and who is named when an unregistration waits.
#include <doctest/doctest.h>

#include <algorithm>
#include <set>

#include "contract/pairs.h"
#include "sim/machine.h"
#include "store/buffers.h"
#include "transport/self/self.h"

namespace moontide {
namespace {

using engine::Record;
using memory::kLocal;
using memory::kReadable;
using memory::kWritable;

constexpr uint64_t kMiB = 1u << 20;
constexpr uint32_t kRead = 1, kWrite = 2;

// A device of this process that takes at most so many bytes in one registration and refuses the copy that goes beyond
// one, and some registrations altogether.
class ChunkedDevice final : public transport::Transport {
 public:
  struct State {
    std::set<uint64_t> attached;  // addresses of chunks
    uint64_t attaches = 0;
    uint64_t refuse_at = UINT64_MAX;
  };
  static constexpr uint64_t kMost = kMiB;

  explicit ChunkedDevice(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::string_view name() const override { return "device"; }
  uint64_t max_region_bytes() const override { return kMost; }
  Result<std::optional<Bytes>> attach(const memory::Region& region, uint64_t offset, uint64_t length) override {
    REQUIRE(length <= kMost);
    if (++state_->attaches == state_->refuse_at) return fail(Code::kNoSpace, "the device is full");
    auto address = reinterpret_cast<uint64_t>(region.address + offset);
    REQUIRE(state_->attached.insert(address).second);
    return to_bytes(std::as_bytes(std::span(&address, 1)));
  }
  void detach(const memory::Region& region, uint64_t offset, const Bytes& key) override {
    uint64_t address = 0;
    std::memcpy(&address, key.data(), sizeof address);
    CHECK(address == reinterpret_cast<uint64_t>(region.address + offset));
    CHECK(state_->attached.erase(address) == 1);
  }
  Result<std::shared_ptr<transport::Endpoint>> connect(transport::LinkContext& link, uint32_t) override {
    return std::make_shared<Port>(link.registry());
  }

 private:
  struct Port final : transport::Endpoint {
    explicit Port(memory::Registry& registry) : registry_(registry) {}
    std::string_view name() const override { return "device"; }
    bool synchronous() const override { return true; }
    void start(std::move_only_function<void(Result<>)> ready) override { ready({}); }
    bool reaches(const transport::RemoteRegion& remote, transport::Op) const override {
      return remote.key("device") != nullptr;
    }
    Result<> copy(const transport::RemoteRegion& remote, transport::Op op,
                  std::span<const transport::Piece> pieces) override {
      for (const transport::Piece& piece : pieces) {
        auto local = *registry_.find_local(reinterpret_cast<uint64_t>(piece.local), piece.length);
        const auto into = static_cast<uint64_t>(piece.local - local->address);
        if (into / kMost != (into + piece.length - 1) / kMost) return fail(Code::kInternal, "two local keys");
        if (piece.offset / kMost != (piece.offset + piece.length - 1) / kMost) return fail(Code::kInternal, "two keys");
        uint64_t base = 0;
        std::memcpy(&base, remote.key("device", piece.offset)->data(), sizeof base);
        auto* there = reinterpret_cast<std::byte*>(base + piece.offset % kMost);
        if (op == transport::Op::kRead) std::memcpy(piece.local, there, piece.length);
        if (op == transport::Op::kWrite) std::memcpy(there, piece.local, piece.length);
      }
      return {};
    }
    void close(const Error&) override {}
    memory::Registry& registry_;
  };

  std::shared_ptr<State> state_;
};

// One engine in a simulated world, linked to itself.
struct Alone {
  explicit Alone(engine::TransportFactory transports) {
    engine = *engine::Engine::create(machine.process(), machine.network(), machine.engine_options(), transports);
    engine->open(engine->address(), kSecond, [this](Result<engine::LinkRef> opened) { link = *opened; });
    REQUIRE(run_until([&] { return link != nullptr; }));
  }
  ~Alone() {
    link.reset();
    engine.reset();
  }
  bool run_until(const std::function<bool()>& ready) { return universe.world.run_until(ready, 30 * kSecond); }
  uint64_t handle(const memory::RegionRef& region) {
    REQUIRE(run_until([&] { return link->region(region->id) != nullptr; }));
    return engine->handle(link, region->id);
  }
  Code run(const Record& record) {
    auto transfer = engine->submit(std::span(&record, 1), {});
    REQUIRE(run_until([&] { return (*transfer)->quiet(); }));
    return (*transfer)->results()[0];
  }

  sim::Universe universe{5};
  sim::Machine machine{universe, "here"};
  std::unique_ptr<engine::Engine> engine;
  engine::LinkRef link;
};

engine::TransportFactory self_only() {
  return [](memory::Registry& registry, const engine::EngineOptions&) {
    transport::TransportList list;
    list.push_back(std::make_unique<transport::SelfTransport>(registry));
    return list;
  };
}

Bytes pattern(size_t size) {
  Bytes bytes(size);
  SeededRandom(3).fill(bytes);
  return bytes;
}

TEST_CASE("regions: records that go back and forth between many regions make one part of each") {
  Alone alone(self_only());
  constexpr uint64_t kRegions = 2000, kEach = 8, kPart = 64;
  Bytes theirs(kRegions * kEach * kPart), ours(kRegions * kEach * kPart);
  std::ranges::copy(pattern(theirs.size()), theirs.begin());
  const uint64_t handle =
      alone.handle(*alone.engine->add_region(theirs.data(), theirs.size(), kReadable | kWritable, "theirs"));
  for (uint64_t i = 0; i < kRegions; ++i) {
    REQUIRE(alone.engine->add_region(ours.data() + i * kEach * kPart, kEach * kPart, kLocal, ""));
  }
  engine::PreparedBatch batch;
  for (uint64_t k = 0; k < kEach; ++k) {
    for (uint64_t i = 0; i < kRegions; ++i) {
      const uint64_t at = (i * kEach + k) * kPart;
      batch.records.push_back({kRead, 0, reinterpret_cast<uint64_t>(ours.data() + at), handle, at, kPart});
    }
  }
  auto transfer = alone.engine->submit(batch, {});
  REQUIRE(alone.run_until([&] { return (*transfer)->quiet(); }));
  CHECK((*transfer)->error().code == Code::kOk);
  CHECK(ours == theirs);
  REQUIRE(batch.plan->parts.size() == kRegions);
  CHECK(batch.plan->regions.size() == kRegions + 1);                          // the far end is here too
  for (const auto& part : batch.plan->parts) CHECK(part.pieces.size() == 1);  // neighbours, though others came between
}

TEST_CASE("regions: a device's limit splits a registration, and copies across the joints are exact (FAULTS 046, 048)") {
  auto state = std::make_shared<ChunkedDevice::State>();
  Alone alone([state](memory::Registry&, const engine::EngineOptions&) {
    transport::TransportList list;
    list.push_back(std::make_unique<ChunkedDevice>(state));
    return list;
  });
  Bytes theirs(3 * kMiB), ours(3 * kMiB);
  auto target = *alone.engine->add_region(theirs.data(), theirs.size(), kReadable | kWritable, "target");
  auto source = *alone.engine->add_region(ours.data(), ours.size() - 100, kReadable, "source");
  CHECK(state->attached.size() == 6);
  CHECK(target->attached.at(0).keys.size() == 3);
  const uint64_t handle = alone.handle(target);
  Bytes bytes = pattern(64 << 10);
  for (uint64_t offset : {kMiB - (32 << 10), 2 * kMiB + (512 << 10), 2 * kMiB - 1, 3 * kMiB - (64 << 10)}) {
    for (uint64_t local : {uint64_t{0}, kMiB - 1000, 2 * kMiB - (32 << 10)}) {
      CAPTURE(offset);
      CAPTURE(local);
      std::ranges::copy(bytes, ours.begin() + static_cast<ptrdiff_t>(local));
      const auto address = reinterpret_cast<uint64_t>(ours.data() + local);
      CHECK(alone.run({kWrite, 0, address, handle, offset, bytes.size()}) == Code::kOk);
      CHECK(std::ranges::equal(std::span(theirs).subspan(offset, bytes.size()), bytes));
      std::ranges::fill(ours, std::byte{0});
      CHECK(alone.run({kRead, 0, address, handle, offset, bytes.size()}) == Code::kOk);
      CHECK(std::ranges::equal(std::span(ours).subspan(local, bytes.size()), bytes));
    }
  }
  bool back = false;
  REQUIRE(alone.engine->remove_region(target->id, [&] {
    back = true;
    CHECK(state->attached.size() == 3);  // detached before the memory is handed back
  }));
  CHECK(back);
}

TEST_CASE("regions: a registration of which one chunk is refused fails whole, and leaves nothing behind (FAULTS 047)") {
  auto state = std::make_shared<ChunkedDevice::State>();
  Alone alone([state](memory::Registry& registry, const engine::EngineOptions&) {
    transport::TransportList list;
    list.push_back(std::make_unique<transport::SelfTransport>(registry));
    list.push_back(std::make_unique<ChunkedDevice>(state));
    return list;
  });
  Bytes memory(3 * kMiB);
  state->refuse_at = 3;
  auto refused = alone.engine->add_region(memory.data(), memory.size(), kReadable, "r");
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Code::kNoSpace);
  CHECK(refused.error().message == "device cannot register bytes 2097152 to 3145728 of 3145728: the device is full");
  CHECK(state->attached.empty());
  CHECK(alone.engine->registry().all().empty());
  CHECK_FALSE(alone.engine->registry().find_local(reinterpret_cast<uint64_t>(memory.data()), 1));
  CHECK(alone.engine->add_region(memory.data(), memory.size(), kReadable, "r"));
  CHECK(state->attached.size() == 3);
}

TEST_CASE("regions: unregistering one of two registrations of the same memory waits for a transfer through either") {
  contract::MakePair make;
  for (const auto& [name, candidate] : contract::all_pairs()) {
    if (name == "sim tcp") make = candidate;
  }
  auto pair = make();
  constexpr uint64_t kSize = 3 * kMiB;
  auto theirs = pair->allocate(pair->owner(), kSize, kReadable | kWritable, "theirs");
  auto first = pair->allocate(pair->reader(), kSize, kReadable, "first");
  auto second = *pair->reader().add_region(first->address + 100, kSize - 100, kLocal, "second");
  auto apart = *pair->reader().add_region(first->address, 50, kLocal, "apart");
  auto link = pair->open();
  const uint64_t handle = pair->handle(link, theirs);
  for (uint32_t op : {kRead, kWrite}) {
    Record record{op, 0, reinterpret_cast<uint64_t>(first->address) + 200, handle, 0, kSize - 200};
    auto transfer = *pair->reader().submit(std::span(&record, 1), {});
    CHECK(first->pins == 1);
    CHECK(second->pins == 1);
    CHECK(apart->pins == 0);
    REQUIRE(pair->run_until([&] { return transfer->quiet(); }));
    CHECK_MESSAGE(transfer->results()[0] == Code::kOk, transfer->error().text());
    CHECK(first->pins + second->pins == 0);
  }
  Record record{kRead, 0, reinterpret_cast<uint64_t>(first->address) + 200, handle, 0, kSize - 200};
  auto transfer = *pair->reader().submit(std::span(&record, 1), {});
  int back = 0;
  REQUIRE(pair->reader().remove_region(second->id, [&] { ++back; }));
  REQUIRE(pair->reader().remove_region(first->id, [&] { ++back; }));
  CHECK(back == 0);
  for (const auto& region : {first, second}) {
    auto users = pair->reader().registry().users(region->id);
    REQUIRE(users.size() == 1);
    CAPTURE(users[0]);
    CHECK(users[0].starts_with("transfer 3 with " + link->peer_address() + ", posted on tcp, "));
    CHECK(users[0].ends_with(" of 3145528 bytes moved"));
  }
  REQUIRE(pair->run_until([&] { return transfer->quiet(); }));
  CHECK(back == 2);
}

TEST_CASE("regions: peers are told of what they may use or find by name, and of nothing else") {
  contract::MakePair make;
  for (const auto& [name, candidate] : contract::all_pairs()) {
    if (name == "sim tcp") make = candidate;
  }
  auto pair = make();
  Bytes memory(400);
  auto add = [&](size_t at, uint8_t access, const char* name) {
    return *pair->owner().add_region(memory.data() + at, 100, access, name);
  };
  auto early = add(0, kLocal, "");
  auto link = pair->open();
  auto private_one = add(100, kLocal, "");
  auto named = add(200, kLocal, "named");
  auto read = add(300, kReadable, "");
  REQUIRE(pair->run_until([&] { return link->regions().contains(read->id); }));
  CHECK(link->regions().contains(named->id));
  CHECK_FALSE(link->regions().contains(early->id));
  CHECK_FALSE(link->regions().contains(private_one->id));
  for (const auto& region : {early, private_one, named, read}) REQUIRE(pair->owner().remove_region(region->id, {}));
  REQUIRE(pair->run_until([&] { return !link->regions().contains(read->id); }));
  CHECK_FALSE(link->regions().contains(named->id));
}

TEST_CASE("regions: operations of a pool's client may use memory that overlaps, registered or not") {
  Alone alone(self_only());
  store::TemporaryRegions regions(*alone.engine);
  Bytes memory(4096);
  const auto at = reinterpret_cast<uint64_t>(memory.data());
  auto first = *regions.acquire({at, 2000}, kReadable);
  auto second = *regions.acquire({at + 1000, 2000}, kReadable);  // overlaps, and neither holds the other
  CHECK(first->id != second->id);
  auto inside = *regions.acquire({at + 1500, 100}, kReadable);
  CHECK((inside == first || inside == second));
  auto into = *regions.acquire({at + 1500, 100}, kLocal);  // a get next to the puts
  CHECK(alone.engine->registry().all().size() == 2);
  int quiet = 0;
  for (const auto& region : {first, second, inside, into}) regions.release(region, [&] { ++quiet; });
  CHECK(quiet == 4);
  CHECK(alone.engine->registry().all().empty());

  // a get's own registration does not stand in the way of a put of the same memory ...
  auto getting = *regions.acquire({at, 100}, kLocal);
  auto putting = *regions.acquire({at, 100}, kReadable);
  CHECK(putting->id != getting->id);
  regions.release(getting, [] {});
  regions.release(putting, [] {});
  // ... but the word of the memory's owner does
  auto own = *alone.engine->add_region(memory.data(), 4096, kLocal, "own");
  CHECK(regions.acquire({at, 100}, kReadable).error().code == Code::kDenied);
  CHECK(*regions.acquire({at, 100}, kLocal) == own);
}

}  // namespace
}  // namespace moontide
