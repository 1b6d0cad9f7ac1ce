#include "python/view.h"

namespace moontide::python {
namespace {

// Read-only memory of a node, by the buffer protocol: whoever has a buffer of it keeps it.
class ViewHandle {
 public:
  ViewHandle(std::shared_ptr<Runtime> runtime, store::ViewRef view)
      : runtime_(std::move(runtime)), view_(std::move(view)) {}
  ViewHandle(ViewHandle&&) noexcept = default;
  ViewHandle& operator=(ViewHandle&&) = delete;
  ~ViewHandle() {
    if (!view_) return;
    if (runtime_->forked()) {
      new store::ViewRef(std::move(view_));  // its parent's: a thread that is not here may hold its lock
      return;
    }
    py::gil_scoped_release nogil;
    auto viewing = view_->viewing();
    view_.reset();
    auto held = runtime_->lock();
    if (held) viewing->flush();
  }

  ByteView bytes() const { return view_->bytes(); }

 private:
  std::shared_ptr<Runtime> runtime_;
  store::ViewRef view_;
};

}  // namespace

py::list views_list(const std::shared_ptr<Runtime>& runtime, const Views& views) {
  py::list out(views->size());
  for (size_t i = 0; i < views->size(); ++i) {
    auto& view = (*views)[i];
    out[i] = view ? py::cast(ViewHandle(runtime, std::move(*view)))
                  : make_exception(view.error().code, view.error().message);
  }
  return out;
}

void bind_view(py::module_& m) {
  py::class_<ViewHandle>(m, "View", py::buffer_protocol(), "Read-only memory of a node of this host.")
      .def_buffer([](const ViewHandle& view) {
        const ByteView bytes = view.bytes();
        return py::buffer_info(const_cast<std::byte*>(bytes.data()), 1, "B", 1, {bytes.size()}, {size_t{1}},
                               /*readonly=*/true);
      })
      .def("__len__", [](const ViewHandle& view) { return view.bytes().size(); });
}

}  // namespace moontide::python
