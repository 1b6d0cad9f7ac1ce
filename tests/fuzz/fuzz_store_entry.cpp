// What a node checks by itself: the header of an entry as it was read from memory, and the tickets of puts.
#include <set>

#include "base/crc32c.h"
#include "fuzz/fuzz.h"
#include "store/entry.h"
#include "store/ticket.h"

namespace moontide::fuzz {
namespace {

using store::EntryHeader;

void check_header(Input& input) {
  alignas(64) EntryHeader header;
  const auto given = input.take<EntryHeader>();
  const uint64_t length = input.u8() % 2 == 0 ? given.length : input.u64();
  const std::string key(as_text(input.bytes(input.u8() % 32)));
  const Generation generation = given.generation();
  header = given;
  if (store::header_matches(header, generation, key, length)) {
    EntryHeader own = store::make_header(generation, key, length, header.payload_crc);
    std::memcpy(own.reserved, header.reserved, sizeof own.reserved);  // a later version's
    own.header_crc = header.header_crc;
    require(std::memcmp(&own, &header, sizeof own) == 0, "a header that matches is one that was made");
  }
  const EntryHeader made = store::make_header(generation, key, length, given.payload_crc);
  require(store::header_matches(made, generation, key, length), "a header that was made matches");
  alignas(64) std::byte place[sizeof(EntryHeader)];
  std::memset(place, 0xff, sizeof place);
  store::write_header(place, made);
  EntryHeader torn;
  std::memcpy(&torn, place, sizeof torn);
  require(std::memcmp(&torn, &made, sizeof made) == 0, "a header is written as it was made");
  const uint16_t bit = input.u16() % (sizeof torn * 8);
  reinterpret_cast<uint8_t*>(&torn)[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  require(!store::header_matches(torn, generation, key, length), "one flipped bit is noticed");
  store::clear_header(place);
  std::memcpy(&torn, place, sizeof torn);
  require(torn.sequence == 0 && !store::header_matches(torn, generation, key, length), "a cleared header is none");
}

void check_tickets(Input& input) {
  constexpr size_t kRefusedMax = 8;
  const SipKey secret = input.take<SipKey>();
  store::TicketGate gate(secret, kRefusedMax);
  std::set<Generation> ended;
  Generation floor;
  for (int step = 0; step < 100 && !input.empty(); ++step) {
    const uint8_t op = input.u8();
    const Generation generation{gate.term() + (op / 4) % 2, input.u8() % 64u};
    switch (op % 4) {
      case 0:
        gate.enter_term(op / 4u);
        ended.clear();
        floor = {gate.term(), 0};
        break;
      case 1:
        gate.refuse(generation);
        ended.insert(generation);
        break;
      case 2:
        gate.raise_floor(generation);
        floor = std::max(floor, generation);
        break;
      default: {
        const uint64_t length = input.u64();
        const uint64_t tag = store::ticket_tag(secret, generation, "key", length);
        require(gate.authentic(generation, "key", length, tag).has_value(), "the master's ticket is good");
        require(!gate.authentic(generation, "key", length, tag ^ (1ull << op % 64)), "another one is not");
        require(!gate.authentic(generation, "kex", length, tag), "nor is it good for another key");
      }
    }
    if (ended.contains(generation) || generation < floor || generation.term != gate.term()) {
      require(!gate.open(generation), "a put that ended stays ended");
    }
    require(gate.remembered() <= kRefusedMax, "what is remembered is bounded");
  }
}

}  // namespace

std::vector<Bytes> seeds() {
  const EntryHeader header = store::make_header({3, 17}, "key", 4096, 5);
  Output tickets;
  tickets.u8(1).add(SipKey{});
  for (uint8_t i = 0; i < 12; ++i) tickets.u8(i).u8(static_cast<uint8_t>(i * 3));
  return {Output().u8(0).add(header).u8(0).u8(3).bytes(as_bytes("key")).u16(77).take(), tickets.take()};
}

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  moontide::fuzz::Input input(data, size);
  if (input.u8() % 2 == 0) {
    moontide::fuzz::check_header(input);
  } else {
    moontide::fuzz::check_tickets(input);
  }
  return 0;
}
