// Text addresses to the kernel's and back. Numeric only: resolving a name blocks.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/status.h"

namespace moontide::io {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  bool loopback = false;  // this host only (for what parse_socket_address made)

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  bool local() const { return storage.ss_family == AF_UNIX; }
  void drop_port();
  // "127.0.0.1:7700", "[::1]:7700", "unix:@name"
  std::string text() const;
};

// INVALID when malformed.
Result<SocketAddress> parse_socket_address(const std::string& text);

}  // namespace moontide::io
