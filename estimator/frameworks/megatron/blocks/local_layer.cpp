// Ends and dense feed-forward part of a Megatron-core layer under the local spec. Letters in
// block_rows.h. A local variable of a module's forward keeps its tensor until the module returns;
// autograd frees what an operation saved once its backward has run.
#include "estimator/frameworks/megatron/blocks/local_layer.h"

#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/blocks/linear.h"

namespace shardplan::megatron {

// What passes through the layer and its first norm. torch.nn.RMSNorm saves its input and one fp32
// statistic per token; residual adds and dropout with p = 0 save nothing.
void add_local_layer_ends(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  rows.keep("input", sequence, s.dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardNorm},
            "h*u: residual stream, saved as input of the attention norm")
      .is_taken_over = true;
  rows.keep("attention.norm_statistics", s.sharded_tokens, DType::kFp32,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardNorm,
             .dies = Step::kBackwardNorm},
            "u: reciprocal root mean square, fp32");
  keep_or_recompute(block, block.selective() && block.recomputed().layernorm, Step::kBackwardQkv,
                    "attention.norm_output", sequence, s.dtype,
                    {.born = Step::kForwardNorm,
                     .last_forward_use = Step::kForwardProjectionReduce,
                     .dies = Step::kBackwardQkv},
                    "h*u: saved by the product, sharded; gathered again in backward");
  BlockRow& gradient = rows.use(
      "output_gradient", sequence, s.dtype, Step::kBackwardOutput, Step::kBackwardInput,
      "h*u: of the residual stream: arrives from the next layer, leaves to the one before");
  gradient.is_taken_over = true;
  gradient.is_handed_on = true;
  rows.use("attention.input_gradient", sequence, s.dtype, Step::kBackwardNorm, Step::kBackwardNorm,
           "h*u: of the norm, added to the residual stream's");
  rows.use("output", sequence, s.dtype, Step::kForwardOutput, Step::kForwardOutput,
           "h*u: becomes the input of the next layer")
      .is_handed_on = true;
  // tensor_parallel/random.py, CheckpointFunction.backward: outputs and args.
  rows.use("replay.output", sequence, s.dtype, Step::kBackwardOutput, Step::kBackwardInput,
           "h*u: output of the replayed group, held until its backward returns")
      .is_of_group = true;
  rows.use("replay.output_gradient", sequence, s.dtype, Step::kBackwardFfnNorm,
           Step::kBackwardInput,
           "h*u: held beside the residual stream's gradient, which becomes a tensor of its own")
      .is_of_group = true;
}

void add_local_ffn_norm(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  const RecomputeModules& modules = block.recomputed();
  rows.keep("ffn.input", sequence, s.dtype,
            {.born = Step::kForwardProjectionReduce,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardFfnNorm},
            "h*u: residual stream, saved as input of the FFN norm");
  rows.keep("ffn.norm_statistics", s.sharded_tokens, DType::kFp32,
            {.born = Step::kForwardFfnNorm,
             .last_forward_use = Step::kForwardFfnNorm,
             .dies = Step::kBackwardFfnNorm},
            "u: reciprocal root mean square, fp32");
  keep_or_recompute(block, block.selective() && modules.layernorm && !modules.mlp,
                    block.is_moe ? Step::kBackwardOutput : Step::kBackwardFc1, "ffn.norm_output",
                    sequence, s.dtype,
                    {.born = Step::kForwardFfnNorm,
                     .last_forward_use = Step::kForwardOutput,
                     .dies = block.is_moe ? Step::kBackwardFfnNorm : Step::kBackwardFc1},
                    "h*u: saved by the product (or as input of a recomputed mlp), sharded");
}

void add_local_ffn_norm_gradient(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  rows.use("ffn.norm_gradient", sequence, s.dtype,
           block.is_moe ? Step::kBackwardDispatch : Step::kBackwardFc1, Step::kBackwardFfnNorm,
           "h*u: gradient of the norm's output");
  rows.use("ffn.input_gradient", sequence, s.dtype, Step::kBackwardFfnNorm, Step::kBackwardFfnNorm,
           "h*u: of the norm, added to the residual stream's")
      .is_added = true;
}

// SwiGLU is one compiled kernel each way (core/jit.py): only fc1's output is saved.
void add_local_dense_ffn(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t width = div_ceil(block.job.model.ffn, block.plan.tp);
  const std::int64_t inner = s.tokens * width;
  const std::int64_t full = s.hidden * s.tokens;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  const bool replays = block.selective() && block.recomputed().mlp;
  add_local_ffn_norm(block);
  keep_or_recompute(block, replays, Step::kBackwardOutput, "ffn.fc1_output", s.ffn_pieces * inner,
                    s.dtype,
                    {.born = Step::kForwardFc1,
                     .last_forward_use = Step::kForwardActivation,
                     .dies = Step::kBackwardActivation},
                    "2f*T/t: gate and up, saved as input of the activation");
  keep_or_recompute(block, replays, Step::kBackwardOutput, "ffn.activation_output", inner, s.dtype,
                    {.born = Step::kForwardActivation,
                     .last_forward_use = Step::kForwardFc2,
                     .dies = Step::kBackwardFc2},
                    "f*T/t: input of the second product");
  if (s.gathers_sequence) {
    rows.use("ffn.full_output", full, s.dtype, Step::kForwardFc2, Step::kForwardFc2,
             "h*T: partial sums before the reduce-scatter");
  }
  rows.use("ffn.output", sequence, s.dtype, Step::kForwardFc2, Step::kForwardOutput,
           "h*u: before the residual add");
  if (replays) {
    rows.use("ffn.replayed_output", sequence, s.dtype, Step::kBackwardOutput, Step::kBackwardFc1,
             "h*u: output of the replay, held by CheckpointFunction.backward");
  }
  if (s.gathers_sequence) {
    rows.use("ffn.replayed_full_output", replays ? full : 0, s.dtype, Step::kBackwardOutput,
             Step::kBackwardOutput, "h*T: partial sums of the replay");
    rows.use("ffn.gathered_output_gradient", full, s.dtype, Step::kBackwardFc2, Step::kBackwardFc2,
             "h*T: gathered for both products of the second linear layer");
    rows.use("ffn.full_norm_gradient", full, s.dtype, Step::kBackwardFc1, Step::kBackwardFc1,
             "h*T: input gradient before its reduce-scatter");
  }
  add_local_ffn_norm_gradient(block);
  rows.use("ffn.activation_gradient", inner, s.dtype, Step::kBackwardFc2, Step::kBackwardActivation,
           "f*T/t")
      .is_first_product = true;
  rows.use("ffn.fc1_gradient", s.ffn_pieces * inner, s.dtype, Step::kBackwardActivation,
           Step::kBackwardFc1, "2f*T/t");
  add_weight_gradient(block, "ffn.fc1_weight_gradient", s.ffn_pieces * s.hidden * width,
                      Step::kBackwardFc1);
  add_weight_gradient(block, "ffn.fc2_weight_gradient", s.hidden * width, Step::kBackwardFc2);
}

}  // namespace shardplan::megatron
