// What all rows of nanotron's blocks are written with: weight gradients, and a norm before a
// product. Sources, read in huggingface/nanotron at 2411b022 and v0.5:
//   models/llama.py (LlamaDecoderLayer, CausalSelfAttention, MLP, Loss), parallel/tensor_parallel/
//   functional.py (_ShardedCrossEntropy, column_linear, row_linear), nn/layer_norm.py; flash-attn
//   2.x layers/rotary.py and flash_attn_interface.py.
// Letters in block_rows.h. Weight gradients stay until loss.backward() returns: the fp32
// accumulator reads them then (optim/gradient_accumulator.py, FP32GradientAccumulator.backward).
// Order of tensors: traces of PyTorch's allocator (tools/measure_frameworks.py, "trace"); products
// make the gradient of their weight first. Where a kind of row needs more steps than there are
// names, the next free one stands for it: silu's backward at kBackwardFc2Weight, putting gate and
// up together at kBackwardFc1Gather, q, k and v at kBackwardQkvGather.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/ledger/block_rows.h"

namespace shardplan::nanotron {

struct NanotronBlock {
  const Job& job;
  const Plan& plan;
  BlockShape s;
  RowList& rows;

  std::int64_t sequence() const { return s.hidden * s.sharded_tokens; }
  std::int64_t full_sequence() const { return s.hidden * s.tokens; }
  std::int64_t query() const { return s.query_width * s.tokens; }
  std::int64_t key_value() const { return 2 * s.key_value_width * s.tokens; }
  bool is_mha() const { return job.model.num_heads == job.model.num_kv_heads; }
  // The input of a column-parallel linear layer as it is saved: gathered, unless the gather runs
  // again in backward.
  bool saves_gathered() const { return s.gathers_sequence && !job.profile.recompute_allgather; }
};

// A norm and the linear layer that takes its output: names of the rows, and steps.
struct NanotronNorm {
  std::string_view statistics;
  std::string_view output;
  std::string_view local_output;
  Step norm;
  Step product;
  Step last_local;  // that holds the output before it is gathered
  Step backward;
};

// A weight gradient in the weight's dtype: made by its product, alive until the backward of the
// microbatch has ended.
BlockRow& keep_weight_gradient(RowList& rows, std::string_view name, std::int64_t elements,
                               DType dtype, Step born);

void add_norm(NanotronBlock& b, const NanotronNorm& rows);

}  // namespace shardplan::nanotron
