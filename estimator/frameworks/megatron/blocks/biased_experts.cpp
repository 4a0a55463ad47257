// Read in Megatron-LM core_v0.16.1: core/fusions/fused_bias_geglu.py
// (weighted_bias_quick_geglu_impl), core/transformer/mlp.py and core/transformer/moe/experts.py
// (TEGroupedMLP). Letters in block_rows.h.
#include "estimator/frameworks/megatron/blocks/biased_experts.h"

#include <algorithm>

#include "estimator/frameworks/megatron/blocks/dispatch.h"
#include "estimator/frameworks/megatron/blocks/linear.h"

namespace shardplan::megatron {
namespace {

constexpr Life kActivated = {.born = Step::kForwardActivation,
                             .last_forward_use = Step::kForwardActivation,
                             .dies = Step::kBackwardActivation};

// The fused activation saves both halves bounded and put together, and bounding them the product's
// output. Backward first has the gradients of what was put together, then those of the halves, and
// with them no more than at first.
void add_fused_clamp(MegatronBlock& block, std::int64_t activations, bool recomputed,
                     Step replayed) {
  keep_or_recompute(block, recomputed, replayed, "experts.clamped_halves", 2 * activations,
                    block.shape.dtype, kActivated,
                    "2f*rows: gate and up bounded and put together, saved by the activation");
  block.rows.use("experts.clamped_parts", activations, block.shape.dtype, Step::kForwardActivation,
                 Step::kForwardActivation,
                 "f*rows: each half before they are put together, less the output made behind");
}

// Operator by operator: quick_gelu saves the bounded gate, the product with 1 + up both factors.
void add_clamp_by_operators(MegatronBlock& block, std::int64_t activations, bool recomputed,
                            Step replayed) {
  keep_or_recompute(block, recomputed, replayed, "experts.clamped_gate", activations,
                    block.shape.dtype, kActivated, "f*rows: the bounded gate, saved by quick_gelu");
  keep_or_recompute(block, recomputed, replayed, "experts.shifted_up", activations,
                    block.shape.dtype, kActivated, "f*rows: 1 + up, saved by the product");
  block.rows.use("experts.clamped_parts", activations, block.shape.dtype, Step::kForwardActivation,
                 Step::kForwardActivation, "f*rows: bounded up, before 1 is added");
}

}  // namespace

void add_clamped_gate(MegatronBlock& block, std::int64_t activations, bool recomputed,
                      Step replayed) {
  if (block.job.model.activation != Activation::kClampedSwiglu) {
    return;
  }
  if (block.job.profile.swiglu == SwigluKind::kUnfused) {
    add_clamp_by_operators(block, activations, recomputed, replayed);
  } else {
    add_fused_clamp(block, activations, recomputed, replayed);
  }
}

// _apply_bias: outputs of each expert with its bias, which the rows' probabilities weigh, and all
// put together, in the type of the probabilities; in fp32 cast back. Experts that take turns add
// theirs in place. Backward: of each expert the gradients of both factors of its weighted bias, of
// frozen biases of one, and the parts put together.
void add_expert_biases(MegatronBlock& block, std::int64_t rows, std::int64_t activations) {
  const Job& job = block.job;
  if (!job.model.moe.biased_experts) {
    return;
  }
  const bool takes_turns = expert_turns(block) > 1;
  const std::int64_t elements = block.routed_width() * rows;
  const std::int64_t of_expert =
      div_ceil(elements, div_ceil(job.model.moe.num_experts, block.plan.ep));
  const bool is_fp32 = job.profile.moe_router_dtype == DType::kFp32;
  const DType dtype = is_fp32 ? DType::kFp32 : block.shape.dtype;
  block.rows.use("experts.biased_outputs", takes_turns ? of_expert : 2 * elements, dtype,
                 Step::kForwardFc2, Step::kForwardFc2,
                 "2*h*rows: with biases, of each expert and put together");
  const std::int64_t factors = (trains_adapters(job) ? 1 : 2) * of_expert;
  const std::int64_t gradients = takes_turns ? factors
                                 : is_fp32   ? elements + factors
                                             : std::max(elements, factors);
  const std::int64_t later = activations * bytes_of(block.shape.dtype) / bytes_of(dtype);
  block.rows.use(
      "experts.bias_gradients", std::max<std::int64_t>(0, gradients - later), dtype,
      Step::kBackwardFc2, Step::kBackwardFc2,
      "h*rows: of biased outputs, and of the factors of one expert's weighted bias, less "
      "the gradient of the activation, made behind them");
}

}  // namespace shardplan::megatron
