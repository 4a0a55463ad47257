// Read in Megatron-LM core_v0.16.1 core/transformer/moe/moe_layer.py (MoELayer: fc1_latent_proj,
// fc2_latent_proj, preprocess, postprocess) and core/extensions/transformer_engine.py (TELinear,
// parallel_mode duplicated): linear layers whole on every rank, that work on this rank's part of
// the sequence and gather nothing. Letters in block_rows.h; l the width that experts see.
#include "estimator/frameworks/megatron/blocks/latent.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/blocks/linear.h"

namespace shardplan::megatron {
namespace {

std::int64_t latent_elements(const MegatronBlock& block) {
  return block.job.model.moe.latent * block.shape.sharded_tokens;
}

// The dispatchers of whole tokens, all-gather and flex, give back what they were given, which the
// layer's forward holds; the all-to-all gives copies of it (token_dispatcher.py,
// dispatch_preprocess).
Step last_use_of_tokens(const MegatronBlock& block) {
  return block.job.profile.moe_dispatcher == MoeDispatcher::kAllToAll ? Step::kForwardDispatch
                                                                      : Step::kForwardCombine;
}

}  // namespace

// Its input is the norm's output, which the router saves in bf16 anyway; no permutation saves its
// output.
void add_latent_input(MegatronBlock& block, bool recomputed) {
  const BlockShape& s = block.shape;
  const std::int64_t latent = latent_elements(block);
  if (latent == 0) {
    return;
  }
  const std::int64_t whole = s.hidden * s.sharded_tokens;
  const bool is_fp8 = block.plan.precision == Precision::kFp8;
  keep_or_recompute(block, recomputed, Step::kBackwardCombine, "latent.fc1_input_fp8",
                    is_fp8 ? block.linear_elements(whole) : 0, DType::kFp8,
                    {.born = Step::kForwardDispatch,
                     .last_forward_use = Step::kForwardDispatch,
                     .dies = block.weight_step(Step::kBackwardDispatch)},
                    "h*u: the norm's output in fp8, which the router saves in bf16");
  block.rows.use("latent.tokens", latent, s.dtype, Step::kForwardDispatch,
                 last_use_of_tokens(block), "l*u: tokens projected for the experts");
  block.rows.use("latent.token_gradient", latent, s.dtype, Step::kBackwardDispatch,
                 block.weight_step(Step::kBackwardDispatch),
                 "l*u: gradients of a token's copies, added up");
  add_fp8_cast(block, "latent.token_gradient_fp8", latent, Step::kBackwardDispatch);
  add_linear_gradient(block, "latent.fc1_weight_gradient", s.hidden * block.routed_width(),
                      block.weight_step(Step::kBackwardDispatch));
}

void add_latent_output(MegatronBlock& block, bool recomputed) {
  const BlockShape& s = block.shape;
  const std::int64_t latent = latent_elements(block);
  if (latent == 0) {
    return;
  }
  const bool is_fp8 = block.plan.precision == Precision::kFp8;
  block.rows.use("latent.combined_tokens_bf16", is_fp8 ? latent : 0, s.dtype, Step::kForwardCombine,
                 Step::kForwardCombine,
                 "l*u: outputs of experts added up by token, before they are cast to fp8");
  keep_or_recompute(block, recomputed, Step::kBackwardCombine, "latent.combined_tokens",
                    block.linear_elements(latent), block.linear_dtype(),
                    {.born = Step::kForwardCombine,
                     .last_forward_use = Step::kForwardCombine,
                     .dies = block.weight_step(Step::kBackwardCombine)},
                    "l*u: outputs of experts added up by token, input of the projection back");
  add_fp8_cast(block, "latent.output_gradient_fp8", s.hidden * s.sharded_tokens,
               Step::kBackwardCombine);
  block.rows.use("latent.combined_gradient", latent, s.dtype, Step::kBackwardCombine,
                 Step::kBackwardCombine, "l*u");
  add_linear_gradient(block, "latent.fc2_weight_gradient", s.hidden * block.routed_width(),
                      block.weight_step(Step::kBackwardCombine));
}

}  // namespace shardplan::megatron
