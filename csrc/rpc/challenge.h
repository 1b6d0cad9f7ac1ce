// The arithmetic of the challenge: proofs that both ends of a connection have the same secret.
//
// A proof is an HMAC-SHA256 over the role of the one who proves, everything both sides said before (both nonces, the
// purpose, the protocol versions) and the identity of the encrypted channel, if there is one. So it fits one
// connection, one direction and one purpose: recorded it is worthless, sent back it is not the answer.
#pragma once

#include <string_view>

#include "base/sha256.h"
#include "base/status.h"

namespace moontide::rpc {

enum class ChallengeRole : uint8_t { kConnector = 1, kAcceptor = 2 };

class ClusterSecret {
 public:
  static constexpr size_t kBytesMin = 16;

  // INVALID: too short.
  static Result<ClusterSecret> create(ByteView secret);

  // `hello` and `reply`: the two messages as they were sent. `binding`: Stream::binding() of this end.
  Sha256Digest prove(ChallengeRole role, ByteView hello, ByteView reply, ByteView binding) const;
  bool accepts(ByteView proof, ChallengeRole role, ByteView hello, ByteView reply, ByteView binding) const;

 private:
  explicit ClusterSecret(const Sha256Digest& key) : key_(key) {}
  Sha256Digest key_;  // derived, so that the same secret used elsewhere makes other proofs
};

}  // namespace moontide::rpc
