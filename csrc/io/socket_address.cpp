#include "io/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <charconv>
#include <cstddef>
#include <cstring>

namespace moontide::io {
namespace {

constexpr std::string_view kUnixPrefix = "unix:@";

Result<SocketAddress> parse_unix(std::string_view text) {
  const std::string_view name = text.substr(kUnixPrefix.size());
  SocketAddress address;
  auto& raw = reinterpret_cast<sockaddr_un&>(address.storage);
  if (name.empty() || name.size() > sizeof raw.sun_path - 1) {
    return fail(Code::kInvalid, "address '" + std::string(text) + "': the name must have 1 to " +
                                    std::to_string(sizeof raw.sun_path - 1) + " bytes");
  }
  raw.sun_family = AF_UNIX;
  std::memcpy(raw.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

Result<uint16_t> parse_port(std::string_view text, const std::string& whole) {
  uint32_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || port > 65535) {
    return fail(Code::kInvalid, "address '" + whole + "': the port must be a number from 0 to 65535");
  }
  return static_cast<uint16_t>(port);
}

bool is_loopback(const in6_addr& address) {
  if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&address);
}

}  // namespace

Result<SocketAddress> parse_socket_address(const std::string& text) {
  if (text.starts_with(kUnixPrefix)) return parse_unix(text);
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || text.find('\0') != std::string::npos) {
    return fail(Code::kInvalid, "address '" + text + "' is neither HOST:PORT nor unix:@NAME");
  }
  std::string host = text.substr(0, colon);
  TRY(const uint16_t port, parse_port(std::string_view(text).substr(colon + 1), text));
  if (host == "localhost") host = "127.0.0.1";
  SocketAddress address;
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    auto& raw = reinterpret_cast<sockaddr_in6&>(address.storage);
    raw.sin6_family = AF_INET6;
    raw.sin6_port = htons(port);
    address.size = sizeof raw;
    if (inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &raw.sin6_addr) != 1) {
      return fail(Code::kInvalid, "address '" + text + "': not an IPv6 address");
    }
    address.loopback = is_loopback(raw.sin6_addr);
  } else {
    auto& raw = reinterpret_cast<sockaddr_in&>(address.storage);
    raw.sin_family = AF_INET;
    raw.sin_port = htons(port);
    address.size = sizeof raw;
    if (inet_pton(AF_INET, host.c_str(), &raw.sin_addr) != 1) {
      return fail(Code::kInvalid, "address '" + text + "': '" + host +
                                      "' is neither a numeric address nor localhost; resolve the name first");
    }
    address.loopback = (ntohl(raw.sin_addr.s_addr) >> 24) == 127;
  }
  return address;
}

void SocketAddress::drop_port() {
  if (storage.ss_family == AF_INET) reinterpret_cast<sockaddr_in*>(&storage)->sin_port = 0;
  if (storage.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = 0;
}

std::string SocketAddress::text() const {
  char buffer[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(storage);
    inet_ntop(AF_INET, &in.sin_addr, buffer, sizeof buffer);
    return std::string(buffer) + ":" + std::to_string(ntohs(in.sin_port));
  }
  if (storage.ss_family == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(storage);
    inet_ntop(AF_INET6, &in.sin6_addr, buffer, sizeof buffer);
    return "[" + std::string(buffer) + "]:" + std::to_string(ntohs(in.sin6_port));
  }
  const auto& un = reinterpret_cast<const sockaddr_un&>(storage);
  const size_t head = offsetof(sockaddr_un, sun_path) + 1;
  if (size <= head) return "unix:@";
  return std::string(kUnixPrefix) + std::string(un.sun_path + 1, size - head);
}

}  // namespace moontide::io
