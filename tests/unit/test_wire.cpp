#include <doctest/doctest.h>

#include "base/random.h"
#include "wire/engine_messages.h"

namespace moontide::wire {
namespace {

struct Inner {
  std::string text;
  uint16_t number = 0;
  auto fields() { return std::tie(text, number); }
};

struct Everything {
  bool flag = false;
  int64_t number = 0;
  Bytes bytes;
  std::vector<Inner> inner;
  std::optional<uint32_t> maybe;
  Generation generation;
  auto fields() { return std::tie(flag, number, bytes, inner, maybe, generation); }
};

Everything sample() { return {true, -5, to_bytes(as_bytes("raw")), {{"a", 1}, {"", 65535}}, 7, {3, 17}}; }

TEST_CASE("wire: a message survives the wire, in bytes that never change") {
  const Bytes bytes = encode(sample());
  auto back = decode<Everything>(bytes);
  REQUIRE(back);
  CHECK(back->flag);
  CHECK(back->number == -5);
  CHECK(as_text(back->bytes) == "raw");
  CHECK(back->inner.size() == 2);
  CHECK(back->inner[1].number == 65535);
  CHECK(*back->maybe == 7);
  CHECK(back->generation == Generation{3, 17});
  CHECK(encode(*back) == bytes);
  // little-endian, a length before each string: what version 1 of the protocol is
  CHECK(encode(Inner{"ab", 0x0102}) == Bytes{std::byte{2}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{'a'},
                                             std::byte{'b'}, std::byte{2}, std::byte{1}});
}

TEST_CASE("wire: every truncation and every byte too many is refused") {
  const Bytes bytes = encode(sample());
  for (size_t length = 0; length < bytes.size(); ++length) {
    CHECK(decode<Everything>(ByteView(bytes).first(length)).error().code == Code::kInvalid);
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  CHECK_FALSE(decode<Everything>(longer));
  CHECK(decode_prefix<Everything>(longer));  // a newer peer's handshake
}

TEST_CASE("wire: random bytes never crash a decoder, and lengths allocate nothing that is not there") {
  SeededRandom random(1);
  for (int turn = 0; turn < 20'000; ++turn) {
    Bytes bytes(random.below(120));
    random.fill(bytes);
    if (bytes.size() >= 4 && turn % 2 == 0) {  // a plausible count in front
      const uint32_t count = turn % 4 == 0 ? UINT32_MAX : static_cast<uint32_t>(random.below(200));
      std::memcpy(bytes.data(), &count, 4);
    }
    (void)decode<Everything>(bytes);
    (void)decode<Regions>(bytes);
    (void)decode<Pull>(bytes);
    (void)decode_traced<Pull>(bytes, kProtocolTraced);
    (void)decode<Ready>(bytes);
    (void)decode<TransportMessage>(bytes);
    (void)decode<HoldClaimed>(bytes);
    (void)decode_prefix<Hello>(bytes);
    (void)decode_prefix<ProbeReply>(bytes);
  }
  Bytes huge(8, std::byte{0xff});
  CHECK_FALSE(decode<Regions>(huge));
}

TEST_CASE("wire: what a later version put at the end of a handshake may be missing, not cut") {
  Hello hello;
  hello.address = "127.0.0.1:1";
  hello.rails = std::vector<std::string>{"10.0.0.1:7", "10.0.1.1:7"};
  const Bytes now = encode(hello);
  auto whole = decode_prefix<Hello>(now);
  REQUIRE(whole);
  CHECK(whole->rails.value == hello.rails.value);
  const size_t rails = 4 + 2 * (4 + 10);
  const Bytes before(now.begin(), now.end() - static_cast<ptrdiff_t>(rails));
  auto older = decode_prefix<Hello>(before);
  REQUIRE(older);
  CHECK(older->address == "127.0.0.1:1");
  CHECK(older->rails.value.empty());
  for (size_t cut = 1; cut < rails; ++cut) {
    CHECK_FALSE(decode_prefix<Hello>(ByteView(now).first(now.size() - cut)));
  }
}

TEST_CASE("wire: a request with a name, for peers that know of it and for those of before") {
  const Pull pull{7, {{1, 2, 3, 4, 5, 6, 7}}};
  CHECK(encode_traced(pull, "name", 1) == encode(pull));
  auto older = decode_traced<Pull>(encode(pull), 1);
  REQUIRE(older);
  CHECK(older->trace.empty());
  CHECK(older->request.items[0].length == 7);
  auto newer = decode_traced<Pull>(encode_traced(pull, "name", 2), 2);
  REQUIRE(newer);
  CHECK(newer->trace == "name");
  CHECK(newer->request.id == 7);
  CHECK_FALSE(decode_traced<Pull>(encode(pull), 2));
  CHECK_FALSE(decode_traced<Pull>(encode_traced(pull, "name", 2), 1));
}

TEST_CASE("wire: a bool is 0 or 1") {
  Bytes bytes = encode(sample());
  bytes[0] = std::byte{2};
  CHECK_FALSE(decode<Everything>(bytes));
}

}  // namespace
}  // namespace moontide::wire
