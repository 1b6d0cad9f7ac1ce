// Time is a parameter: nothing reads a clock but through this interface.
#pragma once

#include <cstdint>

namespace moontide {

inline constexpr int64_t kMicrosecond = 1'000;
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary start; never goes back; goes on while the machine sleeps (CLOCK_BOOTTIME).
  virtual int64_t now_ns() const = 0;
};

class BoottimeClock final : public Clock {
 public:
  int64_t now_ns() const override;
};

}  // namespace moontide
