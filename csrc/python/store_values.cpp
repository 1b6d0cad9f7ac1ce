#include "python/store_values.h"

namespace moontide::python {
namespace {

py::object exception_of(const Error& error) { return make_exception(error.code, error.message); }

}  // namespace

std::vector<std::string> to_keys(const py::sequence& given) {
  constexpr size_t kMost = catalog::kMaxKeyBytes;
  std::vector<std::string> keys;
  keys.reserve(given.size());
  for (const py::handle key : given) {
    const char* at = nullptr;
    Py_ssize_t length = 0;
    if (PyBytes_Check(key.ptr())) {
      at = PyBytes_AS_STRING(key.ptr());
      length = PyBytes_GET_SIZE(key.ptr());
    } else if (PyUnicode_Check(key.ptr())) {
      at = PyUnicode_AsUTF8AndSize(key.ptr(), &length);
      if (at == nullptr) throw py::error_already_set();
    } else {
      raise({Code::kInvalid, std::string("a key is str or bytes, not ") + Py_TYPE(key.ptr())->tp_name});
    }
    if (length < 1 || static_cast<size_t>(length) > kMost) {
      raise({Code::kInvalid, "a key has 1 to " + std::to_string(kMost) + " bytes, not " + std::to_string(length)});
    }
    keys.emplace_back(at, static_cast<size_t>(length));
  }
  return keys;
}

py::list found_list(const std::vector<Code>& codes) {
  py::list out(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] != Code::kOk && codes[i] != Code::kNotFound) raise({codes[i], "the master cannot say"});
    out[i] = py::bool_(codes[i] == Code::kOk);
  }
  return out;
}

py::list codes_list(const std::vector<Code>& codes) {
  py::list out(codes.size());
  for (size_t i = 0; i < codes.size(); ++i)
    out[i] = codes[i] == Code::kOk ? py::object(py::none()) : make_exception(codes[i], "");
  return out;
}

Lengths lengths_of(const store::Operation& operation) { return operation.results(); }

py::list lengths_list(const Lengths& results) {
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i)
    out[i] = results[i] ? py::object(py::int_(*results[i])) : exception_of(results[i].error());
  return out;
}

Versions versions_of(const store::Operation& operation) {
  Versions versions;
  for (size_t i = 0; i < operation.results().size(); ++i) {
    const auto& result = operation.results()[i];
    versions.push_back(result ? Result<Generation>(operation.version(i)) : std::unexpected(result.error()));
  }
  return versions;
}

py::list versions_list(const Versions& results) {
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i)
    out[i] = results[i] ? py::object(py::str(results[i]->text())) : exception_of(results[i].error());
  return out;
}

py::list places_list(const Places& results) {
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) {
      out[i] = exception_of(results[i].error());
      continue;
    }
    py::list places;
    places.append(py::make_tuple(results[i]->node.text(), results[i]->address));
    for (const store::OtherPlace& place : results[i]->further)
      places.append(py::make_tuple(place.node.text(), place.address));
    out[i] = py::make_tuple(results[i]->length, results[i]->generation.text(), places);
  }
  return out;
}

}  // namespace moontide::python
