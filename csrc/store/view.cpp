#include "store/view.h"

#include "wire/hot_messages.h"

namespace moontide::store {
namespace {

constexpr int64_t kCloseTimeoutNs = 5 * kSecond;

}  // namespace

View::View(std::shared_ptr<Viewing> viewing, std::shared_ptr<Viewer> viewer, Generation generation)
    : viewing_(std::move(viewing)), viewer_(std::move(viewer)), generation_(generation) {}

View::~View() {
  memory_.reset();
  viewing_->ended(std::move(viewer_), generation_);
}

void Viewing::open(const engine::LinkRef& link, const InstanceId& node, bool hot,
                   const std::vector<Generation>& generations, int64_t timeout_ns, Opened opened) {
  auto known = viewers_.find({node, hot});
  ViewerRef viewer =
      known == viewers_.end() ? std::make_shared<Viewer>(0, node, hot, link->peer_address()) : known->second;
  const bool is_new = viewer->number == 0;
  auto answer = [self = shared_from_this(), link, node, hot, generations, timeout_ns, viewer, is_new,
                 opened = std::move(opened)](Result<rpc::Reply> reply) mutable {
    if (reply) return opened(self->take(link, viewer, generations, std::move(*reply)));
    self->forget(viewer);
    // the node does not know it any more: it started anew
    if (reply.error().code == Code::kStale && !is_new) {
      return self->open(link, node, hot, generations, timeout_ns, std::move(opened));
    }
    opened(std::unexpected(reply.error()));
  };
  const uint16_t type = hot ? uint16_t{wire::kHotViewOpen} : uint16_t{wire::kViewOpen};
  link->call(type, wire::encode(wire::ViewOpen{viewer->number, generations}), timeout_ns, std::move(answer));
}

Result<std::vector<Result<Viewing::Pinned>>> Viewing::take(const engine::LinkRef& link, ViewerRef viewer,
                                                           const std::vector<Generation>& generations,
                                                           rpc::Reply reply) {
  TRY(auto message, wire::decode<wire::ViewOpenReply>(reply.payload));
  if (message.items.size() != generations.size() || message.viewer == 0 || reply.fds.size() > 1)
    return fail(Code::kInvalid, "a node's answer about views has another length");
  if (viewer->number == 0) {
    viewer->number = message.viewer;
    if (!reply.fds.empty()) viewer->leave = std::make_unique<io::HeldLeave>(std::move(reply.fds.front()));
    viewers_.try_emplace({viewer->node, viewer->hot},
                         viewer);  // of two that were asked for at once the other lives by its views
    link->on_closed([self = weak_from_this(), viewer = std::weak_ptr(viewer)](const Error&) {
      auto viewing = self.lock();
      auto over = viewer.lock();
      if (viewing && over) viewing->forget(over);  // the node may be another one when it is reached again
    });
  }
  std::vector<Result<Pinned>> pinned;
  for (size_t i = 0; i < generations.size(); ++i) {
    const wire::Viewed& item = message.items[i];
    if (item.code == Code::kOk) {
      pinned.emplace_back(Pinned{std::make_shared<View>(shared_from_this(), viewer, generations[i]), item.offset});
    } else {
      pinned.emplace_back(fail(item.code, "the node gives no view"));
    }
  }
  return pinned;
}

void Viewing::forget(const ViewerRef& viewer) {
  auto found = viewers_.find({viewer->node, viewer->hot});
  if (found != viewers_.end() && found->second == viewer) viewers_.erase(found);
}

void Viewing::ended(ViewerRef viewer, Generation generation) {
  const std::lock_guard lock(mutex_);
  ended_.emplace_back(std::move(viewer), generation);
}

void Viewing::flush() {
  std::vector<std::pair<ViewerRef, Generation>> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(ended_);
  }
  if (engine_alive_.expired()) return;
  for (auto& [viewer, generation] : ended) {
    viewer->closing.push_back(generation);
    if (viewer->closing.size() == 1) send_closing(viewer);
  }
}

void Viewing::send_closing(const ViewerRef& viewer) {
  engine_.open(viewer->address, kCloseTimeoutNs, [self = shared_from_this(), viewer](Result<engine::LinkRef> link) {
    // Where a pin cannot be given back the viewer ends as a whole, with its last view.
    if (!link) return self->forget(viewer);
    while (!viewer->closing.empty()) {
      const size_t count = std::min(viewer->closing.size(), wire::kStoreItemsMax);
      const auto first = viewer->closing.end() - static_cast<ptrdiff_t>(count);
      std::vector<Generation> some(first, viewer->closing.end());
      viewer->closing.erase(first, viewer->closing.end());
      const uint16_t type = viewer->hot ? uint16_t{wire::kHotViewClose} : uint16_t{wire::kViewClose};
      (*link)->call(type, wire::encode(wire::ViewClose{viewer->number, std::move(some)}), kCloseTimeoutNs,
                    [self, viewer](const Result<rpc::Reply>& reply) {
                      if (!reply) self->forget(viewer);
                    });
    }
  });
}

}  // namespace moontide::store
