// Mixture-of-experts part of a native layer. Letters beside those of block_rows.h: n choices of a
// token, w = T/t tokens that this rank routes, R rows that it can receive for its experts, fs width
// of the shared experts, b sequences of a microbatch.
#include "estimator/frameworks/native/moe.h"

#include "estimator/frameworks/native/attention.h"
#include "estimator/frameworks/native/blocks.h"

namespace shardplan::native {
namespace {

struct MoeBlock {
  NativeBlock& block;
  std::int64_t routed = 0;         // w
  std::int64_t choices = 0;        // n
  std::int64_t received = 0;       // R
  std::int64_t experts = 0;        // E of the model
  std::int64_t local_experts = 0;  // E / e
  std::int64_t members = 0;        // e * et ranks exchange rows
  std::int64_t expert_width = 0;   // fe / et
  std::int64_t shared_width = 0;   // fs / t
  bool again = false;              // everything is dropped and written again
  bool shared_again = false;       // the shared experts alone
  bool gathers = false;            // sequence parallelism
  bool has_shared() const { return shared_width > 0; }
};

MoeBlock moe_block(NativeBlock& block) {
  const MoeSpec& moe = block.job.model.moe;
  const Plan& plan = block.plan;
  MoeBlock m{.block = block,
             .routed = div_ceil(block.shape.tokens, plan.tp),
             .choices = moe.topk,
             .experts = moe.num_experts,
             .local_experts = div_ceil(moe.num_experts, plan.ep),
             .members = plan.ep * plan.etp,
             .expert_width = div_ceil(moe.expert_ffn, plan.etp),
             .shared_width = div_ceil(moe.shared_ffn, plan.tp),
             .again = block.recomputes(&RecomputeModules::moe),
             .gathers = block.shape.gathers_sequence};
  m.received = scaled(m.routed * m.choices * plan.etp, plan.moe_buffer_factor);
  m.shared_again = !m.again && block.recomputes(&RecomputeModules::shared_experts);
  return m;
}

constexpr NativeBlock::Hold kReplayed = {.pushed = Step::kBackwardRouterAgain,
                                         .popped = Step::kBackwardRouterWeight};

// What the router decides. Its counts are summed over the ranks that divide a sequence.
void add_decisions(MoeBlock& m) {
  NativeBlock& block = m.block;
  const auto add = [&](std::string_view name, std::int64_t elements, DType dtype, Life life,
                       Step again, std::string_view formula) {
    block.keep_or_write_again(m.again, name, elements, dtype, life, again, formula, kReplayed);
  };
  add("router.probabilities", m.experts * m.routed, DType::kFp32,
      {.born = Step::kForwardRouter,
       .last_forward_use = Step::kForwardChoices,
       .dies = Step::kBackwardRouter},
      Step::kBackwardRouterAgain, "E*w: over the logits, fp32");
  add("router.choices", m.choices * m.routed, DType::kInt32,
      {.born = Step::kForwardChoices,
       .last_forward_use = Step::kForwardCombine,
       .dies = Step::kBackwardRouter},
      Step::kBackwardChoicesAgain, "n*w: experts");
  add("router.rows", m.choices * m.routed, DType::kInt32,
      {.born = Step::kForwardRows,
       .last_forward_use = Step::kForwardCombine,
       .dies = Step::kBackwardFc1Reduce},
      Step::kBackwardRowsAgain, "n*w: where they go");
  const Step last_count = block.plan.tp * block.plan.cp > 1 ? Step::kForwardCountsReduce
                          : m.members > 1                   ? Step::kForwardCountsGather
                                                            : Step::kForwardRows;
  add("router.counts", m.experts * block.plan.micro_batch, DType::kFp32,
      {.born = Step::kForwardChoices,
       .last_forward_use = last_count,
       .dies = Step::kBackwardRouter},
      Step::kBackwardChoicesAgain, "E*b: choices of every sequence, for the auxiliary loss");
  add("experts.offsets", m.local_experts + 1, DType::kInt32,
      {.born = Step::kForwardRows,
       .last_forward_use = Step::kForwardFc2,
       .dies = block.weight_step(Step::kBackwardFc1Weight, Step::kWeightFc1)},
      Step::kBackwardRowsAgain, "E/e+1: where every expert's rows begin");
}

// What the experts of this rank receive and compute.
void add_received(MoeBlock& m) {
  NativeBlock& block = m.block;
  const DType dtype = block.shape.dtype;
  const auto add = [&](std::string_view name, std::int64_t width, DType type, Life life, Step again,
                       std::string_view formula) {
    block.keep_or_write_again(m.again, name, width * m.received, type, life, again, formula,
                              kReplayed);
  };
  add("experts.weights", 1, DType::kFp32,
      {.born = Step::kForwardDispatch,
       .last_forward_use = Step::kForwardActivation,
       .dies = Step::kBackwardActivation},
      Step::kBackwardDispatchAgain, "R: the router's weight of every row");
  add("experts.received", block.shape.hidden, dtype,
      {.born = Step::kForwardDispatch,
       .last_forward_use = Step::kForwardFc1,
       .dies = block.weight_step(Step::kBackwardFc1Weight, Step::kWeightFc1)},
      Step::kBackwardDispatchAgain,
      "h*R: at most moe_buffer_factor*w*n*et rows, in the order of experts");
  add("experts.gate_up", block.shape.ffn_pieces * m.expert_width, dtype,
      {.born = Step::kForwardFc1,
       .last_forward_use = Step::kForwardActivation,
       .dies = Step::kBackwardActivation},
      Step::kBackwardFc1Again, "2fe/et*R");
  const Life activation{.born = Step::kForwardActivation,
                        .last_forward_use = Step::kForwardFc2,
                        .dies = block.weight_step(Step::kBackwardFc2Weight, Step::kWeightFc2)};
  if (m.again) {
    add("experts.activation", m.expert_width, dtype, activation, Step::kBackwardActivationAgain,
        "fe/et*R");
    return;
  }
  block.keep_or_write_again(block.recomputes(&RecomputeModules::moe_act), "experts.activation",
                            m.expert_width * m.received, dtype, activation,
                            Step::kBackwardActivation,
                            "fe/et*R: scaled by the weights; written again under recompute",
                            {.pushed = Step::kBackwardFc2, .popped = Step::kBackwardFc2Weight});
}

void add_shared(MoeBlock& m) {
  NativeBlock& block = m.block;
  const DType dtype = block.shape.dtype;
  const std::int64_t elements = m.shared_width * block.shape.tokens;
  const bool dropped = m.again || m.shared_again;
  block.keep_or_write_again(dropped, "shared.gate_up", block.shape.ffn_pieces * elements, dtype,
                            {.born = Step::kForwardSharedFc1,
                             .last_forward_use = Step::kForwardSharedActivation,
                             .dies = Step::kBackwardSharedActivation},
                            m.again ? Step::kBackwardSharedFc1Again : Step::kBackwardSharedReplay,
                            "2fs*T/t",
                            m.again ? kReplayed
                                    : NativeBlock::Hold{.pushed = Step::kBackwardSharedReplay,
                                                        .popped = Step::kBackwardSharedFc1Weight});
  block.keep_or_write_again(
      dropped, "shared.activation", elements, dtype,
      {.born = Step::kForwardSharedActivation,
       .last_forward_use = Step::kForwardSharedFc2,
       .dies = block.weight_step(Step::kBackwardSharedFc2Weight, Step::kWeightSharedFc2)},
      m.again ? Step::kBackwardSharedActivationAgain : Step::kBackwardSharedActivation, "fs*T/t",
      m.again ? kReplayed
              : NativeBlock::Hold{.pushed = Step::kBackwardSharedFc2,
                                  .popped = Step::kBackwardSharedFc2Weight});
  NativeBlock::hold(
      block.rows.use("shared.activation_gradient", elements, dtype, Step::kBackwardSharedFc2,
                     Step::kBackwardSharedActivation, "fs*T/t"),
      {.pushed = Step::kBackwardSharedFc2, .popped = Step::kBackwardSharedFc2Weight});
  NativeBlock::hold(
      block.rows.use("shared.gate_up_gradient", block.shape.ffn_pieces * elements, dtype,
                     Step::kBackwardSharedActivation,
                     block.weight_step(Step::kBackwardSharedFc1Weight, Step::kWeightSharedFc1),
                     "2fs*T/t"),
      {.pushed = Step::kBackwardSharedFc2Gather, .popped = Step::kBackwardSharedFc1Weight});
}

// Weights of the choices and counts of all ranks, in forward and again in a replay.
void add_routing(MoeBlock& m) {
  const auto add = [&](Step first, Step choices, Step gather, Step rows, Step dispatch, Step reduce,
                       Step last) {
    NativeBlock::hold(m.block.rows.use("router.weights", m.choices * m.routed, DType::kFp32,
                                       choices, dispatch, "n*w: of the choices, fp32"),
                      {.pushed = first, .popped = last});
    if (m.members > 1) {
      m.block.rows
          .use_as(Component::kCommunication, "router.gathered_counts",
                  m.members * m.block.plan.micro_batch * m.experts, DType::kFp32, gather, rows,
                  "e*et*b*E: counts of all ranks that exchange rows")
          .popped = reduce;
    }
  };
  add(Step::kForwardRouter, Step::kForwardChoices, Step::kForwardCountsGather, Step::kForwardRows,
      Step::kForwardDispatch, Step::kForwardCountsReduce, Step::kForwardSharedActivation);
  if (m.again) {
    add(Step::kBackwardRouterAgain, Step::kBackwardChoicesAgain, Step::kBackwardCountsGatherAgain,
        Step::kBackwardRowsAgain, Step::kBackwardDispatchAgain, Step::kBackwardCountsReduceAgain,
        Step::kBackwardSharedActivationAgain);
  }
}

void add_expert_gradients(MoeBlock& m) {
  NativeBlock& block = m.block;
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  const Step last = Step::kBackwardRouterWeight;
  rows.use_as(comm, "experts.output", s.hidden * m.received, s.dtype, Step::kForwardFc2,
              Step::kForwardCombine, "h*R: read by the ranks whose rows they are");
  rows.use_as(comm, "experts.output_gradient", s.hidden * m.received, s.dtype,
              Step::kBackwardCombine, block.weight_step(Step::kBackwardFc2Weight, Step::kWeightFc2),
              "h*R");
  NativeBlock::hold(rows.use("experts.activation_gradient", m.expert_width * m.received, s.dtype,
                             Step::kBackwardFc2, Step::kBackwardActivation, "fe/et*R"),
                    {.pushed = Step::kBackwardFc2, .popped = Step::kBackwardFc2Weight});
  NativeBlock::hold(
      rows.use("experts.gate_up_gradient", s.ffn_pieces * m.expert_width * m.received, s.dtype,
               Step::kBackwardActivation,
               block.weight_step(Step::kBackwardFc1Weight, Step::kWeightFc1), "2fe/et*R"),
      {.pushed = Step::kBackwardCombine, .popped = last});
  NativeBlock::hold(rows.use_as(comm, "experts.weight_gradient", m.received, DType::kFp32,
                                Step::kBackwardActivation, Step::kBackwardFc1Reduce,
                                "R: of the router's weights, fp32"),
                    {.pushed = Step::kBackwardCombine, .popped = last});
  NativeBlock::hold(rows.use_as(comm, "experts.input_gradient", s.hidden * m.received, s.dtype,
                                Step::kBackwardFc1, Step::kBackwardFc1Reduce, "h*R"),
                    {.pushed = Step::kBackwardFc1, .popped = last});
  NativeBlock::hold(rows.use("router.weight_gradient", m.choices * m.routed, DType::kFp32,
                             Step::kBackwardFc1Reduce, Step::kBackwardRouter, "n*w"),
                    {.pushed = Step::kBackwardFc1, .popped = last});
  rows.use("router.logit_gradient", m.experts * m.routed, s.dtype, Step::kBackwardRouter,
           block.weight_step(last, Step::kWeightRouter), "E*w");
}

// Norm in front, its gradient, and the output before the residual addition.
void add_surroundings(MoeBlock& m) {
  NativeBlock& block = m.block;
  const BlockShape& s = block.shape;
  const Step shared_use = m.gathers ? Step::kForwardSharedGather : Step::kForwardSharedFc1;
  add_native_norm(block,
                  {.input = "ffn.input",
                   .statistics = "ffn.norm_statistics",
                   .output = "ffn.norm_output",
                   .input_born = Step::kForwardFfnNorm,
                   .born = Step::kForwardFfnNorm,
                   .input_last_use = Step::kForwardOutput,
                   .last_use = m.has_shared() ? shared_use : Step::kForwardDispatch,
                   .dies = block.weight_step(Step::kBackwardRouterWeight, Step::kWeightRouter),
                   .again = Step::kBackwardRouterNormAgain,
                   .popped = Step::kBackwardRouterWeight,
                   .backward = Step::kBackwardFfnNorm,
                   .dropped_place = Place::kShared});
  const Step shared_gradient = m.gathers ? Step::kBackwardSharedReduce : Step::kBackwardSharedFc1;
  NativeBlock::hold(block.rows.use("ffn.norm_gradient", block.sequence(), s.dtype,
                                   m.has_shared() ? shared_gradient : Step::kBackwardFc1Reduce,
                                   Step::kBackwardFfnNorm, "h*u"),
                    {.pushed = Step::kBackwardRouterNormAgain, .popped = Step::kBackwardFfnNorm});
  const Step shared_output = m.gathers ? Step::kForwardSharedReduce : Step::kForwardSharedFc2;
  NativeBlock::hold(block.rows.use("ffn.down", block.sequence(), s.dtype,
                                   m.has_shared() ? shared_output : Step::kForwardCombine,
                                   Step::kForwardOutput, "h*u: added to the residual stream"),
                    {.pushed = Step::kForwardSharedFc2, .popped = Step::kForwardOutput});
}

}  // namespace

void add_native_moe(NativeBlock& block) {
  MoeBlock m = moe_block(block);
  const Step last_use = !m.has_shared() ? Step::kBackwardFfnNorm
                        : m.gathers     ? Step::kWeightSharedFc2Gather
                                        : Step::kWeightSharedFc2;
  add_ffn_output_gradient(block, last_use);
  add_surroundings(m);
  add_routing(m);
  add_decisions(m);
  add_received(m);
  if (m.has_shared()) {
    add_shared(m);
  }
  add_expert_gradients(m);
}

}  // namespace shardplan::native
