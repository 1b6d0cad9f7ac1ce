#include "memory/probe.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace moontide::memory {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

const std::byte* first_missing(ByteView bytes) {
  std::array<std::byte, kPage> scratch;
  for (size_t at = 0; at < bytes.size();) {
    const std::byte* const from = bytes.data() + at;
    const size_t in_page = kPage - reinterpret_cast<uintptr_t>(from) % kPage;
    const size_t size = std::min(in_page, bytes.size() - at);
    const iovec local{scratch.data(), size}, remote{const_cast<std::byte*>(from), size};
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(size)) return from;
    at += size;
  }
  return nullptr;
}

}  // namespace moontide::memory
