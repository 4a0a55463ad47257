// Parameter tensors of one pipeline rank: sizes after tensor and expert parallelism, padding of
// Megatron's contiguous buffers, shapes of linear weights.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/ledger/stage_layout.h"
#include "estimator/plan/parameters.h"

namespace shardplan {

// Elements of a chunk's contiguous buffers, padding included.
struct ChunkBuffers {
  std::int64_t dense = 0;
  std::int64_t expert = 0;
};

struct StageTensors {
  std::int64_t dense = 0;  // elements on one rank
  std::int64_t expert = 0;
  std::int64_t dense_linear = 0;   // of the dense ones those of linear layers; the experts' all are
  std::int64_t dense_padding = 0;  // elements of padding in contiguous buffers
  std::int64_t expert_padding = 0;
  std::int64_t linear_padding =
      0;  // where fp8 weights of the dense ones have a buffer of their own
  std::vector<ChunkBuffers> chunks;
  std::int64_t largest_dense_tensor = 0;
  std::int64_t largest_chunk = 0;  // dense and expert, of one model chunk
  std::int64_t largest_chunk_linear = 0;
  std::int64_t largest_layer_dense = 0;  // of one layer of the stage, the largest
  std::int64_t largest_layer_expert = 0;
  std::int64_t layers_dense = 0;  // of all its layers; the rest are embedding, head, norms
  std::int64_t layers_expert = 0;
};

// How contiguous buffers are cut. A bucket has at least so many elements, 0: the buffer is one.
struct ContiguousBuffers {
  std::int64_t dense_bucket = 0;  // in the first chunk of the first pipeline rank
  std::int64_t expert_bucket = 0;
  bool linear_apart = false;  // weights of dense linear layers have a buffer of their own
};

StageTensors stage_tensors(const Job& job, const Plan& plan, const StageLayout& stage,
                           const ContiguousBuffers& cut);

// Elements of one block on one rank; before ZeRO-3 divides them.
LocalParameters block_parameters(const Job& job, const Plan& plan, BlockKind kind);

// Shape of the weight of a linear layer on one rank, and how many the block has.
struct WeightShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t count = 1;
  friend bool operator==(const WeightShape&, const WeightShape&) = default;
};

std::vector<WeightShape> weight_shapes(const Job& job, const Plan& plan, BlockKind kind);
// Of these the routed experts'.
std::vector<WeightShape> expert_weight_shapes(const Job& job, const Plan& plan);

}  // namespace shardplan
