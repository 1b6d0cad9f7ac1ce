// A sysfs in a folder.
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "topology/tree.h"

namespace moontide::topology {
namespace {

constexpr size_t kFileMax = 64 << 10;

std::optional<std::string> real_path(const std::string& path) {
  char buffer[PATH_MAX];
  if (realpath(path.c_str(), buffer) == nullptr) return std::nullopt;
  return std::string(buffer);
}

class Folder : public Tree {
 public:
  explicit Folder(std::string root) : root_(std::move(root)) {}

  std::optional<std::string> read(const std::string& path) override {
    const auto inside = resolve(path);
    if (!inside) return std::nullopt;
    // a folder is anyone's: a pipe in it must not block
    const int fd = open((root_ + "/" + *inside).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return std::nullopt;
    struct stat info{};
    std::optional<std::string> text;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) text = read_all(fd);
    close(fd);
    return text;
  }

  std::vector<std::string> list(const std::string& path) override {
    std::vector<std::string> names;
    const auto inside = resolve(path);
    DIR* folder = inside ? opendir((root_ + "/" + *inside).c_str()) : nullptr;
    if (folder == nullptr) return names;
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(folder);
    std::ranges::sort(names);
    return names;
  }

  std::optional<std::string> resolve(const std::string& path) override {
    const auto found = real_path(root_ + "/" + path);
    if (!found || !found->starts_with(root_ + "/")) return std::nullopt;
    return found->substr(root_.size() + 1);
  }

 private:
  static std::optional<std::string> read_all(int fd) {
    std::string text(kFileMax, '\0');
    size_t size = 0;
    while (size < kFileMax) {
      const ssize_t got = ::read(fd, text.data() + size, kFileMax - size);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return std::nullopt;
      if (got == 0) break;
      size += static_cast<size_t>(got);
    }
    text.resize(size);
    text.resize(text.find_last_not_of(" \t\r\n") + 1);
    return text;
  }

  std::string root_;
};

}  // namespace

Result<std::unique_ptr<Tree>> open_folder(const std::string& root) {
  const auto found = real_path(root);
  if (!found) return fail(Code::kNotFound, root + ": " + std::strerror(errno));
  struct stat info{};
  if (stat(found->c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return fail(Code::kInvalid, root + " is no folder");
  return std::make_unique<Folder>(*found);
}

}  // namespace moontide::topology
