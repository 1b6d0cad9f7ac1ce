// Which objects of a segment go first. One policy object per node; single-threaded; owns nothing.
#pragma once

#include <functional>
#include <memory>

#include "catalog/object_table.h"

namespace moontide::catalog {

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  // A committed object appeared, was used, or is leaving. An object is inserted once and erased once.
  virtual void inserted(Object& object) = 0;
  virtual void touched(Object& object) = 0;
  virtual void erased(Object& object) = 0;
  // Offers candidates, the first to go first, until `offer` returns false or `scan` were offered. `offer` must not
  // change the policy. True when every object was offered.
  virtual bool pick(size_t scan, const std::function<bool(Object&)>& offer) = 0;
};

using MakePolicy = std::function<std::unique_ptr<EvictionPolicy>()>;

// Least recently used: an intrusive list, coldest first.
class LruPolicy final : public EvictionPolicy {
 public:
  void inserted(Object& object) override;
  void touched(Object& object) override;
  void erased(Object& object) override;
  bool pick(size_t scan, const std::function<bool(Object&)>& offer) override;

 private:
  void unlink(Object& object);
  void link_hottest(Object& object);

  Object* coldest_ = nullptr;
  Object* hottest_ = nullptr;
};

}  // namespace moontide::catalog
