// What a store is given and gives back, as Python values.
#pragma once

#include <string>
#include <vector>

#include "python/bindings.h"
#include "store/client.h"

namespace moontide::python {

using Lengths = std::vector<Result<uint64_t>>;
using Versions = std::vector<Result<Generation>>;
using Places = std::vector<Result<store::Location>>;

// The bytes of texts and bytes. INVALID: empty, too long, of another type.
std::vector<std::string> to_keys(const py::sequence& given);

// Whether each is there; what is neither OK nor NOT_FOUND is raised.
py::list found_list(const std::vector<Code>& codes);
py::list codes_list(const std::vector<Code>& codes);

Lengths lengths_of(const store::Operation& operation);
py::list lengths_list(const Lengths& results);
// The object that each item became.
Versions versions_of(const store::Operation& operation);
py::list versions_list(const Versions& results);
// (length, version, [(node, address of its engine), …]) per key that was found
py::list places_list(const Places& results);

}  // namespace moontide::python
