// Retention as messages have it.
#pragma once

#include <span>
#include <vector>

#include "catalog/types.h"
#include "wire/store_messages.h"

namespace moontide::store {

inline wire::Kept to_wire(const catalog::Retention& retention) {
  return {static_cast<uint8_t>(retention.pin), retention.ttl_ns};
}

// May be invalid: see catalog::retention_valid.
inline catalog::Retention from_wire(const wire::Kept& kept) {
  return {static_cast<catalog::Pin>(kept.pin), kept.ttl_ns};
}

// Of item i; a list that was left out says nothing about any.
inline catalog::Retention retention_at(const std::vector<wire::Kept>& kept, size_t i) {
  return i < kept.size() ? from_wire(kept[i]) : catalog::Retention{};
}

// Nothing at all where nothing is said about any item.
inline std::vector<wire::Kept> if_any(std::vector<wire::Kept> kept) {
  for (const wire::Kept& one : kept) {
    if (one != wire::Kept{}) return kept;
  }
  return {};
}

}  // namespace moontide::store
