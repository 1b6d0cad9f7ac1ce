// Shared by the files of this folder: errors into exceptions, the parts of the module.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"
#include "python/runtime.h"

namespace moontide::python {

namespace py = pybind11;

// Carries an Error through pybind11; the translator in module.cpp makes the exception of moontide.errors out of it.
struct Raised {
  Error error;
};

[[noreturn]] inline void raise(const Error& error) { throw Raised{error}; }

template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// The exception object for a code, as a value for batches.
py::object make_exception(Code code, const std::string& message);

inline std::unique_lock<std::mutex> lock_or_raise(Runtime& runtime) { return value_or_raise(runtime.lock()); }

void bind_engine(py::module_& m);
void bind_transfer(py::module_& m);
void bind_store(py::module_& m);
void bind_sim(py::module_& m);

}  // namespace moontide::python
