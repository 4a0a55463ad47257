// Replays a list of allocations against a model of PyTorch's CUDACachingAllocator.
// Source: pytorch c10/cuda/CUDACachingAllocator.cpp (rounding 512 B, small pool 2 MiB, 20 MiB and
// 2 MiB-rounded segments, splitting, expandable segments).
#pragma once

#include <cstdint>
#include <span>

#include "estimator/ledger/allocation.h"
#include "estimator/plan/framework_profile.h"

namespace shardplan {

struct AllocatorPeaks {
  std::int64_t allocated_bytes = 0;  // peak of live blocks, each rounded as the allocator does
  std::int64_t reserved_bytes = 0;   // peak of segments with unlimited memory
  std::int64_t required_bytes = 0;   // smallest capacity at which the replay survives, releasing
                                     // cached segments before it fails
};

// The required bytes, which cost the most to find, are not looked for below a capacity of at most
// enough_bytes that survives: this one stands for them.
AllocatorPeaks replay_allocator(std::span<const AllocationEvent> events, AllocatorKind kind,
                                std::int64_t enough_bytes = 0);

// What happens on a device with that much memory: one replay instead of a search for the capacity.
enum class CapacityOutcome {
  kPlentiful,  // reserved memory stays below the capacity
  kReleases,   // survives by giving cached segments back
  kFails,      // out of memory
};
struct CapacityReplay {
  CapacityOutcome outcome = CapacityOutcome::kFails;
  // All devices with at least, and with less than that much memory do the same.
  std::int64_t from_bytes = 0;
  std::int64_t below_bytes = 0;
};
CapacityReplay replay_at_capacity(std::span<const AllocationEvent> events, AllocatorKind kind,
                                  std::int64_t capacity_bytes);

}  // namespace shardplan
