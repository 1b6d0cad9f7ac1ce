// Memory that other processes of this host may map, but only for reading: a memfd, mapped writable once by its owner
// and then sealed against any further writable mapping and against shrinking (a mapping of it can never fault).
#pragma once

#include <cstddef>
#include <memory>

#include "base/bytes.h"
#include "base/status.h"

namespace moontide::memory {

class Arena {
 public:
  // `size` > 0 is rounded up to whole pages. NO_SPACE names the size and the system's error.
  static Result<std::shared_ptr<Arena>> create(size_t size, const char* name);

  // Private memory without a descriptor, for the simulation.
  static Result<std::shared_ptr<Arena>> create_private(size_t size);

  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  int fd() const { return fd_; }  // -1 for private memory

 private:
  Arena() = default;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  int fd_ = -1;
};

// A read-only view of another process's arena.
class Mapping {
 public:
  // Takes no ownership of `fd`. DENIED where the file could shrink under the mapping or is no memfd, INVALID where its
  // size is not `size`.
  static Result<std::shared_ptr<Mapping>> map(int fd, size_t size);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Mapping() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace moontide::memory
