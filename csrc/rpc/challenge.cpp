#include "rpc/challenge.h"

namespace moontide::rpc {
namespace {

void append(Bytes& message, ByteView part) {
  const uint64_t size = part.size();
  const ByteView head = std::as_bytes(std::span(&size, 1));
  message.insert(message.end(), head.begin(), head.end());
  message.insert(message.end(), part.begin(), part.end());
}

}  // namespace

Result<ClusterSecret> ClusterSecret::create(ByteView secret) {
  if (secret.size() < kBytesMin) {
    return fail(Code::kInvalid, "the cluster secret has " + std::to_string(secret.size()) + " bytes; at least " +
                                    std::to_string(kBytesMin) + " are needed");
  }
  return ClusterSecret(hmac_sha256(as_bytes("moontide cluster secret 1"), secret));
}

Sha256Digest ClusterSecret::prove(ChallengeRole role, ByteView hello, ByteView reply, ByteView binding) const {
  Bytes message;
  append(message, as_bytes(role == ChallengeRole::kConnector ? "connector" : "acceptor"));
  append(message, hello);
  append(message, reply);
  append(message, binding);
  return hmac_sha256(key_, message);
}

bool ClusterSecret::accepts(ByteView proof, ChallengeRole role, ByteView hello, ByteView reply,
                            ByteView binding) const {
  return equal_in_constant_time(proof, prove(role, hello, reply, binding));
}

}  // namespace moontide::rpc
