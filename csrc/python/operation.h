// The Python face of anything under way.
#pragma once

#include <functional>

#include "python/bindings.h"

namespace moontide::python {

struct Operation {
  std::shared_ptr<Runtime> runtime;
  std::shared_ptr<Completion> completion;
  std::function<py::object()> result;  // called once done, with the GIL and without the lock

  bool done() const;
  // The result; TIMED_OUT when it is not there in time (the operation goes on).
  py::object wait(std::optional<double> timeout_s) const;
  void watch(std::shared_ptr<Notifier> notifier, uint64_t token) const;
};

// Waits until `ready`; raises what a signal handler raised, and TIMED_OUT. `far`: see io::Driver.
void wait_or_raise(Runtime& runtime, const std::function<bool()>& ready, std::optional<double> timeout_s,
                   const std::function<bool()>& far = {});

// Runs the runtime's reactor in this thread for so many seconds.
void drive(Runtime& runtime, double seconds);

// For a Pending<T>: `convert` makes the Python value.
template <class T, class Convert>
Operation make_operation(std::shared_ptr<Runtime> runtime, std::shared_ptr<Pending<T>> pending, Convert convert) {
  auto result = [pending, convert = std::move(convert)]() -> py::object {
    if (!pending->value) raise({Code::kClosed, "the engine was closed"});
    if (!*pending->value) raise(pending->value->error());
    if constexpr (std::is_void_v<T>) {
      return convert();
    } else {
      return convert(**pending->value);
    }
  };
  return {std::move(runtime), pending, std::move(result)};
}

void bind_operation(py::module_& m);

}  // namespace moontide::python
