#include "engine/mailbox.h"

#include <iterator>
#include <utility>

namespace moontide::engine {

Result<> Mailbox::put(const InstanceId& from, Bytes payload) {
  if (payload.size() > kPayloadMax) {
    return fail(Code::kTooLarge, "a notification of " + std::to_string(payload.size()) + " bytes; at most " +
                                     std::to_string(kPayloadMax));
  }
  if (waiting_.size() >= kCountMax || bytes_ + payload.size() > kBytesMax) {
    return fail(Code::kOverloaded, std::to_string(waiting_.size()) + " notifications wait to be taken");
  }
  bytes_ += payload.size();
  waiting_.push_back({from, std::move(payload)});
  for (auto& arrived : std::exchange(watchers_, {})) arrived();
  return {};
}

std::vector<Notification> Mailbox::take() {
  std::vector<Notification> out(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(waiting_.end()));
  waiting_.clear();
  bytes_ = 0;
  return out;
}

void Mailbox::on_arrival(std::move_only_function<void()> arrived) {
  if (!waiting_.empty()) return arrived();
  watchers_.push_back(std::move(arrived));
}

}  // namespace moontide::engine
