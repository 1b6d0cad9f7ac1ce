#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace moontide::memory {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPage = 4096;

std::unexpected<Error> failed(const char* step, size_t size) {
  int error = errno;
  return fail(Code::kNoSpace, std::string(step) + " of " + std::to_string(size) + " bytes: " + std::strerror(error));
}

}  // namespace

Result<std::shared_ptr<Arena>> Arena::create(size_t size, const char* name, Others others) {
  if (size == 0 || size > SIZE_MAX - kPage) return fail(Code::kInvalid, "arena of " + std::to_string(size) + " bytes");
  std::shared_ptr<Arena> arena(new Arena);
  size = (size + kPage - 1) / kPage * kPage;
  arena->fd_ = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (arena->fd_ < 0) return failed("memfd_create", size);
  if (ftruncate(arena->fd_, static_cast<off_t>(size)) != 0) return failed("ftruncate", size);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd_, 0);
  if (data == MAP_FAILED) return failed("mmap", size);
  arena->data_ = static_cast<std::byte*>(data);
  arena->size_ = size;
  // with this seal no process, not even the owner, can make another writable mapping
  const int seals = others == Others::kRead ? kSeals | F_SEAL_FUTURE_WRITE : kSeals;
  if (fcntl(arena->fd_, F_ADD_SEALS, seals) != 0) return failed("sealing", size);
  return arena;
}

Result<std::shared_ptr<Arena>> Arena::create_private(size_t size) {
  if (size == 0 || size > SIZE_MAX - kPage) return fail(Code::kInvalid, "arena of " + std::to_string(size) + " bytes");
  std::shared_ptr<Arena> arena(new Arena);
  size = (size + kPage - 1) / kPage * kPage;
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return failed("mmap", size);
  arena->data_ = static_cast<std::byte*>(data);
  arena->size_ = size;
  return arena;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

Result<std::shared_ptr<Mapping>> Mapping::map(int fd, size_t size) {
  int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0) return fail(Code::kDenied, std::string("not a sealed memfd: ") + std::strerror(errno));
  if ((seals & F_SEAL_SHRINK) == 0) return fail(Code::kDenied, "the arena may shrink: it is not sealed");
  struct stat info{};
  if (fstat(fd, &info) != 0) return failed("fstat", size);
  if (size == 0 || static_cast<size_t>(info.st_size) != size) {
    return fail(Code::kInvalid,
                "arena has " + std::to_string(info.st_size) + " bytes, announced were " + std::to_string(size));
  }
  const bool writable = (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0;
  void* data = mmap(nullptr, size, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return failed("mmap", size);
  std::shared_ptr<Mapping> mapping(new Mapping);
  mapping->data_ = static_cast<std::byte*>(data);
  mapping->size_ = size;
  mapping->writable_ = writable;
  return mapping;
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace moontide::memory
