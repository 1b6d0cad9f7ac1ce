// The canary: a decoder with a mistake that every decoder here must not make. The run has to find it and see the crash;
// if it does not, the silence of the other targets means nothing.
#include "fuzz/fuzz.h"
#include "wire/frame.h"

namespace moontide::fuzz {

std::vector<Bytes> seeds() { return {Output().add(wire::FrameHeader{}).take()}; }

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moontide;
  wire::FrameHeader header;
  if (size < sizeof header) return 0;
  std::memcpy(&header, data, sizeof header);
  if (!header.check()) return 0;
  const std::vector<uint8_t> payload(data, data + size);
  uint64_t sum = 0;
  for (uint32_t i = 0; i < header.length; ++i) sum += payload.data()[i];  // trusts the length
  return sum == 1 ? -1 : 0;
}
