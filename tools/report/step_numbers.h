// What a step rests on: each number with its value, its origin and its source.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/commands/stated_numbers.h"

namespace shardplan {

// Base units.
nlohmann::ordered_json numbers_json(const std::vector<StatedNumber>& numbers);
// Seconds as microseconds.
std::string numbers_text(const std::vector<StatedNumber>& numbers);

}  // namespace shardplan
