// How two processes prove to each other that both have the cluster secret, before anything else is said on a
// connection. The secret itself is never sent; see docs/design/security.md.
//
//   connector → acceptor   ChallengeHello   its nonce, what the connection is for
//   acceptor → connector   ChallengeReply   its nonce
//   connector → acceptor   ChallengeProof   first, so that a stranger who connects gets nothing to try secrets on
//   acceptor → connector   ChallengeProof
#pragma once

#include <string>
#include <tuple>

#include "wire/codec.h"
#include "wire/engine_messages.h"

namespace moontide::wire {

enum ChallengeMessage : uint16_t {
  kChallengeHello = 0xf000,
  kChallengeProof = 0xf001,
};

// What a port without a secret answers to a hello.
inline constexpr char kNoSecretHere[] = "no cluster secret is configured here (secret_file), and the peer has one";

inline constexpr size_t kChallengeNonceBytes = 32;
inline constexpr size_t kChallengePayloadMax = 1024;

struct ChallengeHello {
  ProtocolRange protocol;
  std::string purpose;
  Bytes nonce;
  auto fields() { return std::tie(protocol, purpose, nonce); }
};

struct ChallengeReply {
  uint16_t protocol = 0;
  Bytes nonce;
  auto fields() { return std::tie(protocol, nonce); }
};

struct ChallengeProof {
  Bytes proof;
  auto fields() { return std::tie(proof); }
};

}  // namespace moontide::wire
