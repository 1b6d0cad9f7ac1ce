// A sysfs to read: this machine's, a folder's, or a recording's. Discovery knows only this interface, so that a
// recorded machine runs the same code as the one at hand. One thread; calls block for as long as the kernel takes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace moontide::topology {

// Paths are relative to the root, without a slash at either end: "class/net/eth0".
class Tree {
 public:
  virtual ~Tree() = default;
  // The file without the white space at its end, of long files the first 64 KiB. Nothing where it cannot be read, as
  // with the many attributes that answer EINVAL. No link leads out of the tree.
  virtual std::optional<std::string> read(const std::string& path) = 0;
  // The names in a folder, sorted; none where there is no such folder.
  virtual std::vector<std::string> list(const std::string& path) = 0;
  // The path with every link followed; nothing where it leads nowhere or out of the tree.
  virtual std::optional<std::string> resolve(const std::string& path) = 0;
};

// A folder: /sys, or a copy of one.
Result<std::unique_ptr<Tree>> open_folder(const std::string& root);

// The text that Recorder::text() wrote. INVALID names the line.
Result<std::unique_ptr<Tree>> open_recording(std::string_view text);

// Passes everything on to another tree, which has to outlive it, and remembers what was found.
class Recorder : public Tree {
 public:
  explicit Recorder(Tree& inner) : inner_(inner) {}
  std::optional<std::string> read(const std::string& path) override;
  std::vector<std::string> list(const std::string& path) override;
  std::optional<std::string> resolve(const std::string& path) override;

  // A recording of what was asked for, one line per file or link. Of a machine it tells the shape, not the identity:
  // an interface whose name is not made from its place in the machine (a MAC address, a word) is called net0, net1, ...
  std::string text() const;

 private:
  std::map<std::string, std::string> renamed() const;

  Tree& inner_;
  std::map<std::string, std::string> files_;
  std::map<std::string, std::string> links_;  // path → the path it leads to
};

// "a/b/c" → a, b, c; without the empty ones.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, char separator);

}  // namespace moontide::topology
