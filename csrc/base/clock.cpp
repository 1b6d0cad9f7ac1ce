#include "base/clock.h"

#include <ctime>

namespace moontide {

int64_t BoottimeClock::now_ns() const {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

}  // namespace moontide
