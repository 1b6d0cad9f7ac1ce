// SHA-256 and HMAC against the published vectors (FIPS 180-4 examples, RFC 4231).
#include <doctest/doctest.h>

#include "base/random.h"
#include "base/sha256.h"

namespace moontide {
namespace {

std::string hex(ByteView bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text;
}

TEST_CASE("sha256: published vectors") {
  CHECK(hex(sha256({})) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256(as_bytes("abc"))) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(as_bytes(std::string(1000000, 'a')))) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256: in pieces of any size it is the same") {
  Bytes bytes(300);
  SeededRandom random(7);
  random.fill(bytes);
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const ByteView whole = ByteView(bytes).first(size);
    const size_t cut = static_cast<size_t>(random.below(size + 1));
    Sha256 hash;
    hash.update(whole.first(cut));
    hash.update(whole.subspan(cut));
    CHECK(hash.finish() == sha256(whole));
  }
}

TEST_CASE("hmac: published vectors") {
  CHECK(hex(hmac_sha256(Bytes(20, std::byte{0x0b}), as_bytes("Hi There"))) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256(as_bytes("Jefe"), as_bytes("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(Bytes(131, std::byte{0xaa}),
                        as_bytes("Test Using Larger Than Block-Size Key - Hash Key First"))) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("comparing in constant time compares") {
  CHECK(equal_in_constant_time(as_bytes("abc"), as_bytes("abc")));
  CHECK_FALSE(equal_in_constant_time(as_bytes("abc"), as_bytes("abd")));
  CHECK_FALSE(equal_in_constant_time(as_bytes("bbc"), as_bytes("abc")));
  CHECK_FALSE(equal_in_constant_time(as_bytes("abc"), as_bytes("ab")));
  CHECK(equal_in_constant_time({}, {}));
}

}  // namespace
}  // namespace moontide
