// The extension module `moontide._core`. Each file of this folder binds one noun.
#include <pybind11/pybind11.h>

#include "python/bindings.h"
#include "python/operation.h"

namespace moontide::python {

py::object make_exception(Code code, const std::string& message) {
  return py::module_::import("moontide.errors").attr("from_code")(static_cast<int>(code), message);
}

}  // namespace moontide::python

namespace py = pybind11;

PYBIND11_MODULE(_core, m) {
  using namespace moontide::python;
  m.doc() = "Moontide's native core";
  m.attr("version") = MOONTIDE_VERSION;
  py::register_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const Raised& error) {
      py::object exception = make_exception(error.error.code, error.error.message);
      PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
    }
  });
  bind_operation(m);
  bind_transfer(m);
  bind_access(m);
  bind_engine(m);
  bind_observe(m);
  bind_store(m);
  bind_servers(m);
  bind_policy(m);
  bind_sim(m);
  bind_topology(m);
}
