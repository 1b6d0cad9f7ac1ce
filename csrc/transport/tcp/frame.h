// What travels on a tcp data stream: a header, `count` descriptors of places in the receiver's regions, then payload.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace moontide::transport::tcp {

inline constexpr uint32_t kMagic = 0x4454544d;  // "MTTD"
inline constexpr size_t kPiecesMax = 256;
inline constexpr uint64_t kPayloadMax = 4u << 20;

enum class Kind : uint8_t {
  kWrite = 1,      // descriptors and payload: put it there
  kWriteDone = 2,  // code: all of it is there, or why none of it counts
  kRead = 3,       // descriptors: send what is there
  kReadData = 4,   // code 0: payload of the descriptors in their order; else no payload
};

struct Header {
  uint32_t magic = kMagic;
  Kind kind = Kind::kWrite;
  uint8_t reserved = 0;
  uint16_t count = 0;
  uint32_t code = 0;
  uint32_t reserved2 = 0;
  uint64_t length = 0;  // of the payload
  uint64_t tag = 0;     // pairs an answer with its request

  Result<> check() const {
    if (magic != kMagic) return fail(Code::kInvalid, "not a data frame");
    if (kind < Kind::kWrite || kind > Kind::kReadData) return fail(Code::kInvalid, "unknown data frame");
    if (count > kPiecesMax) return fail(Code::kInvalid, std::to_string(count) + " pieces in a data frame");
    if (length > kPayloadMax) return fail(Code::kInvalid, std::to_string(length) + " bytes in a data frame");
    bool request = kind == Kind::kWrite || kind == Kind::kRead;
    if (request != (count > 0)) return fail(Code::kInvalid, "data frame with the wrong number of pieces");
    if ((kind == Kind::kWriteDone || kind == Kind::kRead) && length != 0)
      return fail(Code::kInvalid, "payload where none belongs");
    return {};
  }
};
static_assert(sizeof(Header) == 32);

struct Place {
  uint32_t region = 0;
  uint32_t reserved = 0;
  uint64_t generation = 0;
  uint64_t offset = 0;
  uint64_t length = 0;
};
static_assert(sizeof(Place) == 32);

}  // namespace moontide::transport::tcp
