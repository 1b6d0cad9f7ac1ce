#include "store/entry.h"

#include <atomic>

#include "base/crc32c.h"
#include "base/hash.h"

namespace moontide::store {
namespace {

uint32_t checksum(const EntryHeader& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(EntryHeader, header_crc)));
}

std::atomic_ref<uint64_t> generation_word(std::byte* at) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at));
}

constexpr size_t kWord = sizeof(uint64_t);

}  // namespace

EntryHeader make_header(Generation generation, std::string_view key, uint64_t length, uint32_t payload_crc) {
  EntryHeader header;
  header.sequence = generation.sequence;
  header.term = generation.term;
  header.key_hash = hash64(as_bytes(key));
  header.length = length;
  header.payload_crc = payload_crc;
  header.header_crc = checksum(header);
  return header;
}

bool header_matches(const EntryHeader& header, Generation generation, std::string_view key, uint64_t length) {
  return header.magic == kEntryMagic && header.generation() == generation && header.length == length &&
         header.key_hash == hash64(as_bytes(key)) && header.header_crc == checksum(header);
}

void write_header(std::byte* at, const EntryHeader& header) {
  static_assert(offsetof(EntryHeader, sequence) == 0);
  std::memcpy(at + kWord, reinterpret_cast<const std::byte*>(&header) + kWord, sizeof header - kWord);
  generation_word(at).store(header.sequence, std::memory_order_release);
}

void clear_header(std::byte* at) {
  generation_word(at).store(0, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memset(at + kWord, 0, sizeof(EntryHeader) - kWord);
}

}  // namespace moontide::store
