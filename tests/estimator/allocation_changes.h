// What tests read of a played timeline.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "estimator/allocator/caching_allocator.h"
#include "estimator/allocator/replay.h"
#include "estimator/plan/units.h"

namespace shardplan {

// Allocations (positive) and frees of a MiB and more.
inline std::vector<std::int64_t> large_changes(const std::vector<AllocationEvent>& events) {
  std::unordered_map<std::int64_t, std::int64_t> bytes;
  std::vector<std::int64_t> changes;
  for (const AllocationEvent& event : events) {
    const std::int64_t change = event.bytes > 0 ? event.bytes : -bytes.at(event.id);
    bytes[event.id] = event.bytes;
    if (std::abs(change) >= kMiB) {
      changes.push_back(change);
    }
  }
  return changes;
}

// Most that is allocated at once.
inline std::int64_t largest_sum(const std::vector<AllocationEvent>& events) {
  std::unordered_map<std::int64_t, std::int64_t> bytes;
  std::int64_t sum = 0;
  std::int64_t most = 0;
  for (const AllocationEvent& event : events) {
    std::int64_t& held = bytes[event.id];
    sum += round_up(event.bytes, kAllocatorRounding) - held;
    held = round_up(event.bytes, kAllocatorRounding);
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace shardplan
