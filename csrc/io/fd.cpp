#include <unistd.h>

#include "io/network.h"

namespace moontide::io {

void Fd::reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

}  // namespace moontide::io
