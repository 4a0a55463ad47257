// Numbers and words as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardplan {

std::string grouped(std::int64_t value);        // 8,030,261,248
std::string whole(double value);                // 10,931: the nearest integer
std::string fixed(double value, int decimals);  // 12.34; never -0.00
std::string shortest(double value);             // 0.8, six digits at most
std::string gib(std::int64_t bytes);            // 61.20, without the unit
std::string percent(double share);              // 80 %, 43.1 %
std::string signed_percent(double share);       // +1.06 %, -0.50 %, 0.00 %
// "39.94 to 39.95", and one of the two where they are the same.
std::string range_of(const std::string& low, const std::string& high);
std::string one_line(std::string_view text);        // control characters as \xNN
std::int64_t display_width(std::string_view text);  // columns of UTF-8 text, one per character
std::string padded_left(std::string_view text, std::int64_t width);
std::string padded_right(std::string_view text, std::int64_t width);

}  // namespace shardplan
