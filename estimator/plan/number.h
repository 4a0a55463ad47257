// Counts and sizes in formulas for times.
#pragma once

#include <cstdint>

namespace shardplan {

constexpr double number(std::int64_t count) {
  return static_cast<double>(count);
}

}  // namespace shardplan
