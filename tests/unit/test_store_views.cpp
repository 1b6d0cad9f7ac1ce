// Pins of entries that are looked at in place: by the segment, by the catalog's books, and by views within one process.
#include "store/embedded.h"
#include "unit/store_support.h"

using namespace moontide;
using namespace moontide::store;
using namespace moontide::store::test;
using io::test::pattern;

namespace {

// One process that is a pool, and looks at it.
struct Alone {
  io::EpollReactor reactor;
  io::InprocNetwork network{reactor};
  std::unique_ptr<engine::Engine> engine;
  std::unique_ptr<Member> member;

  explicit Alone(uint64_t bytes = 1 * kMiB) {
    engine::EngineOptions options;
    options.listen = "inproc:alone";
    auto made = engine::Engine::create(reactor, network, options, factory());
    REQUIRE(made);
    engine = std::move(*made);
    MemberOptions member_options;
    member_options.lend_bytes = bytes;
    member_options.private_arena = true;
    auto joined = Member::create(reactor, network, *engine, std::move(member_options));
    REQUIRE(joined);
    member = std::move(*joined);
    REQUIRE(until([&] { return member->node()->joined(); }));
  }

  bool until(const std::function<bool()>& ready) { return io::test::run_until(reactor, ready); }
  const Storage& storage() { return member->node()->storage(); }
  Code put(const std::string& key, const Bytes& value) {
    std::vector<PutItem> items(1);
    items[0].key = key;
    items[0].value = value;
    auto operation = member->client().put(std::move(items), Commit::kSync, {});
    REQUIRE(until([&] { return operation->quiet(); }));
    return operation->results()[0] ? Code::kOk : operation->results()[0].error().code;
  }
  void remove(const std::string& key) {
    bool removed = false;
    member->client().remove({key}, 0, [&](Result<std::vector<Code>> codes) {
      REQUIRE(codes);
      removed = true;
    });
    REQUIRE(until([&] { return removed; }));
  }
  std::vector<Result<ViewRef>> view(std::vector<std::string> keys) {
    std::optional<std::vector<Result<ViewRef>>> answer;
    member->client().view(std::move(keys), 0, [&](std::vector<Result<ViewRef>> views) { answer = std::move(views); });
    REQUIRE(until([&] { return answer.has_value(); }));
    return std::move(*answer);
  }
  void close(ViewRef& view) {
    auto viewing = view->viewing();
    view.reset();
    viewing->flush();
  }
};

}  // namespace

TEST_CASE("views: a segment keeps the bytes of a pinned entry until the last pin is gone, and its header is cleared") {
  auto arena = memory::Arena::create_private(64 * 1024);
  REQUIRE(arena);
  Segment segment(*arena);
  const Generation generation{1, 1};
  auto offset = segment.allocate(1000);
  REQUIRE(offset);
  segment.publish(generation, "k", 1000, *offset, 0);
  CHECK_FALSE(segment.pin({1, 2}));
  REQUIRE(segment.pin(generation));
  REQUIRE(segment.pin(generation));
  const uint64_t used = segment.extents().used();
  CHECK(segment.held_bytes() == 0);
  REQUIRE(segment.retire(generation));
  EntryHeader header;
  std::memcpy(&header, (*arena)->data() + *offset, sizeof header);
  CHECK(header.sequence == 0);
  CHECK(segment.extents().used() == used);
  CHECK(segment.held_bytes() == catalog::entry_footprint(1000));
  CHECK_FALSE(segment.pin(generation));
  segment.unpin(generation);
  CHECK(segment.held_bytes() == catalog::entry_footprint(1000));
  segment.unpin(generation);
  CHECK(segment.held_bytes() == 0);
  CHECK(segment.extents().used() == 0);
}

TEST_CASE("views: bytes that a node holds are not placed on, and never more than are free") {
  catalog::Catalog catalog({}, catalog::policy_maker(catalog::kDefaultPolicy));
  catalog.start_term(1);
  const catalog::NodeId node{1, 1};
  REQUIRE(catalog.node_join(node, {.capacity_bytes = 64 * 1024, .address = "a"}));
  REQUIRE(catalog.node_ready(node));
  auto grant = [&](const std::string& key, uint64_t length) {
    return catalog.put_start({2, 2}, std::vector<catalog::PutRequest>{{.key = key, .length = length, .token = 1}}, 1)[0]
        .code;
  };
  CHECK(grant("a", 30'000) == Code::kOk);
  catalog.node_holds(node, 16 * 1024);
  CHECK(catalog.stats().held_bytes == 16 * 1024);
  CHECK(catalog.check_invariants());
  CHECK(grant("b", 30'000) == Code::kNoSpace);
  catalog.node_holds(node, UINT64_MAX);
  CHECK(catalog.check_invariants());
  CHECK(grant("c", 0) == Code::kNoSpace);
  catalog.node_holds(node, 0);
  CHECK(grant("d", 30'000) == Code::kOk);
  catalog.node_holds({9, 9}, 1);
  REQUIRE(catalog.node_join(node, {.capacity_bytes = 64 * 1024, .address = "a"}));
  CHECK(catalog.stats().held_bytes == 0);
}

TEST_CASE("views: an object that is looked at keeps its bytes when it is removed and its space is wanted") {
  Alone alone;
  const Bytes value = pattern(200'000, 1);
  REQUIRE(alone.put("a", value) == Code::kOk);
  auto views = alone.view({"a", "none", "a"});
  REQUIRE(views[0]);
  REQUIRE(views[2]);
  CHECK(views[1].error().code == Code::kNotFound);
  CHECK(std::ranges::equal((*views[0])->bytes(), value));
  CHECK(alone.storage().views().pinned_bytes() == catalog::entry_footprint(value.size()));
  alone.remove("a");
  CHECK(alone.view({"a"})[0].error().code == Code::kNotFound);
  CHECK(alone.storage().segment().held_bytes() == catalog::entry_footprint(value.size()));
  for (int i = 0; i < 30; ++i) REQUIRE(alone.put("churn" + std::to_string(i), pattern(100'000, 2)) == Code::kOk);
  CHECK(std::ranges::equal((*views[0])->bytes(), value));
  alone.close(*views[0]);
  CHECK(std::ranges::equal((*views[2])->bytes(), value));
  alone.close(*views[2]);
  REQUIRE(alone.until([&] { return alone.storage().segment().held_bytes() == 0; }));
  CHECK(alone.storage().views().pinned_bytes() == 0);
  REQUIRE(alone.until([&] { return alone.member->master()->catalog().stats().held_bytes == 0; }));
}

TEST_CASE("views: bounded by bytes; one that was given back makes room, one object counts once") {
  Alone alone;  // 1 MiB, of which a quarter may be looked at
  for (const char* key : {"a", "b", "c"}) REQUIRE(alone.put(key, pattern(120'000, 1)) == Code::kOk);
  auto views = alone.view({"a", "b", "c", "a"});
  REQUIRE(views[0]);
  REQUIRE(views[1]);
  CHECK(views[2].error().code == Code::kNoSpace);
  CHECK(views[3]);
  alone.close(*views[1]);
  REQUIRE(alone.until([&] { return alone.view({"c"})[0].has_value(); }));
}

TEST_CASE("views: what is under way when the client ends is CLOSED, and views outlive client, node and engine") {
  ViewRef kept;
  const Bytes value = pattern(5000, 3);
  {
    Alone alone;
    REQUIRE(alone.put("a", value) == Code::kOk);
    kept = std::move(*alone.view({"a"})[0]);
    std::optional<Code> code;
    alone.member->client().view({"unknown"}, 0,
                                [&](std::vector<Result<ViewRef>> views) { code = views[0].error().code; });
    alone.member.reset();
    REQUIRE(alone.until([&] { return code.has_value(); }));
    CHECK(*code == Code::kClosed);
    CHECK(std::ranges::equal(kept->bytes(), value));
  }
  CHECK(std::ranges::equal(kept->bytes(), value));
}

TEST_CASE("views: bad requests of a peer are refused and change nothing") {
  Alone alone;
  REQUIRE(alone.put("a", pattern(5000, 3)) == Code::kOk);
  auto view = alone.view({"a"});
  REQUIRE(view[0]);
  auto ask = [&](uint16_t type, Bytes payload) {
    std::optional<Code> code;
    alone.engine->open(alone.engine->address(), kSecond, [&](Result<engine::LinkRef> link) {
      REQUIRE(link);
      (*link)->call(type, std::move(payload), kSecond,
                    [&](const Result<rpc::Reply>& reply) { code = reply ? Code::kOk : reply.error().code; });
    });
    REQUIRE(alone.until([&] { return code.has_value(); }));
    return *code;
  };
  CHECK(ask(wire::kViewOpen, {}) == Code::kInvalid);
  CHECK(ask(wire::kViewClose, pattern(7, 1)) == Code::kInvalid);
  CHECK(ask(wire::kViewOpen, wire::encode(wire::ViewOpen{12345, {{1, 1}}})) == Code::kStale);
  CHECK(ask(wire::kViewClose, wire::encode(wire::ViewClose{12345, {{1, 1}}})) == Code::kStale);
  CHECK(ask(wire::kViewOpen, wire::encode(wire::ViewOpen{0, std::vector<Generation>(5000)})) == Code::kInvalid);
  CHECK(alone.storage().views().pinned_bytes() == catalog::entry_footprint(5000));
  // Closing what was not opened gives nobody else's pin back.
  const size_t before = alone.storage().views().viewers();
  for (int i = 0; i < 40; ++i) ask(wire::kViewOpen, wire::encode(wire::ViewOpen{}));
  CHECK(alone.storage().views().viewers() <= 16);
  CHECK(alone.storage().views().viewers() > before);
  alone.close(*view[0]);
}

TEST_CASE("views: a node that knows none, or is crowded, does not make an object a miss") {
  Alone alone;
  REQUIRE(alone.put("a", pattern(5000, 3)) == Code::kOk);
  auto refusing = [&](Code code) {
    alone.engine->serve(wire::kViewOpen,
                        [code](const engine::LinkRef&, const rpc::Incoming&, rpc::Responder responder) {
                          responder.refuse({code, "no views here"});
                        });
    return alone.view({"a"})[0].error().code;
  };
  CHECK(refusing(Code::kUnsupported) == Code::kUnsupported);
  CHECK(refusing(Code::kOverloaded) == Code::kNoSpace);
}
