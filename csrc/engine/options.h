// What an engine can be told. Parsed and checked by whoever makes the engine; here they are values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "wire/engine_messages.h"

namespace moontide::engine {

inline constexpr size_t kRegionNameMax = 256;  // bytes

// Which peer-free reads are used between processes of one host.
enum class LocalReads : uint8_t { kAuto, kShm, kCma, kOff };

struct EngineOptions {
  std::string listen = "127.0.0.1:0";
  std::vector<std::string> rails;  // addresses to listen on as well, one per network device; same order everywhere
  // What peers are told instead of the address listened on; port 0: the one listened on. Empty: that address itself.
  std::string advertise;
  int64_t progress_timeout_ns = 2 * kSecond;  // a transfer without any progress for so long has failed
  int64_t connect_timeout_ns = 2 * kSecond;
  int64_t keepalive_ns = 10 * kSecond;  // a silent peer on another host is asked for a sign of life; 0: never
  LocalReads local_reads = LocalReads::kAuto;
  uint32_t tcp_streams = 1;
  uint64_t inline_bytes = 1u << 20;  // peer-free copies up to this size run in the submitting thread
  uint32_t links_max = 4096;
  uint32_t holds_max = 65536;
  uint32_t transfers_max = 65536;
  wire::ProtocolRange protocol = {};  // offered and accepted in handshakes
  std::string boot_id;                // equal for engines on one host; empty: read from the system
};

}  // namespace moontide::engine
