// The 24-byte header before every control message. A receiver checks magic and length before it makes room.
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/status.h"

namespace moontide::wire {

inline constexpr uint32_t kFrameMagic = 0x314d544d;  // "MTM1"
inline constexpr uint32_t kTlsRecord = 0x0316;       // how a TLS connection begins
inline constexpr uint32_t kFramePayloadMax = 16u << 20;

enum class FrameKind : uint8_t { kRequest = 1, kReply = 2, kNotice = 3, kAck = 4 };

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint32_t length = 0;  // of the payload that follows
  FrameKind kind = FrameKind::kNotice;
  uint8_t fd_count = 0;  // descriptors that travel with this frame
  uint16_t type = 0;     // of the message; in a reply the Code, 0 for success (then the payload is the reply)
  uint32_t reserved = 0;
  uint64_t id = 0;  // pairs a reply with its request; in an ack how many messages have come

  // OK, or INVALID naming what is wrong.
  Result<> check() const {
    if ((magic & 0xffff) == kTlsRecord)
      return fail(Code::kInvalid, "the peer speaks TLS, which is not configured here");
    if (magic != kFrameMagic) return fail(Code::kInvalid, "not a Moontide frame (magic " + std::to_string(magic) + ")");
    if (length > kFramePayloadMax) {
      return fail(Code::kInvalid,
                  "frame of " + std::to_string(length) + " bytes, the limit is " + std::to_string(kFramePayloadMax));
    }
    if (kind < FrameKind::kRequest || kind > FrameKind::kAck) return fail(Code::kInvalid, "unknown frame kind");
    if (fd_count > 8) return fail(Code::kInvalid, "too many descriptors");
    return {};
  }
};
static_assert(sizeof(FrameHeader) == 24);

}  // namespace moontide::wire
