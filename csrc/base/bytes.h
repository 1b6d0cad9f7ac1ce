// Views over raw memory, and the few helpers everyone needs. Views own nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moontide {

using ByteView = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;
using Bytes = std::vector<std::byte>;

inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(ByteView bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
inline Bytes to_bytes(ByteView view) { return {view.begin(), view.end()}; }

// True when [offset, offset + length) lies inside [0, size); exact for every 64-bit value.
inline bool range_inside(uint64_t offset, uint64_t length, uint64_t size) {
  return offset <= size && length <= size - offset;
}

// True when address + length does not wrap.
inline bool range_valid(uint64_t address, uint64_t length) { return length <= UINT64_MAX - address; }

}  // namespace moontide
