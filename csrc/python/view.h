// Views of objects in place, in Python.
#pragma once

#include "python/bindings.h"
#include "store/view.h"

namespace moontide::python {

// Taken out once, by whoever asks for the result.
using Views = std::shared_ptr<std::vector<Result<store::ViewRef>>>;

// Per key a View or the exception.
py::list views_list(const std::shared_ptr<Runtime>& runtime, const Views& views);

void bind_view(py::module_& m);

}  // namespace moontide::python
