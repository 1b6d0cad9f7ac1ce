// An entry as it lies in a node's segment: this header, then the payload, both on 64 bytes.
//
// The generation word is written last and cleared first: a reader that finds the generation it was told, a header that
// matches its checksum, and a payload that matches the checksum in it, has the bytes of that put.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "base/id.h"
#include "catalog/types.h"

namespace moontide::store {

inline constexpr uint32_t kEntryMagic = 0x3145544d;  // "MTE1"

struct EntryHeader {
  uint64_t sequence = 0;  // of the generation; 0 is never given out: no entry here
  uint32_t term = 0;
  uint32_t magic = kEntryMagic;
  uint64_t key_hash = 0;
  uint64_t length = 0;
  uint32_t payload_crc = 0;
  uint32_t reserved[6] = {};
  uint32_t header_crc = 0;  // of all bytes before it

  Generation generation() const { return {term, sequence}; }
};
static_assert(sizeof(EntryHeader) == catalog::kEntryHeaderBytes);

EntryHeader make_header(Generation generation, std::string_view key, uint64_t length, uint32_t payload_crc);

// What must hold of a header that was read, for the entry that was located.
bool header_matches(const EntryHeader& header, Generation generation, std::string_view key, uint64_t length);

// Writes the header at `at` (64-byte aligned), the generation word last.
void write_header(std::byte* at, const EntryHeader& header);
// Clears the generation word first, then the rest.
void clear_header(std::byte* at);

}  // namespace moontide::store
