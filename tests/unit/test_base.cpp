#include <doctest/doctest.h>

#include "base/crc32c.h"
#include "base/hash.h"
#include "base/id.h"
#include "base/random.h"
#include "base/status.h"

namespace moontide {
namespace {

TEST_CASE("crc32c: the published vectors, and both forms agree at every length and alignment") {
  CHECK(crc32c(as_bytes("")) == 0);
  CHECK(crc32c(as_bytes("123456789")) == 0xe3069283);
  CHECK(crc32c(Bytes(32)) == 0x8a9136aa);                   // RFC 3720
  CHECK(crc32c(Bytes(32, std::byte{0xff})) == 0x62a8ab43);  // RFC 3720
  Bytes bytes(70'000);
  SeededRandom(1).fill(bytes);
  for (size_t length : {1u, 7u, 8u, 63u, 4095u, 4096u, 12'287u, 12'288u, 12'289u, 50'000u}) {
    for (size_t start = 0; start < 9; ++start) {
      const ByteView view = ByteView(bytes).subspan(start, length);
      CHECK(crc32c(view) == crc32c_portable(view));
    }
  }
}

TEST_CASE("crc32c: continued over any split") {
  Bytes bytes(40'000);
  SeededRandom(2).fill(bytes);
  const uint32_t whole = crc32c(bytes);
  SeededRandom random(3);
  for (int turn = 0; turn < 50; ++turn) {
    const size_t cut = random.below(bytes.size() + 1);
    CHECK(crc32c(ByteView(bytes).subspan(cut), crc32c(ByteView(bytes).first(cut))) == whole);
  }
}

TEST_CASE("ranges: exact for every 64-bit value") {
  CHECK(range_inside(0, 0, 0));
  CHECK(range_inside(5, 5, 10));
  CHECK_FALSE(range_inside(5, 6, 10));
  CHECK_FALSE(range_inside(11, 0, 10));
  CHECK_FALSE(range_inside(UINT64_MAX, 2, 10));
  CHECK_FALSE(range_inside(2, UINT64_MAX, 10));
  CHECK_FALSE(range_inside(8, UINT64_MAX - 7, 10));
  CHECK(range_inside(UINT64_MAX - 1, 1, UINT64_MAX));
  CHECK(range_valid(UINT64_MAX - 1, 1));
  CHECK_FALSE(range_valid(UINT64_MAX, 1));
}

TEST_CASE("hash64: stable across builds, and every byte counts") {
  CHECK(hash64(as_bytes("moontide")) == hash64(as_bytes("moontide")));
  CHECK(hash64(as_bytes("")) != hash64(as_bytes(std::string_view("\0", 1))));
  Bytes bytes(33);
  const uint64_t zero = hash64(bytes);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte{1};
    CHECK(hash64(bytes) != zero);
    bytes[i] = std::byte{0};
  }
}

TEST_CASE("random: seeded is reproducible, below() stays below") {
  SeededRandom a(7), b(7), c(8);
  CHECK(a.next() == b.next());
  CHECK(a.next() != c.next());
  for (int i = 0; i < 1000; ++i) CHECK(a.below(10) < 10);
  SystemRandom system;
  CHECK(InstanceId::make(system) != InstanceId::make(system));
  CHECK(InstanceId{1, 2}.text() == "00000000000000010000000000000002");
}

TEST_CASE("errors: names and text") {
  CHECK(Error{Code::kTimedOut, "no progress"}.text() == "TIMED_OUT: no progress");
  CHECK(code_name(static_cast<Code>(999)) == "UNKNOWN");
  auto twice = [](Result<int> in) -> Result<int> {
    TRY(int value, std::move(in));
    return value * 2;
  };
  CHECK(*twice(21) == 42);
  CHECK(twice(fail(Code::kStale, "old")).error().code == Code::kStale);
}

}  // namespace
}  // namespace moontide
