// Feed-forward part of a dense native layer.
#include "estimator/frameworks/native/ffn.h"

#include "estimator/frameworks/native/attention.h"
#include "estimator/frameworks/native/blocks.h"

namespace shardplan::native {
namespace {

// The gated pair of products; `activations` = rows x width elements.
void add_pair(NativeBlock& block, std::int64_t activations) {
  const BlockShape& s = block.shape;
  const NativeBlock::Hold held{.pushed = Step::kBackwardFc2, .popped = Step::kBackwardFc2Weight};
  block.rows.keep("ffn.gate_up", s.ffn_pieces * activations, s.dtype,
                  {.born = Step::kForwardFc1,
                   .last_forward_use = Step::kForwardActivation,
                   .dies = Step::kBackwardActivation},
                  "2f*T/t");
  block.keep_or_write_again(
      block.recomputes(&RecomputeModules::mlp), "ffn.activation", activations, s.dtype,
      {.born = Step::kForwardActivation,
       .last_forward_use = Step::kForwardFc2,
       .dies = block.weight_step(Step::kBackwardFc2Weight, Step::kWeightFc2)},
      Step::kBackwardActivation, "f*T/t: written again in backward under recompute", held);
  NativeBlock::hold(block.rows.use("ffn.activation_gradient", activations, s.dtype,
                                   Step::kBackwardFc2, Step::kBackwardActivation, "f*T/t"),
                    held);
  NativeBlock::hold(
      block.rows.use("ffn.gate_up_gradient", s.ffn_pieces * activations, s.dtype,
                     Step::kBackwardActivation,
                     block.weight_step(Step::kBackwardFc1Weight, Step::kWeightFc1), "2f*T/t"),
      {.pushed = Step::kBackwardFc2Gather, .popped = Step::kBackwardFfnNorm});
}

// Norm in front of the FFN; the steps at which its output is last used, and at which its gradient
// is there, differ.
void add_ffn_norm(NativeBlock& block, Step last_forward_use, Step last_use, Step gradient) {
  add_native_norm(block, {.input = "ffn.input",
                          .statistics = "ffn.norm_statistics",
                          .output = "ffn.norm_output",
                          .input_born = Step::kForwardFfnNorm,
                          .born = Step::kForwardFfnNorm,
                          .input_last_use = Step::kForwardOutput,
                          .last_use = last_forward_use,
                          .dies = last_use,
                          .again = Step::kBackwardFfnNormAgain,
                          .popped = Step::kBackwardFc1Weight,
                          .backward = Step::kBackwardFfnNorm,
                          .dropped_place = Place::kShared});
  NativeBlock::hold(block.rows.use("ffn.norm_gradient", block.sequence(), block.shape.dtype,
                                   gradient, Step::kBackwardFfnNorm, "h*u"),
                    {.pushed = Step::kBackwardFc2Gather, .popped = Step::kBackwardFfnNorm});
}

}  // namespace

void add_native_dense_ffn(NativeBlock& block) {
  const BlockShape& s = block.shape;
  const bool gathers = s.gathers_sequence;
  add_ffn_output_gradient(block, gathers ? Step::kWeightFc2Gather : Step::kWeightFc2);
  add_ffn_norm(block, gathers ? Step::kForwardFc1Gather : Step::kForwardFc1,
               gathers ? block.weight_step(Step::kBackwardFc1Gather, Step::kWeightFc1Gather)
                       : block.weight_step(Step::kBackwardFc1Weight, Step::kWeightFc1),
               gathers ? Step::kBackwardFc1Reduce : Step::kBackwardFc1);
  add_pair(block, s.tokens * div_ceil(block.job.model.ffn, block.plan.tp));
  NativeBlock::hold(block.rows.use("ffn.down", block.sequence(), s.dtype,
                                   gathers ? Step::kForwardFc2Reduce : Step::kForwardFc2,
                                   Step::kForwardOutput, "h*u: added to the residual stream"),
                    {.pushed = Step::kForwardFc2, .popped = Step::kForwardOutput});
}

}  // namespace shardplan::native
