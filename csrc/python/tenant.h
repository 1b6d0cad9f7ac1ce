// What Python holds of something that lives on the reactor.
#pragma once

#include <memory>

#include "python/bindings.h"
#include "wire/store_messages.h"

namespace moontide::python {

// A handle of Python's on something that lives on the reactor: closed under the lock, at the latest with the runtime.
template <class T>
class Tenant {
 public:
  Tenant(std::shared_ptr<Runtime> runtime, std::shared_ptr<T> value)
      : runtime_(std::move(runtime)), value_(std::move(value)) {}
  Tenant(Tenant&&) noexcept = default;
  ~Tenant() { close(); }

  // Runs `use` with the value under the lock and without the GIL.
  template <class Use>
  auto with(Use use) const {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(*runtime_);
    auto value = value_.lock();
    if (!value) raise({Code::kClosed, "it was closed"});
    return use(*value);
  }
  void close() {
    if (!runtime_ || runtime_->forked()) return;
    py::gil_scoped_release nogil;
    auto held = runtime_->lock();
    if (!held) return;
    if (auto value = value_.lock()) runtime_->detach(value);
  }
  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }

 private:
  std::shared_ptr<Runtime> runtime_;
  std::weak_ptr<T> value_;
};

template <class T>
Tenant<T> settle_in(const std::shared_ptr<Runtime>& runtime, std::shared_ptr<T> value) {
  runtime->attach(value);
  return Tenant<T>(runtime, std::move(value));
}

inline py::dict counts_dict(const wire::PoolStatsReply& reply) {
  py::dict out;
  for (const auto& item : reply.counts) out[py::str(item.name)] = item.value;
  return out;
}

}  // namespace moontide::python
