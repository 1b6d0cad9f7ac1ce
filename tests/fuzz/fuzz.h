// What the fuzz targets share: reading decisions out of the input, failing loudly, and seeds. A target is one file
// fuzz_NAME.cpp with LLVMFuzzerTestOneInput and seeds(); `fuzz_NAME --write-seeds FOLDER` writes its first corpus.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/bytes.h"

namespace moontide::fuzz {

// Inputs that a target starts from: small and valid, so that mutations get past the first checks.
std::vector<Bytes> seeds();

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// Takes values off the front of the input; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

  template <class T>
  T take() {
    T value{};
    ByteView raw = bytes(sizeof value);
    if (!raw.empty()) std::memcpy(&value, raw.data(), raw.size());
    return value;
  }
  uint8_t u8() { return take<uint8_t>(); }
  uint16_t u16() { return take<uint16_t>(); }
  uint64_t u64() { return take<uint64_t>(); }
  // At most `count` bytes, fewer at the end.
  ByteView bytes(size_t count) {
    ByteView taken = left_.first(std::min(count, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  ByteView rest() { return bytes(left_.size()); }
  bool empty() const { return left_.empty(); }

 private:
  ByteView left_;
};

// Builds seeds: the same values that Input takes.
class Output {
 public:
  template <class T>
  Output& add(T value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof value);
    return *this;
  }
  Output& u8(uint8_t value) { return add(value); }
  Output& u16(uint16_t value) { return add(value); }
  Output& bytes(ByteView more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
    return *this;
  }
  Bytes take() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

}  // namespace moontide::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
