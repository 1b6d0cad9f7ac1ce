// Who may talk to this process: the cluster secret, and whether addresses off loopback are allowed.
#include <pybind11/stl.h>

#include "python/bindings.h"
#include "python/runtime.h"

namespace moontide::python {

std::pair<uint64_t, std::string> refusals(Runtime& runtime) {
  py::gil_scoped_release nogil;
  auto held = lock_or_raise(runtime);
  const auto& counters = runtime.security().counters;
  return {counters.refused, counters.last_refusal};
}

void bind_access(py::module_& m) {
  py::class_<Access>(m, "Access", "What the networks of an engine or master are made with.")
      .def(py::init([](const py::bytes& secret, bool insecure_listen, const std::string& tls_cert,
                       const std::string& tls_key, const std::string& tls_ca) {
             Access access;
             const auto bytes = as_bytes(static_cast<std::string_view>(secret));
             if (!bytes.empty()) access.security->secret = value_or_raise(rpc::ClusterSecret::create(bytes));
             if (!tls_cert.empty()) {
               py::gil_scoped_release nogil;
               access.security->tls = value_or_raise(io::TlsCredentials::create({tls_cert, tls_key, tls_ca}));
             }
             access.off_loopback = insecure_listen || access.security->secret.has_value();
             return access;
           }),
           py::arg("secret"), py::arg("insecure_listen"), py::arg("tls_cert"), py::arg("tls_key"), py::arg("tls_ca"));
}

}  // namespace moontide::python
