// Operating errors are values: Code says what kind, Error adds one sentence for a person.
// Programmer errors abort through MT_CHECK with the operand values.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace moontide {

// The numbers travel on the wire and into Python: append only.
enum class Code : uint16_t {
  kOk = 0,
  kInvalid = 1,        // the caller's argument is wrong
  kNotFound = 2,       // no such key, peer, region, hold
  kAlreadyExists = 3,  // the key has a committed or unfinished object
  kStale = 4,          // a generation or term that is over
  kExpired = 5,        // a lease, hold or ticket that ran out
  kNoSpace = 6,        // the pool or a bounded table is full
  kTooLarge = 7,       // can never fit
  kDenied = 8,         // range, permission, tenant or address is not granted
  kUnavailable = 9,    // cannot be reached (connect refused, resolve failed, not there yet)
  kPeerLost = 10,      // the connection died while the request was under way
  kTimedOut = 11,      // no progress until the deadline
  kCanceled = 12,      // by the caller
  kCorrupt = 13,       // bytes arrived that fail their proof
  kIncompatible = 14,  // refused at the handshake; the message has both values
  kUnsupported = 15,   // no transport or library for it; the message says which is missing
  kOverloaded = 16,    // a bound was hit, try later
  kClosed = 17,        // the object was closed by its owner
  kInternal = 18,      // a bug
};

std::string_view code_name(Code code);

struct Error {
  Code code = Code::kInternal;
  std::string message;

  // "TIMED_OUT: no progress for 2000 ms"
  std::string text() const;
};

template <class T = void>
using Result = std::expected<T, Error>;

inline std::unexpected<Error> fail(Code code, std::string message) {
  return std::unexpected(Error{code, std::move(message)});
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& operands);

}  // namespace moontide

#define MT_CONCAT_INNER(a, b) a##b
#define MT_CONCAT(a, b) MT_CONCAT_INNER(a, b)

// TRY(value, expression): binds the value of a Result or returns its error from the enclosing function.
#define TRY(declaration, expression) TRY_IMPL(MT_CONCAT(try_result_, __LINE__), declaration, expression)
#define TRY_IMPL(name, declaration, expression)               \
  auto name = (expression);                                   \
  if (!name) return std::unexpected(std::move(name).error()); \
  declaration = std::move(*name)

// TRY_VOID(expression): the same for Result<void>.
#define TRY_VOID(expression)                                      \
  do {                                                            \
    if (auto try_void_result = (expression); !try_void_result)    \
      return std::unexpected(std::move(try_void_result).error()); \
  } while (0)

#define MT_CHECK(condition, operands)                                                     \
  do {                                                                                    \
    if (!(condition)) ::moontide::check_failed(__FILE__, __LINE__, #condition, operands); \
  } while (0)
