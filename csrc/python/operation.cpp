#include "python/operation.h"

#include <pybind11/functional.h>
#include <pybind11/stl.h>

namespace moontide::python {

void wait_or_raise(Runtime& runtime, const std::function<bool()>& ready, std::optional<double> timeout_s,
                   const std::function<bool()>& far) {
  if (runtime.forked()) raise({Code::kClosed, "this process was forked; make a new Engine in the child"});
  bool is_ready;
  {
    py::gil_scoped_release nogil;
    is_ready = runtime.wait(ready, timeout_s, far);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (is_ready) return;
  if (runtime.closed()) raise({Code::kClosed, "the engine was closed"});
  raise({Code::kTimedOut, "still under way after " + std::to_string(timeout_s.value_or(0)) + " s"});
}

// A wait for nothing: only its side effect is wanted, that this thread runs the reactor meanwhile.
void drive(Runtime& runtime, double seconds) {
  {
    py::gil_scoped_release nogil;
    auto held = lock_or_raise(runtime);
    held.unlock();
    runtime.wait([] { return false; }, seconds);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

bool Operation::done() const {
  py::gil_scoped_release nogil;
  auto held = runtime->lock();
  return !held || completion->done;  // after close() nothing goes on
}

py::object Operation::wait(std::optional<double> timeout_s) const {
  wait_or_raise(*runtime, [this] { return completion->done; }, timeout_s);
  return result();
}

void Operation::watch(std::shared_ptr<Notifier> notifier, uint64_t token) const {
  py::gil_scoped_release nogil;
  auto held = runtime->lock();
  if (!held) return notifier->push(token);
  completion->watch(std::move(notifier), token);
  runtime->watch(completion);
}

void bind_operation(py::module_& m) {
  py::class_<Notifier, std::shared_ptr<Notifier>>(m, "Notifier", "Tells an event loop by a descriptor what is over.")
      .def(py::init<>())
      .def("fileno", &Notifier::fd)
      .def("drain", &Notifier::drain, "Tokens of what has ended since the last call.");
  py::class_<Operation>(m, "Operation")
      .def_property_readonly("done", &Operation::done)
      .def("wait", &Operation::wait, py::arg("timeout") = py::none())
      .def("watch", &Operation::watch, py::arg("notifier"), py::arg("token"));
}

}  // namespace moontide::python
