// The transport contract: one suite, every transport. What a transport promises is in csrc/transport/transport.h.
#include <algorithm>
#include <numeric>

#include "contract/pairs.h"

namespace moontide::contract {
namespace {

using engine::Record;
using engine::TransferRef;
using memory::kLocal;
using memory::kReadable;
using memory::kWritable;

constexpr uint32_t kRead = 1, kWrite = 2;
constexpr uint64_t kSize = 3u << 20;

Bytes pattern(size_t size, uint64_t seed) {
  Bytes bytes(size);
  SeededRandom(seed).fill(bytes);
  return bytes;
}

// A pair with one region on each side, opened.
struct Scene {
  explicit Scene(const MakePair& make, uint64_t size = kSize) : pair(make()) {
    theirs = pair->allocate(pair->owner(), size, kReadable | kWritable, "theirs");
    ours = pair->allocate(pair->reader(), size, kReadable, "ours");
    link = pair->open();
    handle = pair->handle(link, theirs);
  }
  Record record(uint32_t op, uint64_t local, uint64_t remote, uint64_t length) const {
    return {op, 0, reinterpret_cast<uint64_t>(ours->address) + local, handle, remote, length};
  }
  TransferRef run(const std::vector<Record>& records) {
    auto transfer = pair->reader().submit(records, {});
    REQUIRE(transfer);
    REQUIRE(pair->run_until([&] { return (*transfer)->quiet(); }));
    return *transfer;
  }
  std::unique_ptr<Pair> pair;
  memory::RegionRef theirs, ours;
  engine::LinkRef link;
  uint64_t handle = 0;
};

// Runs `body` for every transport as a subcase of its own.
void for_each(const std::function<void(const MakePair&)>& body) {
  for (const auto& [name, make] : all_pairs()) {
    SUBCASE(name.c_str()) {
      CAPTURE(name);
      body(make);
    }
  }
}

TEST_CASE("contract: reads and writes of any size and alignment are exact and touch nothing else") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    const uint64_t lengths[] = {1, 7, 64, 4096, 4097, 65536 + 3, (1u << 20) - 1, (1u << 20) + 1, (2u << 20) + 12345};
    uint64_t seed = 1;
    for (uint64_t length : lengths) {
      for (uint32_t op : {kRead, kWrite}) {
        CAPTURE(length);
        CAPTURE(op);
        const uint64_t local = 1 + seed % 61, remote = 3 + seed % 127;
        MutableBytes source = op == kRead ? scene.theirs->bytes() : scene.ours->bytes();
        MutableBytes target = op == kRead ? scene.ours->bytes() : scene.theirs->bytes();
        const uint64_t from = op == kRead ? remote : local, to = op == kRead ? local : remote;
        Bytes bytes = pattern(length, ++seed);
        std::ranges::copy(bytes, source.begin() + static_cast<ptrdiff_t>(from));
        std::ranges::fill(target, std::byte{0xee});
        auto transfer = scene.run({scene.record(op, local, remote, length)});
        CHECK_MESSAGE(transfer->results()[0] == Code::kOk, transfer->error().text());
        CHECK(transfer->path() == (op == kRead ? scene.pair->name() : scene.pair->write_path()));
        // visible at the target the moment the transfer is done
        CHECK(std::ranges::equal(target.subspan(to, length), bytes));
        CHECK(std::ranges::all_of(target.first(to), [](std::byte b) { return b == std::byte{0xee}; }));
        CHECK(std::ranges::all_of(target.subspan(to + length), [](std::byte b) { return b == std::byte{0xee}; }));
      }
    }
  });
}

TEST_CASE("contract: a thousand scattered pieces in random order, both ways") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    constexpr size_t kPieces = 1024, kPiece = 512;
    std::vector<uint32_t> order(kPieces);
    std::iota(order.begin(), order.end(), 0u);
    SeededRandom random(5);
    for (size_t i = kPieces - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    Bytes bytes = pattern(kPieces * kPiece, 3);
    for (uint32_t op : {kRead, kWrite}) {
      CAPTURE(op);
      MutableBytes source = op == kRead ? scene.theirs->bytes() : scene.ours->bytes();
      MutableBytes target = op == kRead ? scene.ours->bytes() : scene.theirs->bytes();
      std::ranges::copy(bytes, source.begin());
      std::ranges::fill(target, std::byte{0});
      std::vector<Record> records;
      for (size_t i = 0; i < kPieces; ++i) {  // piece order[i] of the source to place i of the target
        const uint64_t from = order[i] * kPiece, to = i * kPiece;
        records.push_back(op == kRead ? scene.record(op, to, from, kPiece) : scene.record(op, from, to, kPiece));
      }
      auto transfer = scene.run(records);
      CHECK_MESSAGE(std::ranges::all_of(transfer->results(), [](Code c) { return c == Code::kOk; }),
                    transfer->error().text());
      bool exact = true;
      for (size_t i = 0; i < kPieces; ++i) {
        exact &=
            std::ranges::equal(target.subspan(i * kPiece, kPiece), ByteView(bytes).subspan(order[i] * kPiece, kPiece));
      }
      CHECK(exact);
    }
  });
}

TEST_CASE("contract: each bad record has its own result, and the good ones of the batch are done") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    Bytes bytes = pattern(kSize, 9);
    std::ranges::copy(bytes, scene.theirs->bytes().begin());
    auto secret = scene.pair->allocate(scene.pair->owner(), 4096, kLocal, "secret");
    auto readonly = scene.pair->allocate(scene.pair->owner(), 4096, kReadable, "readonly");
    const uint64_t secret_handle = scene.pair->handle(scene.link, secret);
    const uint64_t readonly_handle = scene.pair->handle(scene.link, readonly);
    std::vector<Record> records = {
        scene.record(kRead, 0, 0, 4096),
        scene.record(kRead, 8192, kSize - 100, 101),                    // one byte too far
        scene.record(kRead, 8192, kSize, 1),                            // behind the end
        scene.record(kRead, 8192, UINT64_MAX - 10, 100),                // wraps
        scene.record(kRead, 8192, 0, uint64_t{1} << 63),                // longer than anything
        scene.record(kRead, 8192, 0, UINT64_MAX),                       //
        scene.record(kRead, kSize - 10, 0, 11),                         // out of the local region
        {kRead, 0, 4096, scene.handle, 0, 16},                          // local memory that is nobody's
        {kRead, 0, scene.record(kRead, 0, 0, 0).local, 999999, 0, 16},  // no such handle
        {7, 0, scene.record(kRead, 0, 0, 0).local, scene.handle, 0, 16},
        {kRead, 0, scene.record(kRead, 0, 0, 0).local, secret_handle, 0, 16},
        {kWrite, 0, scene.record(kRead, 0, 0, 0).local, readonly_handle, 0, 16},
        scene.record(kRead, 5, 17, 0),  // nothing, which is fine
        scene.record(kRead, 4096, 4096, 4096),
    };
    auto transfer = scene.run(records);
    const std::vector<Code> expected = {Code::kOk,     Code::kDenied, Code::kDenied, Code::kDenied,   Code::kDenied,
                                        Code::kDenied, Code::kDenied, Code::kDenied, Code::kNotFound, Code::kInvalid,
                                        Code::kDenied, Code::kDenied, Code::kOk,     Code::kOk};
    REQUIRE(transfer->results().size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(code_name(transfer->results()[i]) == code_name(expected[i]));
    }
    CHECK(std::ranges::equal(scene.ours->bytes().first(8192), ByteView(bytes).first(8192)));
    CHECK_FALSE(transfer->error().message.empty());
  });
}

TEST_CASE("contract: the owner refuses what is not its peer's, whatever the peer believes (laws 3 and 6)") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    std::ranges::fill(scene.ours->bytes(), std::byte{0x11});
    auto remote = scene.link->region(scene.theirs->id);
    if (scene.pair->one_engine()) return;  // the peer is the owner itself
    const uint64_t honest = remote->generation;
    remote->generation = honest + 1;  // as after a re-registration that was missed
    CHECK(scene.run({scene.record(kRead, 0, 0, 4096)})->results()[0] == Code::kStale);
    CHECK(scene.run({scene.record(kWrite, 0, 0, 4096)})->results()[0] == Code::kStale);
    remote->generation = honest;
    auto readonly = scene.pair->allocate(scene.pair->owner(), 4096, kReadable, "readonly");
    Record write = scene.record(kWrite, 0, 0, 16);
    write.handle = scene.pair->handle(scene.link, readonly);
    scene.link->region(readonly->id)->access = kReadable | kWritable;
    CHECK(scene.run({write})->results()[0] == Code::kDenied);
    CHECK(std::ranges::all_of(readonly->bytes(), [](std::byte b) { return b == std::byte{0}; }));
    if (scene.pair->write_path() == "tcp" || scene.pair->write_path() == "pull") {
      remote->length = uint64_t{1} << 40;
      CHECK(scene.run({scene.record(kWrite, 0, kSize - 8, 16)})->results()[0] == Code::kDenied);
    }
  });
}

TEST_CASE("contract: memory that is unregistered is reached no more, and handed back only when quiet") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    std::ranges::fill(scene.theirs->bytes(), std::byte{7});
    auto transfer = scene.pair->reader().submit(std::vector{scene.record(kRead, 0, 0, kSize)}, {});
    REQUIRE(transfer);
    bool handed_back = false;
    REQUIRE(scene.pair->owner().remove_region(scene.theirs->id, [&] {
      handed_back = true;
      std::ranges::fill(scene.theirs->bytes(), std::byte{66});
    }));
    REQUIRE(scene.pair->run_until([&] { return (*transfer)->quiet() && handed_back; }));
    if ((*transfer)->results()[0] == Code::kOk) {
      CHECK(std::ranges::all_of(scene.ours->bytes(), [](std::byte b) { return b == std::byte{7}; }));
    } else {
      CHECK((*transfer)->results()[0] == Code::kStale);
    }
    auto late = scene.run({scene.record(kRead, 0, 0, 16)});
    CHECK(late->results()[0] == Code::kStale);
    // the reader's own memory: in use until its transfer is quiet
    auto again = scene.pair->allocate(scene.pair->owner(), kSize, kReadable, "again");
    Record record = scene.record(kRead, 0, 0, kSize);
    record.handle = scene.pair->handle(scene.link, again);
    auto second = scene.pair->reader().submit(std::span(&record, 1), {});
    bool local_back = false;
    REQUIRE(scene.pair->reader().remove_region(scene.ours->id, [&] { local_back = true; }));
    CHECK(local_back == (*second)->quiet());
    REQUIRE(scene.pair->run_until([&] { return (*second)->quiet(); }));
    CHECK(local_back);
  });
}

TEST_CASE("contract: a prepared batch is planned once, and anew after whatever may change what it comes to") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    engine::Engine& reader = scene.pair->reader();
    Bytes bytes = pattern(kSize, 14);
    std::ranges::copy(bytes, scene.theirs->bytes().begin());
    engine::PreparedBatch batch{{scene.record(kRead, 0, 4096, 4096), scene.record(kRead, 8192, 0, 512),
                                 scene.record(kRead, 0, 0, 0), scene.record(kRead, 8704, 512, 512)}};
    auto post = [&] {
      std::ranges::fill(scene.ours->bytes().first(16384), std::byte{0});
      auto transfer = reader.submit(batch, {});
      REQUIRE(transfer);
      REQUIRE(scene.pair->run_until([&] { return (*transfer)->quiet(); }));
      return *transfer;
    };
    auto exact = [&] {
      auto transfer = post();
      CHECK_MESSAGE(transfer->results() == std::vector(4, Code::kOk), transfer->error().text());
      CHECK(transfer->bytes() == 5120);
      return std::ranges::equal(scene.ours->bytes().first(4096), ByteView(bytes).subspan(4096, 4096)) &&
             std::ranges::equal(scene.ours->bytes().subspan(8192, 1024), ByteView(bytes).first(1024));
    };
    CHECK(exact());
    const engine::PlanRef first = batch.plan;
    CHECK(exact());
    CHECK(batch.plan == first);
    // somebody registers a part of the memory as well: it waits for what was posted before it goes
    auto also = *reader.add_region(scene.ours->address + 8192, 4096, kLocal, "also", scene.ours->arena);
    auto transfer = reader.submit(batch, {});
    bool back = false;
    REQUIRE(reader.remove_region(also->id, [&] { back = true; }));
    CHECK(back == (*transfer)->quiet());
    REQUIRE(scene.pair->run_until([&] { return (*transfer)->quiet(); }));
    CHECK(back);
    CHECK(batch.plan != first);
    CHECK(exact());
    // a record that cannot be done is looked at again each time
    REQUIRE(reader.remove_region(scene.ours->id, {}));
    CHECK(post()->results() == std::vector{Code::kDenied, Code::kDenied, Code::kOk, Code::kDenied});
    auto again = *reader.add_region(scene.ours->address, kSize, kReadable, "ours", scene.ours->arena);
    CHECK(exact());
    REQUIRE(scene.pair->owner().remove_region(scene.theirs->id, {}));
    REQUIRE(scene.pair->run_until([&] { return !scene.link->region(scene.theirs->id); }));
    CHECK(post()->results() == std::vector(4, Code::kStale));
    CHECK(scene.pair->reader().registry().by_id(again->id)->pins == 0);
  });
}

TEST_CASE("contract: a prepared batch ends with its link, also the record that copies nothing") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    engine::PreparedBatch batch{{scene.record(kRead, 0, 0, 4096), scene.record(kRead, 0, 0, 0)}};
    engine::PreparedBatch nothing{{scene.record(kRead, 0, 0, 0)}};
    CHECK((*scene.pair->reader().submit(nothing, {}))->done());
    auto first = scene.pair->reader().submit(batch, {});
    REQUIRE(scene.pair->run_until([&] { return (*first)->quiet(); }));
    scene.link->give_up({Code::kClosed, "closed here"});
    auto late = scene.pair->reader().submit(batch, {});
    CHECK((*late)->quiet());
    CHECK((*late)->results() == std::vector(2, Code::kPeerLost));
    auto none = scene.pair->reader().submit(nothing, {});
    CHECK((*none)->results() == std::vector{Code::kPeerLost});
    // a plan keeps nothing alive
    std::weak_ptr<engine::Link> link = scene.link;
    scene.link.reset();
    first->reset();
    REQUIRE(scene.pair->run_until([&] { return link.expired(); }));
  });
}

// What elements of a strided record copy, byte by byte.
void copy_elements(const Record& record, ByteView source, uint64_t from, uint64_t from_stride, MutableBytes target,
                   uint64_t to, uint64_t to_stride) {
  for (uint64_t i = 0; i < record.count; ++i) {
    ByteView bytes = source.subspan(from + i * from_stride, record.length);
    std::ranges::copy(bytes, target.begin() + static_cast<ptrdiff_t>(to + i * to_stride));
  }
}

TEST_CASE("contract: strided records are exact and touch nothing between their elements") {
  struct Shape {
    uint64_t length, count, taken_stride, put_stride, pieces_most;
  };
  const Shape shapes[] = {
      {1, 1000, 3, 2, 1000},
      {512, 700, 512, 1024, 700},
      {4096, 300, 8192, 4096, 300},
      {4096, 300, 4096, 4096, 1},
      {64, 500, 0, 64, 500},
      {100, 400, 7, 100, 400},  // taken: overlapping
      {70'000, 20, 70'001, 90'000, 20},
      {(1u << 20) + 5, 2, 1, (1u << 20) + 9, 4},  // longer than a slice
      {4096, 1, 0, 0, 1},
  };
  for_each([&](const MakePair& make) {
    Scene scene(make);
    for (const Shape& shape : shapes) {
      for (uint32_t op : {kRead, kWrite}) {
        CAPTURE(shape.length);
        CAPTURE(shape.count);
        CAPTURE(op);
        MutableBytes source = op == kRead ? scene.theirs->bytes() : scene.ours->bytes();
        MutableBytes target = op == kRead ? scene.ours->bytes() : scene.theirs->bytes();
        std::ranges::copy(pattern(kSize, shape.length), source.begin());
        std::ranges::fill(target, std::byte{0xee});
        const uint64_t from = 11, to = 23;
        Record record =
            op == kRead ? scene.record(op, to, from, shape.length) : scene.record(op, from, to, shape.length);
        record.count = shape.count;
        (op == kRead ? record.remote_stride : record.local_stride) = shape.taken_stride;
        (op == kRead ? record.local_stride : record.remote_stride) = shape.put_stride;
        Bytes expected(kSize, std::byte{0xee});
        copy_elements(record, source, from, shape.taken_stride, expected, to, shape.put_stride);
        engine::PreparedBatch batch{{record}};
        auto transfer = scene.pair->reader().submit(batch, {});
        REQUIRE(transfer);
        REQUIRE(scene.pair->run_until([&] { return (*transfer)->quiet(); }));
        CHECK_MESSAGE((*transfer)->results() == std::vector{Code::kOk}, (*transfer)->error().text());
        CHECK((*transfer)->bytes() == shape.length * shape.count);
        CHECK(std::ranges::equal(target, expected));
        uint64_t pieces = 0;
        for (const auto& part : batch.plan->parts) pieces += part.pieces.size();
        CHECK(pieces <= shape.pieces_most + shape.length * shape.count / (64u << 10));  // where slices are short
      }
    }
  });
}

TEST_CASE("contract: a strided record that cannot be done is refused as a whole, and the others are done") {
  constexpr uint64_t kTop = uint64_t{1} << 63;
  struct Bad {
    uint32_t op;
    uint64_t local, remote, length, count, local_stride, remote_stride;
    Code code;
  };
  const Bad all[] = {
      {kRead, 0, 0, 0, 5, 1, 1, Code::kOk},                      // nothing, which is fine
      {kRead, 0, 0, 64, 0, 0, 0, Code::kOk},                     //
      {kRead, 0, 0, 0, UINT64_MAX, kTop, kTop, Code::kOk},       //
      {kWrite, 0, kSize, 64, 0, 64, 64, Code::kOk},              // at the end
      {kRead, 0, kSize + 1, 64, 0, 64, 64, Code::kDenied},       // behind it
      {kRead, 0, 0, 64, 2, 63, 64, Code::kInvalid},              // overlap where they are put
      {kRead, 0, 0, 64, 2, 0, 64, Code::kInvalid},               //
      {kWrite, 0, 0, 64, 2, 64, 63, Code::kInvalid},             //
      {kWrite, 0, 0, 64, 1000, 64, 0, Code::kInvalid},           //
      {kRead, 0, kSize - 129, 64, 3, 64, 33, Code::kDenied},     // the last byte of the last is outside, there
      {kRead, 0, kSize - 130, 64, 3, 64, 33, Code::kOk},         // or just inside
      {kRead, kSize - 191, 0, 64, 3, 64, 1, Code::kDenied},      // and here
      {kRead, kSize - 192, 0, 64, 3, 64, 1, Code::kOk},          //
      {kRead, 0, 0, 64, 3, 64, kTop, Code::kDenied},             // wraps to the start
      {kRead, 0, 0, 64, 2, kTop, 64, Code::kDenied},             //
      {kRead, 0, 0, 64, 3, kTop, 64, Code::kInvalid},            // reaches beyond 2^64 here
      {kRead, 0, 0, 64, 2, 64, UINT64_MAX - 63, Code::kDenied},  // its end is 2^64
      {kRead, 0, 0, 64, 5, 64, UINT64_MAX / 4 + 1, Code::kDenied},
      {kRead, 0, 0, 64, UINT64_MAX, 64, 0, Code::kInvalid},
      {kRead, 0, 0, 1, UINT64_MAX, 1, 0, Code::kDenied},
      {kWrite, 0, 0, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, Code::kInvalid},
      {kWrite, 0, 0, 1, kSize, 0, 1, Code::kTooLarge},  // more elements than one batch may have
      {kWrite, 0, 0, 1, kSize, 1, 1, Code::kOk},        // which are one where they are joined
  };
  for_each([&](const MakePair& make) {
    Scene scene(make);
    std::vector<Record> records;
    std::vector<Code> expected;
    for (const Bad& bad : all) {
      Record record = scene.record(bad.op, bad.local, bad.remote, bad.length);
      record.count = bad.count;
      record.local_stride = bad.local_stride;
      record.remote_stride = bad.remote_stride;
      records.push_back(record);
      expected.push_back(bad.code);
    }
    auto transfer = scene.run(records);
    REQUIRE(transfer->results().size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK(code_name(transfer->results()[i]) == code_name(expected[i]));
    }
    CHECK(transfer->bytes() == 64 * 6 + kSize);
  });
}

TEST_CASE("contract: cancel gives one outcome, then quiet, and nothing lands after it (laws 1 and 2)") {
  for_each([](const MakePair& make) {
    for (uint32_t op : {kRead, kWrite}) {
      CAPTURE(op);
      Scene scene(make);
      MutableBytes source = op == kRead ? scene.theirs->bytes() : scene.ours->bytes();
      MutableBytes target = op == kRead ? scene.ours->bytes() : scene.theirs->bytes();
      std::ranges::fill(source, std::byte{7});
      int outcomes = 0, quiets = 0;
      engine::TransferOptions options;
      options.done = [&] { ++outcomes; };
      options.quiet = [&] { ++quiets; };
      auto transfer = scene.pair->reader().submit(std::vector{scene.record(op, 0, 0, kSize)}, std::move(options));
      REQUIRE(transfer);
      (*transfer)->cancel();
      CHECK((*transfer)->done());
      REQUIRE(scene.pair->run_until([&] { return (*transfer)->quiet(); }));
      CHECK(outcomes == 1);
      CHECK(quiets == 1);
      const Code result = (*transfer)->results()[0];
      CHECK((result == Code::kCanceled || result == Code::kOk));
      std::ranges::fill(target, std::byte{9});
      scene.pair->run_for(10 * kSecond);
      CHECK(std::ranges::all_of(target, [](std::byte b) { return b == std::byte{9}; }));
      (*transfer)->cancel();
      CHECK((*transfer)->results()[0] == result);
      CHECK(outcomes == 1);
      // the link goes on
      CHECK(scene.run({scene.record(kRead, 0, 0, 4096)})->results()[0] == Code::kOk);
    }
  });
}

TEST_CASE("contract: the owner's end ends every transfer, with a cause, and the memory comes back") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    if (scene.pair->one_engine()) return;
    auto read = scene.pair->reader().submit(std::vector{scene.record(kRead, 0, 0, kSize)}, {});
    auto write = scene.pair->reader().submit(std::vector{scene.record(kWrite, 0, 0, kSize)}, {});
    scene.pair->kill_owner();
    REQUIRE(scene.pair->run_until([&] { return (*read)->quiet() && (*write)->quiet(); }));
    for (auto& transfer : {*read, *write}) {
      const Code result = transfer->results()[0];
      CAPTURE(code_name(result));
      CHECK((result == Code::kOk || result == Code::kPeerLost || result == Code::kTimedOut ||
             result == Code::kUnavailable));
    }
    REQUIRE(scene.pair->run_until([&] { return !scene.link->open(); }));
    CHECK(scene.run({scene.record(kRead, 0, 0, 16)})->results()[0] == Code::kPeerLost);
    CHECK(scene.pair->reader().hostages() == 0);
    bool back = false;
    REQUIRE(scene.pair->reader().remove_region(scene.ours->id, [&] { back = true; }));
    CHECK(back);
  });
}

TEST_CASE("contract: offsets beyond 2^32 on both sides, and a copy across the boundary") {
  for_each([](const MakePair& make) {
    constexpr uint64_t kHuge = (uint64_t{4} << 30) + (1u << 20), kBoundary = uint64_t{4} << 30, kPart = 70'000;
    Scene scene(make, kHuge);  // sparse: only what is touched takes memory
    Bytes bytes = pattern(kPart, 33);
    for (uint64_t remote : {kBoundary - kPart / 2, kHuge - kPart, uint64_t{11}}) {
      for (uint64_t local : {kHuge - kPart, kBoundary - 5}) {
        for (uint32_t op : {kRead, kWrite}) {
          CAPTURE(remote);
          CAPTURE(local);
          CAPTURE(op);
          MutableBytes theirs = scene.theirs->bytes().subspan(remote, kPart);
          MutableBytes ours = scene.ours->bytes().subspan(local, kPart);
          std::ranges::copy(bytes, (op == kRead ? theirs : ours).begin());
          std::ranges::fill(op == kRead ? ours : theirs, std::byte{0});
          auto transfer = scene.run({scene.record(op, local, remote, kPart)});
          CHECK_MESSAGE(transfer->results()[0] == Code::kOk, transfer->error().text());
          CHECK(std::ranges::equal(ours, bytes));
          CHECK(std::ranges::equal(theirs, bytes));
          CHECK(transfer->bytes() == kPart);
        }
      }
    }
    auto over = scene.run({scene.record(kRead, 0, kHuge - 1, 2), scene.record(kRead, 0, 0, kHuge + 1)});
    CHECK(over->results() == std::vector{Code::kDenied, Code::kDenied});
  });
}

TEST_CASE("contract: many transfers at a time in both directions, all exact") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    constexpr size_t kPart = 96u << 10, kParts = 32;
    Bytes bytes = pattern(kSize, 21);
    std::ranges::copy(ByteView(bytes).first(kSize / 2), scene.theirs->bytes().begin());
    std::ranges::copy(ByteView(bytes).subspan(kSize / 2), scene.ours->bytes().subspan(kSize / 2).begin());
    std::vector<TransferRef> transfers;
    for (size_t i = 0; i < kParts / 2; ++i) {  // their lower half to ours, our upper half to theirs
      transfers.push_back(
          *scene.pair->reader().submit(std::vector{scene.record(kRead, i * kPart, i * kPart, kPart)}, {}));
      const uint64_t at = kSize / 2 + i * kPart;
      transfers.push_back(*scene.pair->reader().submit(std::vector{scene.record(kWrite, at, at, kPart)}, {}));
    }
    REQUIRE(scene.pair->run_until([&] { return std::ranges::all_of(transfers, [](auto& t) { return t->quiet(); }); }));
    for (auto& transfer : transfers) CHECK_MESSAGE(transfer->results()[0] == Code::kOk, transfer->error().text());
    CHECK(std::ranges::equal(scene.ours->bytes(), bytes));
    CHECK(std::ranges::equal(scene.theirs->bytes(), bytes));
  });
}

TEST_CASE("contract: the far end is in use while somebody copies into it: within one engine, and by leave") {
  for_each([](const MakePair& make) {
    Scene scene(make);
    if (!scene.pair->one_engine() && !scene.pair->leaves()) return;
    for (uint32_t op : {kRead, kWrite}) {
      if (op == kRead && !scene.pair->one_engine()) continue;  // harms nobody but the reader, who hears of it
      auto theirs = scene.pair->allocate(scene.pair->owner(), 4096, kReadable | kWritable, "another");
      const uint64_t handle = scene.pair->handle(scene.link, theirs);
      engine::TransferOptions options;
      options.caller_copies = true;
      auto transfer = scene.pair->reader().submit(
          std::vector<Record>{{op, 0, reinterpret_cast<uint64_t>(scene.ours->address), handle, 0, 4096}},
          std::move(options));
      REQUIRE(transfer);
      auto work = (*transfer)->take_work();
      REQUIRE(work);
      bool quiet = false;
      REQUIRE(scene.pair->owner().remove_region(theirs->id, [&] { quiet = true; }));
      scene.pair->run_for(20 * kMillisecond);
      CHECK_FALSE(quiet);
      (*transfer)->finish_work(*work, work->run());
      work.reset();
      CHECK(scene.pair->run_until([&] { return quiet; }));
      CHECK((*transfer)->results()[0] == Code::kStale);
    }
  });
}

TEST_CASE("contract: whoever hears that memory is handed back finds no leave for it any more") {
  for_each([](const MakePair& make) {
    auto pair = make();
    if (!pair->leaves()) return;
    auto region = pair->allocate(pair->owner(), 4096, kReadable | kWritable, "lent");
    auto link = pair->open();
    REQUIRE(pair->run_until([&] { return link->region(region->id) != nullptr; }));
    CHECK(pair->owner().leaves().regions() == std::vector<uint32_t>{region->id});
    std::optional<size_t> lent;
    REQUIRE(pair->owner().remove_region(region->id, [&] { lent = pair->owner().leaves().regions().size(); }));
    REQUIRE(pair->run_until([&] { return lent.has_value(); }));
    CHECK(*lent == 0);
    CHECK(pair->owner().leaves().hostages() == 0);
  });
}

}  // namespace
}  // namespace moontide::contract
