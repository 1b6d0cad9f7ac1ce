// Every message of the wire: whatever decodes encodes to bytes that decode to the same, and nothing is read or
// allocated beyond the input.
#include "fuzz/fuzz.h"
#include "wire/challenge_messages.h"
#include "wire/engine_messages.h"
#include "wire/frame.h"
#include "wire/hot_messages.h"
#include "wire/store_messages.h"

namespace moontide::fuzz {
namespace {

using namespace wire;

template <class... T>
struct List {};
using Messages =
    List<Probe, ProbeReply, Hello, HelloReply, DataStreamHello, Regions, RegionGone, Ready, TransportMessage, Fence,
         Pull, PullCancel, Leave, Notify, Empty, HoldId, HoldClaimed, ClientHello, ClientWelcome, NodeHello,
         NodeWelcome, Inventory, InventoryEndReply, NodeOrder, Retired, PutStart, PutStartReply, PutEnd, PutRevoke,
         Codes, Keys, LocateReply, ListRequest, ListReply, PoolStatsReply, StorePull, StorePullReply, Resume, Resumed,
         ChallengeHello, ChallengeReply, ChallengeProof, Keep, Repaired, HotCachesReply, HotFacts, HotReads>;

template <class T>
void check(ByteView bytes) {
  auto message = decode<T>(bytes);
  auto prefix = decode_prefix<T>(bytes);
  require(!message || prefix, "what decodes whole decodes as a prefix");
  if (!prefix) return;
  const Bytes again = encode(*prefix);
  // fields that older senders do not know come out with their defaults, behind what came in
  const size_t shared = std::min(again.size(), bytes.size());
  require(std::equal(again.begin(), again.begin() + static_cast<ptrdiff_t>(shared), bytes.begin()),
          "a message is encoded as it was decoded");
  // empty lists that could have been left out
  const auto rest = bytes.subspan(shared);
  const bool empty = rest.size() % sizeof(uint32_t) == 0 && std::ranges::count(rest, std::byte{0}) == std::ssize(rest);
  require(!message || rest.empty() || empty, "decode takes every byte");
  auto once_more = decode<T>(again);
  require(once_more && encode(*once_more) == again, "what was encoded decodes to the same");
}

template <class... T>
void dispatch(List<T...>, uint8_t which, ByteView bytes) {
  uint8_t index = 0;
  ((index++ == which ? check<T>(bytes) : void()), ...);
}

template <class... T>
void add_empty(List<T...>, std::vector<Bytes>& all) {
  uint8_t index = 0;
  (all.push_back(Output().u8(index++).bytes(encode(T{})).take()), ...);
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  add_empty(Messages{}, all);
  Regions regions;
  regions.regions.push_back({1, 2, 4096, 3, 7, "kv", {{"cma", 0, {Bytes(8)}}, {"tcp", 2048, {Bytes(1), Bytes(1)}}}});
  all.push_back(Output().u8(5).bytes(encode(regions)).take());
  Pull pull{9, {{1, 2, 3, 4, 5, 6, 7}}};
  all.push_back(Output().u8(10).bytes(encode(pull)).take());
  StorePull put{{{"key", {1, 2}, 3, 4, {{5, 6, 7, 8}}, Bytes(3)}}};
  all.push_back(Output().u8(33).bytes(encode(put)).take());
  all.push_back(Output().u8(0xff).add(FrameHeader{}).take());
  return all;
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moontide;
  fuzz::Input input(data, size);
  const uint8_t which = input.u8();
  if (which == 0xff) {
    const auto header = input.take<wire::FrameHeader>();
    const bool fine = header.check().has_value();
    fuzz::require(!fine || (header.length <= wire::kFramePayloadMax && header.fd_count <= 8), "a header is bounded");
    return 0;
  }
  fuzz::dispatch(fuzz::Messages{}, which, input.rest());
  return 0;
}
