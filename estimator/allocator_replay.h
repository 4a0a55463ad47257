// Replays a list of allocations against a model of PyTorch's CUDACachingAllocator.
// Source: pytorch c10/cuda/CUDACachingAllocator.cpp (rounding 512 B, small pool 2 MiB, 20 MiB and
// 2 MiB-rounded segments, splitting, expandable segments).
#pragma once

#include <cstdint>
#include <span>

#include "estimator/framework_profile.h"

namespace shardplan {

// The stream on which a tensor is allocated: the allocator keeps a freed block for its own stream.
enum class AllocationStream : std::int8_t { kCompute, kGather, kReduce };
inline constexpr std::int32_t kNumAllocationStreams = 3;

// Bytes that every block of PyTorch's allocator is rounded up to (kMinBlockSize).
inline constexpr std::int64_t kAllocatorRounding = 512;

// kFreeInUse: another stream still works on the tensor (Tensor.record_stream), so that its block
// cannot be taken before kEndUses, where all such streams have come to their end.
enum class AllocationKind : std::int8_t { kUsual, kFreeInUse, kEndUses };

// bytes > 0 allocates tensor `id`, bytes == 0 frees it. Ids may be reused after a free.
struct AllocationEvent {
  std::int64_t id = 0;
  std::int64_t bytes = 0;
  AllocationStream stream = AllocationStream::kCompute;
  AllocationKind kind = AllocationKind::kUsual;
  friend bool operator==(const AllocationEvent&, const AllocationEvent&) = default;
};

// What a framework allocates and frees until the first step, and the elements of the tensors that
// its optimizer then makes of each kind.
struct BuiltStage {
  std::vector<AllocationEvent> events;
  std::vector<std::int64_t> optimizer_elements;
  std::size_t second_moments = 0;  // Megatron-core: so many of them, the first ones, have one
  // What the second step frees first, none if 0, and the tensors that it makes in its place.
  std::int64_t rebuilt_id = 0;
  std::vector<std::int64_t> rebuilt_bytes;
  friend bool operator==(const BuiltStage&, const BuiltStage&) = default;
};

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
