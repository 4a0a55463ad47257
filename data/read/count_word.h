// Counts as our own command line takes them; files of frameworks are read as these write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardplan {

// Digits and a suffix: k (or Ki) multiplies by 1024, M (or Mi) by 1024^2, for 4k tokens are 4096
// tokens, as model names mean it; 8_192 is 8192. Nothing for any other word and beyond 64 bits.
std::optional<std::int64_t> count_of(std::string_view word);

// "2_000_000" without the marks between its groups of digits.
std::string without_group_marks(std::string_view word);

}  // namespace shardplan
