// The forms that numbers and places have in sysfs. Nothing for what is none.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/topology.h"

namespace moontide::topology {

// The whole text as a number: "-1", and with base 16 "0x10de" as well.
std::optional<int64_t> parse_number(std::string_view text, int base = 10);

// "0-3,8" → 0 1 2 3 8; at most 65536 numbers, none above 1048575.
std::optional<std::vector<int>> parse_list(std::string_view text);

// "0000:1b:00.0"; virtual domains have five digits and more.
bool is_pci_address(std::string_view text);

// Root complex, bridges and address out of "devices/pci0000:15/0000:15:01.0/0000:16:00.0/net/eth0". The node is left.
Place parse_place(std::string_view path);

// The part of the path that is the PCI function; empty if there is none.
std::string pci_folder(std::string_view path);

}  // namespace moontide::topology
