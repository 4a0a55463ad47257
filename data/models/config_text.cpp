#include "data/models/config_text.h"

#include <algorithm>
#include <string_view>

namespace shardplan {

std::string with_finite_steps(std::string text) {
  constexpr std::string_view kKey = "\"time_step_limit\"";
  constexpr std::string_view kInfinity = "Infinity";
  constexpr std::string_view kLargest = "1e308   ";
  static_assert(kInfinity.size() == kLargest.size());
  for (std::size_t key = text.find(kKey); key != std::string::npos;
       key = text.find(kKey, key + kKey.size())) {
    const std::size_t end = std::min(text.find(']', key), text.size());
    for (std::size_t at = text.find(kInfinity, key); at < end;
         at = text.find(kInfinity, at + kInfinity.size())) {
      text.replace(at, kInfinity.size(), kLargest);
    }
  }
  return text;
}

}  // namespace shardplan
