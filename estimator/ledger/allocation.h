// What a trainer's step asks of PyTorch's allocator: allocations and frees in the order of time.
#pragma once

#include <cstdint>
#include <vector>

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

}  // namespace shardplan
