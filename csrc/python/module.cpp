// The extension module `moontide._core`. Each file of this folder binds one noun.
#include <pybind11/pybind11.h>

namespace py = pybind11;

PYBIND11_MODULE(_core, m) {
  m.doc() = "Moontide's native core";
  m.attr("version") = MOONTIDE_VERSION;
}
