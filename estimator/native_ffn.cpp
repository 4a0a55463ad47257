// Feed-forward part of a native layer: dense, and mixture of experts.
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
  Step backward_fc2 = Step::kBackwardFc2;
  Step backward_gate = Step::kBackwardActivation;
  Step backward_fc1 = Step::kBackwardFc1;
};
constexpr NativePair kFfn = {};
constexpr NativePair kShared = {.gate_up = "shared.gate_up",
                                .activation = "shared.activation",
                                .activation_gradient = "shared.activation_gradient",
                                .gate_up_gradient = "shared.gate_up_gradient",
                                .fc1 = Step::kForwardFfnNorm,
                                .gate = Step::kForwardFfnNorm,
                                .fc2 = Step::kForwardFfnNorm,
                                .backward_fc2 = Step::kBackwardFfnNorm,
                                .backward_gate = Step::kBackwardFfnNorm,
                                .backward_fc1 = Step::kBackwardFfnNorm};

// What is written again in backward, and from when on.
struct Again {
  bool gate_up = false;
  bool activation = false;
  Step from = Step::kBackwardFc2;
};

// `activations` = rows x width elements.
void add_pair(NativeBlock& block, const NativePair& pair, std::int64_t activations, Again again) {
  const BlockShape& s = block.shape;
  block.keep_or_write_again(
      again.gate_up, pair.gate_up, s.ffn_pieces * activations, s.dtype,
      {.born = pair.fc1, .last_forward_use = pair.gate, .dies = pair.backward_gate}, again.from,
      "2f*T/t");
  block.keep_or_write_again(again.activation || again.gate_up, pair.activation, activations,
                            s.dtype,
                            {.born = pair.gate,
                             .last_forward_use = pair.fc2,
                             .dies = block.weight_step(pair.backward_fc2)},
                            again.from, "f*T/t: written again in backward under recompute");
  block.rows.use(pair.activation_gradient, activations, s.dtype, pair.backward_fc2,
                 pair.backward_gate, "f*T/t");
  block.rows.use(pair.gate_up_gradient, s.ffn_pieces * activations, s.dtype, pair.backward_gate,
                 block.weight_step(pair.backward_fc1), "2f*T/t");
}

// Norm in front of the FFN; the step at which its output is last used differs.
void add_ffn_norm(NativeBlock& block, Step last_forward_use, Step last_use, Step gradient) {
  add_native_norm(
      block, {"ffn.input", "ffn.norm_statistics", "ffn.norm_output"},
      {.born = Step::kForwardProjection,
       .last_forward_use = Step::kForwardOutput,
       .dies = Step::kBackwardFfnNorm},
      {.born = Step::kForwardFfnNorm, .last_forward_use = last_forward_use, .dies = last_use});
  block.rows.use("ffn.norm_gradient", block.sequence(), block.shape.dtype, gradient,
                 Step::kBackwardFfnNorm, "h*u");
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
                            replay, "2*E*u: logits and probabilities, fp32");
  rows.use_as(comm, "experts.sent_tokens", s.hidden * sent, s.dtype, Step::kForwardDispatch,
              Step::kForwardDispatch, "topk*h*u");
  block.keep_or_write_again(whole, "experts.received_tokens", s.hidden * received, s.dtype,
                            {.born = Step::kForwardDispatch,
                             .last_forward_use = Step::kForwardFc1,
                             .dies = block.weight_step(Step::kBackwardFc1)},
                            replay, "moe_buffer_factor*topk*h*u*et: bounded, in expert order");
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
            .from = whole ? replay : Step::kBackwardFc2});
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
  add_ffn_norm(block, Step::kForwardFc1, block.weight_step(Step::kBackwardFc1), Step::kBackwardFc1);
  add_pair(block, kFfn, s.tokens * div_ceil(block.job.model.ffn, block.plan.tp),
           {.gate_up = false,
            .activation = block.recomputes(&RecomputeModules::mlp),
            .from = Step::kBackwardFc2});
  add_sequence_exchange(block,
                        {"ffn.gathered_input", "ffn.partial_output", "ffn.gathered_gradient",
                         "ffn.gathered_input_again", "ffn.partial_gradient"},
                        {.first = Step::kForwardFc1,
                         .second = Step::kForwardFc2,
                         .backward_second = Step::kBackwardFc2,
                         .backward_first = Step::kBackwardFc1});
}

void add_native_moe(NativeBlock& block) {
  add_ffn_norm(block, Step::kForwardDispatch, Step::kBackwardFfnNorm, Step::kBackwardDispatch);
  add_experts(block);
}

}  // namespace shardplan
