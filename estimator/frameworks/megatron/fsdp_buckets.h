// Which parameters of a chunk Megatron-FSDP puts into which bucket. Only fsdp.cpp needs
// it. Source: Megatron-LM core_v0.16.1
// core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py
// (_get_parameter_groups, build_data_parallel_buffer_index).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/plan/parameters.h"

namespace shardplan::megatron {

// training/training.py, get_model: without overlapped reduction one bucket for all, 0 here.
std::int64_t smallest_bucket(const Job& job, const Plan& plan);
// ZeRO-2 without overlapped reduction: one bucket of all gradients.
bool has_one_bucket(const Job& job, const Plan& plan);

// Elements of a chunk whose gradients are divided.
LocalParameters divided_elements(const Job& job, const Plan& plan, const ChunkLayout& chunk);

// A bucket of embedding and head, whose gathered parameters stay for the step: rows of the state.
FsdpBucket end_bucket(const Job& job, const Plan& plan, std::int64_t elements);

// Units of the chunk whose parameters a bucket has.
struct UnitSpan {
  std::size_t first = 0;
  std::size_t last = 0;
};

// A unit of the chunk as its buckets, front to back.
struct PlacedUnit {
  std::vector<BucketRange> layers;  // ZeRO-3
  bool is_head = false;
  bool is_embedding = false;
};

// With fsdp_double_buffer layers whose buckets are those of most layers (the pool) are gathered
// into two buffers each that stay, and so are their gradients, whose reductions are in place: such
// buckets have no bytes of their own (FixedPoolAllocator).
struct PlacedChunk {
  std::vector<FsdpBucket> buckets;     // in model order
  std::vector<UnitSpan> spans;         // of each
  std::vector<std::int64_t> layer_of;  // of each: which layer of the chunk; none: kNoLayer
  std::vector<bool> is_pooled;         // by layer; none: no double buffers
  FsdpBucket pool;                     // both buffers
  std::vector<PlacedUnit> units;
  BucketRange layers;               // buckets of layers
  std::int64_t unit_elements = 0;   // of a layer on average, without padding
  std::int64_t front_elements = 0;  // between the embedding's bucket and the layers': the head's
  bool gathers_front = false;       // the head's bucket stands in front of the layers'

  static constexpr std::int64_t kNoLayer = -1;
  void add(const FsdpBucket& bucket, UnitSpan span, std::int64_t layer = kNoLayer) {
    buckets.push_back(bucket);
    spans.push_back(span);
    layer_of.push_back(layer);
  }
  bool has_pool() const { return !is_pooled.empty(); }
  bool is_of_pool(std::size_t bucket) const {
    return has_pool() && layer_of[bucket] != kNoLayer &&
           is_pooled[static_cast<std::size_t>(layer_of[bucket])];
  }
};

// Parameters outside layers are one group, whose buckets stand where its first one does
// (_get_parameter_groups): in front of the layers', the head's too, where there is an embedding.
PlacedChunk place_chunk(const Job& job, const Plan& plan, const ChunkLayout& layout,
                        const HeadBucket& head);

}  // namespace shardplan::megatron
