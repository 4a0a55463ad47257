// A Python list of integers as Megatron-LM's arguments write it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardplan {

// "[0]*3+([1]*2)" -> 0 0 0 1 1: a Python list of integers. InputError that begins with `place`.
std::vector<std::int64_t> integer_pattern(const std::string& text, const std::string& place);

}  // namespace shardplan
