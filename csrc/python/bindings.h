// Shared by the files of this folder: errors into exceptions, the parts of the module.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>

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

// Seconds of Python as nanoseconds: what is longer than a hundred years is that. INVALID for what is no number.
inline int64_t to_ns(double seconds, const char* what) {
  constexpr double kMost = 100.0 * 365 * 86400;
  if (std::isnan(seconds)) raise({Code::kInvalid, std::string(what) + " is not a number"});
  return static_cast<int64_t>(std::clamp(seconds, -kMost, kMost) * 1e9);
}

inline std::unique_lock<std::mutex> lock_or_raise(Runtime& runtime) { return value_or_raise(runtime.lock()); }

// How many connections were refused for want of a proof, and the last one with its reason.
std::pair<uint64_t, std::string> refusals(Runtime& runtime);

void bind_access(py::module_& m);
void bind_engine(py::module_& m);
void bind_observe(py::module_& m);
void bind_policy(py::module_& m);
void bind_transfer(py::module_& m);
void bind_store(py::module_& m);
void bind_servers(py::module_& m);
void bind_sim(py::module_& m);
void bind_topology(py::module_& m);

}  // namespace moontide::python
