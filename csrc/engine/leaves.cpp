#include "engine/leaves.h"

#include <algorithm>

#include "io/leave.h"

namespace moontide::engine {

class Leaves::Leave final : public memory::PinUser {
 public:
  Leave(const memory::RegionRef& region, const Link& link, std::unique_ptr<io::GivenLeave> given)
      : peer_(link.peer_address() + " (process " + std::to_string(link.credentials()->pid) + ")"),
        given_(std::move(given)),
        pin_(region, this) {}

  std::string describe_use(const memory::Region&) const override {
    return "the leave of " + peer_ + " to write it, not given back";
  }
  const memory::Region& region() const { return *pin_.region(); }

 private:
  std::string peer_;
  std::unique_ptr<io::GivenLeave> given_;
  memory::Pin pin_;
};

Leaves::Leaves(io::Network& network) : network_(network) {}
Leaves::~Leaves() = default;

void Leaves::give(Link& link, const memory::RegionRef& region) {
  const bool wanted = (region->access & memory::kDirect) != 0 && link.open() && link.credentials() != nullptr;
  if (!wanted || over_ || given_.size() >= kCountMax) return;
  const uint64_t number = next_++;
  auto leave = network_.give_leave(*link.credentials(), [this, number] {
    auto over = given_.extract(number);  // with its pin goes the region, and whoever hears of that may look here
  });
  if (!leave) return;
  given_.emplace(number, std::make_unique<Leave>(region, link, std::move(leave->given)));
  link.send_leave(*region, leave->holders.get());
}

size_t Leaves::hostages() const {
  return std::ranges::count_if(given_, [](const auto& leave) { return !leave.second->region().live; });
}

std::vector<uint32_t> Leaves::regions() const {
  std::vector<uint32_t> ids;
  ids.reserve(given_.size());
  for (const auto& [number, leave] : given_) ids.push_back(leave->region().id);
  return ids;
}

}  // namespace moontide::engine
