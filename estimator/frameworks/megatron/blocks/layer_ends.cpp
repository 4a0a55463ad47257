// Ends of a layer of Transformer Engine under Megatron: the residual stream, the norm in front of
// what mixes tokens, and the product behind that norm. Letters in block_rows.h.
#include "estimator/frameworks/megatron/blocks/layer_ends.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/blocks/linear.h"

namespace shardplan::megatron {
namespace {

// Whether the product behind the norm has an adapter.
bool adapts_mixer_front(const MegatronBlock& block) {
  return block.layer.mixer == MixerKind::kAttention ? adapts_qkv(block.job)
                                                    : adapts_mixer_input(block.job);
}

// The gathered sequence is the norm's input, saved by it; its gradient is divided again.
void add_gather_in_front(MegatronBlock& block) {
  const std::int64_t whole = block.shape.hidden * block.shape.tokens;
  const DType dtype = block.shape.dtype;
  block.rows.keep("attention.gathered_input", whole, dtype,
                  {.born = Step::kForwardNorm,
                   .last_forward_use = Step::kForwardQkv,
                   .dies = Step::kBackwardNorm},
                  "h*T: gathered in front of the norm, which saves it");
  block.rows.use("attention.full_norm_gradient", whole, dtype, Step::kBackwardQkv,
                 Step::kBackwardNorm, "h*T: gradient of the norm's output, then of its input");
}

bool has_mixer(const MegatronBlock& block) {
  return block.layer.mixer != MixerKind::kNone;
}

// A layer of one part has one norm, whose input is the layer's, and adds its residual once.
void add_residual_stream(MegatronBlock& block) {
  const std::int64_t sequence = block.shape.hidden * block.shape.sharded_tokens;
  const DType dtype = block.shape.dtype;
  RowList& rows = block.rows;
  const bool mixes = has_mixer(block);
  const bool has_ffn = block.layer.has_ffn;
  const bool is_gathered = gathers_in_front(block.job, block.plan, block.layer);
  const bool is_checkpointed = block.plan.recompute.granularity == RecomputeGranularity::kFull;
  const Step norm_backward = mixes ? Step::kBackwardNorm : Step::kBackwardFfnNorm;
  keep_where_saved(block, !is_gathered || is_checkpointed, "input", sequence, dtype,
                   {.born = Step::kForwardInput,
                    .last_forward_use = mixes ? Step::kForwardProjection : Step::kForwardOutput,
                    .dies = norm_backward},
                   "h*u: residual stream, saved as input of the attention norm");
  rows.use("output_gradient", sequence, dtype, Step::kBackwardOutput,
           has_ffn ? Step::kBackwardFfnNorm : norm_backward,
           "h*u: arrives from the next layer, kept for the residual path");
  rows.use("ffn_input_gradient", mixes && has_ffn ? sequence : 0, dtype, Step::kBackwardFfnNorm,
           Step::kBackwardNorm, "h*u: gradient between attention and FFN, residual added");
  rows.use("input_gradient", sequence, dtype, norm_backward, Step::kBackwardInput,
           "h*u: leaves to the layer before");
  rows.use("output", sequence, dtype, has_ffn ? Step::kForwardOutput : Step::kForwardProjection,
           Step::kForwardOutput, "h*u: becomes the input of the next layer");
}

// Of latent attention the norm stands alone, and its output is the down-projections' input.
bool saves_norm_output(const MegatronBlock& block) {
  const bool has_adapter = adapts_mixer_front(block);
  return separate_norms(block.job, block.is_moe).attention ? saves_input(block, has_adapter)
                                                           : saves_normed_input(block, has_adapter);
}

// The norm in front of what mixes tokens, part of the product behind it.
void add_mixer_norm(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t parts =
      gathers_in_front(block.job, block.plan, block.layer) ? block.plan.tp : 1;
  const std::int64_t sequence = parts * s.hidden * s.sharded_tokens;
  rows.keep("attention.norm_statistics", parts * norm_statistics(block), DType::kFp32,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardNorm,
             .dies = Step::kBackwardNorm},
            "u: reciprocal root mean square (LayerNorm: and the mean), fp32");
  const Life norm{
      .born = Step::kForwardNorm,
      .last_forward_use = Step::kForwardQkv,
      .dies = s.gathers_sequence ? Step::kBackwardQkv : block.weight_step(Step::kBackwardQkv)};
  // Computed again when the gradient of attention's output arrives (transformer_layer.py,
  // input_layernorm_checkpoint).
  const bool recomputed = block.selective() && block.recomputed().layernorm &&
                          separate_norms(block.job, block.is_moe).attention;
  rows.use("attention.norm_output_again", recomputed ? sequence : 0, s.dtype,
           Step::kBackwardProjection, Step::kBackwardNorm, kComputedAgain);
  if (saves_norm_output(block)) {
    keep_or_recompute(block, recomputed, Step::kBackwardProjection, "attention.norm_output",
                      block.linear_elements(sequence), block.linear_dtype(), norm,
                      "h*u: saved sharded by the linear layer, gathered again in backward");
  } else {
    rows.use("attention.norm_output", sequence, s.dtype, norm.born, norm.last_forward_use,
             "h*u: freed behind the frozen product (LayerNormLinear)");
  }
}
}  // namespace

void add_input_gathers(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  if (gathers_in_front(block.job, block.plan, block.layer)) {
    return add_gather_in_front(block);
  }
  if (s.gathers_sequence && !has_local_layers(block.job)) {
    rows.use("attention.gathered_norm_output", block.linear_elements(s.hidden * s.tokens),
             block.linear_dtype(), Step::kForwardQkv, Step::kForwardQkv,
             "h*T: LayerNormLinear gathers its input for the product and frees it");
    rows.use("attention.gathered_norm_output_again",
             trains_linears(block) ? block.gathered_again(s.hidden * s.tokens) : 0,
             block.linear_dtype(), Step::kBackwardQkv, block.weight_step(Step::kBackwardQkv),
             "h*T: gathered again for the weight gradient");
  }
  if (s.gathers_sequence) {
    rows.use("attention.full_norm_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardQkv,
             Step::kBackwardQkv, "h*T: input gradient before its reduce-scatter");
  }
}

void add_input_gradients(MegatronBlock& block, std::int64_t width) {
  const BlockShape& s = block.shape;
  block.rows.use("attention.norm_gradient", s.hidden * s.sharded_tokens, s.dtype,
                 Step::kBackwardQkv, Step::kBackwardNorm, "h*u: gradient of the norm's output");
  add_fp8_cast(block, "attention.packed_qkv_gradient_fp8", s.tokens * width, Step::kBackwardQkv);
  add_linear_gradient(block, "attention.qkv_weight_gradient", s.hidden * width,
                      block.weight_step(Step::kBackwardQkv));
}

void add_layer_input(MegatronBlock& block) {
  add_residual_stream(block);
  if (has_mixer(block)) {
    add_mixer_norm(block);
  }
}

}  // namespace shardplan::megatron
