// Feed-forward part of a native layer: dense, and mixture of experts.
#include <algorithm>

#include "estimator/block_rows_native.h"

namespace shardplan {
namespace {

// Names and steps of one gated pair of products; the shared experts run inside the norm's step.
struct NativePair {
  std::string_view gate_up = "ffn.gate_up";
  std::string_view activation = "ffn.activation";
  std::string_view activation_gradient = "ffn.activation_gradient";
  std::string_view gate_up_gradient = "ffn.gate_up_gradient";
  Step fc1 = Step::kForwardFc1;
  Step gate = Step::kForwardActivation;
  Step fc2 = Step::kForwardFc2;
  Step gather = Step::kBackwardFc2Gather;
  Step backward_fc2 = Step::kBackwardFc2;
  Step backward_gate = Step::kBackwardActivation;
  Step fc2_weight = Step::kBackwardFc2Weight;
  Step fc1_weight = Step::kBackwardFc1Weight;
};
constexpr NativePair kFfn = {};
constexpr NativePair kShared = {.gate_up = "shared.gate_up",
                                .activation = "shared.activation",
                                .activation_gradient = "shared.activation_gradient",
                                .gate_up_gradient = "shared.gate_up_gradient",
                                .fc1 = Step::kForwardFfnNorm,
                                .gate = Step::kForwardFfnNorm,
                                .fc2 = Step::kForwardFfnNorm,
                                .gather = Step::kBackwardFfnNorm,
                                .backward_fc2 = Step::kBackwardFfnNorm,
                                .backward_gate = Step::kBackwardFfnNorm,
                                .fc2_weight = Step::kBackwardFfnNorm,
                                .fc1_weight = Step::kBackwardFfnNorm};

// What is written again in backward, and from when on; the activation alone together with the
// gradient behind it.
struct Again {
  bool gate_up = false;
  bool activation = false;
  Step from = Step::kBackwardActivation;
};

// `activations` = rows x width elements.
void add_pair(NativeBlock& block, const NativePair& pair, std::int64_t activations, Again again) {
  const BlockShape& s = block.shape;
  const NativeBlock::Hold held{.pushed = std::min(again.from, pair.backward_fc2),
                               .popped = pair.fc2_weight};
  block.keep_or_write_again(
      again.gate_up, pair.gate_up, s.ffn_pieces * activations, s.dtype,
      {.born = pair.fc1, .last_forward_use = pair.gate, .dies = pair.backward_gate}, again.from,
      "2f*T/t", held);
  block.keep_or_write_again(
      again.activation || again.gate_up, pair.activation, activations, s.dtype,
      {.born = pair.gate, .last_forward_use = pair.fc2, .dies = block.weight_step(pair.fc2_weight)},
      again.from, "f*T/t: written again in backward under recompute", held);
  block.rows
      .use(pair.activation_gradient, activations, s.dtype, pair.backward_fc2, pair.backward_gate,
           "f*T/t")
      .popped = pair.fc2_weight;
  NativeBlock::hold(
      block.rows.use(pair.gate_up_gradient, s.ffn_pieces * activations, s.dtype, pair.backward_gate,
                     block.weight_step(pair.fc1_weight), "2f*T/t"),
      {.pushed = pair.gather, .popped = Step::kBackwardFfnNorm});
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

// Received rows are bounded by ceil(moe_buffer_factor * u * topk); counts stay on the device.
void add_experts(NativeBlock& block) {
  const BlockShape& s = block.shape;
  const MoeSpec& moe = block.job.model.moe;
  RowList& rows = block.rows;
  const std::int64_t sent = s.sharded_tokens * moe.topk;
  const std::int64_t received = scaled(sent, block.plan.moe_buffer_factor) * block.plan.etp;
  const Component comm = Component::kCommunication;
  const bool whole = block.recomputes(&RecomputeModules::moe);
  const Step replay = Step::kBackwardCombine;
  block.keep_or_write_again(whole, "router.scores", 2 * moe.num_experts * s.sharded_tokens,
                            DType::kFp32,
                            {.born = Step::kForwardFfnNorm,
                             .last_forward_use = Step::kForwardCombine,
                             .dies = Step::kBackwardFfnNorm},
                            replay, "2*E*u: logits and probabilities, fp32",
                            {.pushed = replay, .popped = Step::kBackwardFfnNorm});
  rows.use_as(comm, "experts.sent_tokens", s.hidden * sent, s.dtype, Step::kForwardDispatch,
              Step::kForwardDispatch, "topk*h*u");
  block.keep_or_write_again(whole, "experts.received_tokens", s.hidden * received, s.dtype,
                            {.born = Step::kForwardDispatch,
                             .last_forward_use = Step::kForwardFc1,
                             .dies = block.weight_step(Step::kBackwardFc1)},
                            replay, "moe_buffer_factor*topk*h*u*et: bounded, in expert order",
                            {.pushed = replay, .popped = Step::kBackwardFc1});
  rows.use("experts.output", s.hidden * received, s.dtype, Step::kForwardFc2, Step::kForwardCombine,
           "moe_buffer_factor*topk*h*u*et");
  rows.use_as(comm, "experts.returned_tokens", s.hidden * sent, s.dtype, Step::kForwardCombine,
              Step::kForwardCombine, "topk*h*u");
  rows.use_as(comm, "experts.sent_gradient", s.hidden * sent, s.dtype, Step::kBackwardCombine,
              Step::kBackwardCombine, "topk*h*u");
  rows.use_as(comm, "experts.received_gradient", s.hidden * received, s.dtype,
              Step::kBackwardCombine, block.weight_step(Step::kBackwardFc2),
              "moe_buffer_factor*topk*h*u*et");
  rows.use("experts.input_gradient", s.hidden * received, s.dtype, Step::kBackwardFc1,
           Step::kBackwardDispatch, "moe_buffer_factor*topk*h*u*et");
  rows.use_as(comm, "experts.returned_gradient", s.hidden * sent, s.dtype, Step::kBackwardDispatch,
              Step::kBackwardDispatch, "topk*h*u");
  add_pair(block, kFfn, received * div_ceil(moe.expert_ffn, block.plan.etp),
           {.gate_up = whole,
            .activation = block.recomputes(&RecomputeModules::moe_act),
            .from = whole ? replay : Step::kBackwardActivation});
  if (moe.shared_ffn > 0) {
    add_pair(block, kShared, s.tokens * div_ceil(moe.shared_ffn, block.plan.tp),
             {.gate_up = whole || block.recomputes(&RecomputeModules::shared_experts),
              .activation = false,
              .from = whole ? replay : Step::kBackwardFfnNorm});
  }
}

}  // namespace

void add_native_dense_ffn(NativeBlock& block) {
  const BlockShape& s = block.shape;
  const bool gathers = s.gathers_sequence;
  add_ffn_norm(block, gathers ? Step::kForwardFc1Gather : Step::kForwardFc1,
               block.weight_step(gathers ? Step::kBackwardFc1Gather : Step::kBackwardFc1Weight),
               gathers ? Step::kBackwardFc1Reduce : Step::kBackwardFc1);
  add_pair(block, kFfn, s.tokens * div_ceil(block.job.model.ffn, block.plan.tp),
           {.activation = block.recomputes(&RecomputeModules::mlp)});
  NativeBlock::hold(block.rows.use("ffn.down", block.sequence(), s.dtype,
                                   gathers ? Step::kForwardFc2Reduce : Step::kForwardFc2,
                                   Step::kForwardOutput, "h*u: added to the residual stream"),
                    {.pushed = Step::kForwardFc2, .popped = Step::kForwardOutput});
  add_sequence_exchange(block,
                        {.gathered = "ffn.gathered_input",
                         .partial = "ffn.down.partial",
                         .gathered_gradient = "ffn.gathered_gradient",
                         .partial_gradient = "ffn.norm_gradient.partial"},
                        {.gather = Step::kForwardFc1Gather,
                         .first = Step::kForwardFc1,
                         .second = Step::kForwardFc2,
                         .reduce = Step::kForwardFc2Reduce,
                         .gather_gradient = Step::kBackwardFc2Gather,
                         .second_weight = Step::kBackwardFc2Weight,
                         .gradient_popped = Step::kBackwardFc2Weight,
                         .gather_again = Step::kBackwardFc1Gather,
                         .first_gradient = Step::kBackwardFc1,
                         .reduce_gradient = Step::kBackwardFc1Reduce,
                         .first_weight = Step::kBackwardFc1Weight});
}

void add_native_moe(NativeBlock& block) {
  add_ffn_norm(block, Step::kForwardDispatch, Step::kBackwardFfnNorm, Step::kBackwardDispatch);
  add_experts(block);
}

}  // namespace shardplan
