#include "store/commits.h"

#include <algorithm>

#include "store/retention.h"

namespace moontide::store {
namespace {

constexpr int64_t kAskAgain = 20 * kMillisecond;
constexpr int64_t kAnswerWithin = 30 * kSecond;

}  // namespace

void Commits::add(const std::string& key, const Location& location, uint32_t crc, const catalog::Retention& retention) {
  auto [it, fresh] = keys_[key].try_emplace(location.generation, Pending{location, false});
  if (!fresh) return;
  ++pending_;
  to_send_.push_back(
      {{key, location.generation, location.node, location.offset, crc}, to_wire(retention), location.further});
  flush_soon(0);
}

const Location* Commits::find(std::string_view key) const {
  auto it = keys_.find(key);
  if (it == keys_.end()) return nullptr;
  const auto& [generation, newest] = *it->second.rbegin();
  return newest.hidden ? nullptr : &newest.location;
}

void Commits::forget(std::string_view key) {
  auto it = keys_.find(key);
  if (it == keys_.end()) return;
  for (auto& [generation, pending] : it->second) pending.hidden = true;
}

void Commits::when_empty(io::Task task) {
  if (pending_ == 0) return reactor_.post(std::move(task));
  when_empty_.push_back(std::move(task));
}

void Commits::flush_soon(int64_t delay_ns) {
  if (!flush_.running()) flush_.start(delay_ns, [this] { flush(); });
}

void Commits::flush() {
  auto all = std::exchange(to_send_, {});
  for (size_t from = 0; from < all.size(); from += wire::kStoreItemsMax) {
    size_t count = std::min(wire::kStoreItemsMax, all.size() - from);
    std::vector<ToSend> some(std::make_move_iterator(all.begin() + static_cast<ptrdiff_t>(from)),
                             std::make_move_iterator(all.begin() + static_cast<ptrdiff_t>(from + count)));
    wire::PutEnd message;
    for (const ToSend& one : some) {
      message.items.push_back(one.item);
      message.kept.value.push_back(one.kept);
      const auto index = static_cast<uint32_t>(message.items.size() - 1);
      for (const OtherPlace& place : one.further) message.further.value.push_back({index, place.node, place.offset});
    }
    message.kept.value = if_any(std::move(message.kept.value));
    Bytes payload = wire::encode(message);
    master_.request(wire::kPutEnd, std::move(payload), reactor_.now_ns() + kAnswerWithin,
                    [this, alive = std::weak_ptr(alive_), items = std::move(some)](Result<Bytes> reply, bool) mutable {
                      if (!alive.expired()) answered(std::move(items), reply);
                    });
  }
}

void Commits::answered(std::vector<ToSend> items, const Result<Bytes>& reply) {
  auto codes = reply ? wire::decode<wire::Codes>(*reply) : Result<wire::Codes>(std::unexpected(reply.error()));
  if (codes && codes->codes.size() != items.size()) codes = fail(Code::kInvalid, "answer of another length");
  for (size_t i = 0; i < items.size(); ++i) {
    bool again = !codes || codes->codes[i] == Code::kUnavailable;
    if (again) {
      to_send_.push_back(std::move(items[i]));
    } else {
      finish(items[i].item, codes->codes[i]);
    }
  }
  if (!to_send_.empty()) flush_soon(kAskAgain);
  if (pending_ > 0) return;
  for (io::Task& task : std::exchange(when_empty_, {})) task();
}

void Commits::finish(const wire::PutEndItem& item, Code code) {
  if (code != Code::kOk) ++lost_;
  auto it = keys_.find(item.key);
  if (it == keys_.end() || it->second.erase(item.generation) == 0) return;
  --pending_;
  if (it->second.empty()) keys_.erase(it);
}

}  // namespace moontide::store
