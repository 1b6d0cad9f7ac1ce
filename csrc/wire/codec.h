// Messages as bytes: fixed little-endian, bounded, no allocation before a length is checked against what is there.
// A message is a struct with `auto fields() { return std::tie(a, b, c); }`; integers, enums, bool, std::string, Bytes,
// std::vector, std::optional and nested messages are fields. Trailing bytes of a newer sender are ignored only where
// the receiver says so (decode_prefix), otherwise they are an error.
#pragma once

#include <bit>
#include <concepts>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace moontide::wire {

static_assert(std::endian::native == std::endian::little, "big-endian machines need byte swaps in this file");

template <class T>
concept Scalar = std::integral<T> || std::is_enum_v<T>;

template <class T>
concept Message = requires(T& value) { value.fields(); };

// A field that a later version put at the end of a message that decode_prefix() reads: senders of before do not have
// it, and `value` is then the default. An empty one is not written, unless another field comes behind it, so that
// receivers of before can read the rest.
template <class T>
struct Later {
  T value{};
  Later() = default;
  Later(T given) : value(std::move(given)) {}
  operator const T&() const { return value; }
};

class Writer {
 public:
  template <Scalar T>
  void put(T value) {
    const auto* raw = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), raw, raw + sizeof value);
  }
  void put(const std::string& text) { put_blob(as_bytes(text)); }
  void put(const Bytes& bytes) { put_blob(bytes); }
  template <class T>
  void put(const std::vector<T>& items) {
    put(static_cast<uint32_t>(items.size()));
    for (const T& item : items) put(item);
  }
  template <class T>
  void put(const std::optional<T>& item) {
    put(static_cast<uint8_t>(item.has_value()));
    if (item) put(*item);
  }
  template <class T>
  void put(const Later<T>& field) {
    put(field.value);
  }
  template <Message T>
  void put(const T& message) {
    auto put_fields = [this](auto&... field) {
      size_t last = 0, at = 0;
      ((++at, last = left_out(field) ? last : at), ...);
      at = 0;
      ((++at <= last ? put(field) : void()), ...);
    };
    // fields() is one non-const function for both directions; writing does not change the message
    std::apply(put_fields, const_cast<T&>(message).fields());
  }
  void put_blob(ByteView bytes) {
    put(static_cast<uint32_t>(bytes.size()));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void reserve(size_t size) { out_.reserve(size); }
  Bytes take() { return std::move(out_); }

 private:
  template <class T>
  static bool left_out(const T&) {
    return false;
  }
  template <class T>
  static bool left_out(const Later<T>& field) {
    if constexpr (requires { field.value.empty(); }) return field.value.empty();
    return false;
  }

  Bytes out_;
};

class Reader {
 public:
  explicit Reader(ByteView in) : in_(in) {}

  template <Scalar T>
  bool get(T& value) {
    if (in_.size() < sizeof value) return false;
    if constexpr (std::same_as<T, bool>) {
      auto raw = std::to_integer<uint8_t>(in_[0]);
      if (raw > 1) return false;
      value = raw == 1;
    } else {
      std::memcpy(&value, in_.data(), sizeof value);
    }
    in_ = in_.subspan(sizeof value);
    return true;
  }
  bool get(std::string& text) {
    ByteView blob;
    if (!get_blob(blob)) return false;
    text.assign(as_text(blob));
    return true;
  }
  bool get(Bytes& bytes) {
    ByteView blob;
    if (!get_blob(blob)) return false;
    bytes.assign(blob.begin(), blob.end());
    return true;
  }
  template <class T>
  bool get(std::vector<T>& items) {
    uint32_t count;
    // every element takes at least one byte, so a count beyond the bytes that are left is refused before allocating
    if (!get(count) || count > in_.size()) return false;
    items.clear();
    items.reserve(std::min<size_t>(count, in_.size() / sizeof(T) + 16));
    for (uint32_t i = 0; i < count; ++i) {
      if (!get(items.emplace_back())) return false;
    }
    return true;
  }
  template <class T>
  bool get(std::optional<T>& item) {
    bool present;
    if (!get(present)) return false;
    item.reset();
    return !present || get(item.emplace());
  }
  template <class T>
  bool get(Later<T>& field) {
    field.value = {};
    return left() == 0 || get(field.value);
  }
  template <Message T>
  bool get(T& message) {
    return std::apply([this](auto&... field) { return (get(field) && ...); }, message.fields());
  }
  bool get_blob(ByteView& blob) {
    uint32_t size;
    if (!get(size) || size > in_.size()) return false;
    blob = in_.first(size);
    in_ = in_.subspan(size);
    return true;
  }
  size_t left() const { return in_.size(); }

 private:
  ByteView in_;
};

template <Message T>
Bytes encode(const T& message) {
  Writer writer;
  writer.put(message);
  return writer.take();
}

// INVALID when the bytes are too short, malformed or too long.
template <Message T>
Result<T> decode(ByteView bytes) {
  Reader reader(bytes);
  T message{};
  if (!reader.get(message)) return fail(Code::kInvalid, "malformed message");
  if (reader.left() != 0) return fail(Code::kInvalid, std::to_string(reader.left()) + " bytes too many in message");
  return message;
}

// As decode, but bytes behind the known fields are ignored: for handshakes, which newer versions extend at the end.
template <Message T>
Result<T> decode_prefix(ByteView bytes) {
  Reader reader(bytes);
  T message{};
  if (!reader.get(message)) return fail(Code::kInvalid, "malformed message");
  return message;
}

}  // namespace moontide::wire
