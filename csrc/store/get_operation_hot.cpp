// What a get reads in the hot cache of its host. The cache has bytes, by generation; which generation is the key's is
// asked of the master by this very get, since an entry there does not end with its object.
#include "store/get_operation.h"

namespace moontide::store {
namespace {

// Of an object whose place is known: below it, reading it from afar costs no more than asking the master anew.
constexpr uint64_t kWorthAsking = 32u << 10;

}  // namespace

std::vector<Generation> GetOperation::generations_of(const std::vector<size_t>& indices) const {
  std::vector<Generation> generations;
  for (size_t i : indices) generations.push_back(items_[i].location.generation);
  return generations;
}

void GetOperation::read_located(const std::vector<size_t>& indices) {
  if (!client_->hot_.ready()) return read_by_node(indices);
  std::vector<size_t> afar, others;
  for (size_t i : indices) {
    // what is asked for again has failed here or where it lies: it is read there
    const bool here = !items_[i].asked_again && client_->hot_.is_afar(items_[i].location);
    (here ? afar : others).push_back(i);
  }
  read_by_node(others);
  if (afar.empty() || done()) return;
  client_->hot_.look(generations_of(afar), [self = self(), afar](const std::vector<std::optional<uint64_t>>& offsets) {
    if (self->done()) return;
    for (size_t n = 0; n < afar.size(); ++n) self->items_[afar[n]].hot = offsets[n];
    self->read_by_node(afar);
  });
}

void GetOperation::read_known(const std::vector<size_t>& indices) {
  if (!client_->hot_.ready()) return read_by_node(indices);
  std::vector<size_t> large, others;
  for (size_t i : indices) {
    const Item& item = items_[i];
    const bool worth = item.location.length >= kWorthAsking && client_->hot_.is_afar(item.location) &&
                       client_->commits_.find(item.wanted.key) == nullptr;
    (worth ? large : others).push_back(i);
  }
  read_by_node(others);
  if (large.empty() || done()) return;
  client_->hot_.look(generations_of(large),
                     [self = self(), large](const std::vector<std::optional<uint64_t>>& offsets) {
                       if (self->done()) return;
                       std::vector<size_t> hot, cold;
                       for (size_t n = 0; n < large.size(); ++n) (offsets[n] ? hot : cold).push_back(large[n]);
                       self->read_by_node(cold);
                       self->locate(hot);
                     });
}

void GetOperation::read_hot(const std::vector<size_t>& indices) {
  if (indices.empty()) return;
  if (const auto link = client_->hot_.link()) {
    for (size_t from = 0; from < indices.size(); from += wire::kStoreItemsMax) {
      const size_t to = std::min(indices.size(), from + wire::kStoreItemsMax);
      read_from(link, {indices.begin() + static_cast<ptrdiff_t>(from), indices.begin() + static_cast<ptrdiff_t>(to)});
    }
    return;
  }
  for (size_t i : indices) items_[i].hot.reset();
  read_by_node(indices);
}

void GetOperation::tell_cache(const Item& item) {
  if (item.hot) {
    ++client_->counters_.hot_gets;
    client_->counters_.hot_get_bytes += item.covered;
    client_->hot_.read_here(item.location.generation, item.covered);
  } else if (client_->hot_.link() && client_->hot_.is_afar(item.location) &&
             client_->commits_.find(item.wanted.key) == nullptr) {
    client_->hot_.read_afar(item.wanted.key, item.location);
  }
}

}  // namespace moontide::store
