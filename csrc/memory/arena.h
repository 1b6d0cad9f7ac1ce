// Memory that other processes of this host may map: a memfd, sealed against shrinking (a mapping of it can never fault)
// and, unless peers are to write it themselves, against any further writable mapping.
#pragma once

#include <cstddef>
#include <memory>

#include "base/bytes.h"
#include "base/status.h"

namespace moontide::memory {

class Arena {
 public:
  enum class Others : uint8_t { kRead, kReadAndWrite };

  // `size` > 0 is rounded up to whole pages. NO_SPACE names the size and the system's error.
  static Result<std::shared_ptr<Arena>> create(size_t size, const char* name, Others others = Others::kRead);

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

// A view of another process's arena, as writable as its owner left it.
class Mapping {
 public:
  // Takes no ownership of `fd`. DENIED where the file could shrink under the mapping or is no memfd, INVALID where its
  // size is not `size`.
  static Result<std::shared_ptr<Mapping>> map(int fd, size_t size);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }
  std::byte* writable_data() const { return writable_ ? data_ : nullptr; }  // null: only for reading
  size_t size() const { return size_; }

 private:
  Mapping() = default;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  bool writable_ = false;
};

}  // namespace moontide::memory
