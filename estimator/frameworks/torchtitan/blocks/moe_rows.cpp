// Mixture of experts of a torchtitan layer, each operation on its own (moe_layer.cpp
// plays them). Letters in moe.h; R rows that a rank sends and receives.
#include "estimator/frameworks/torchtitan/blocks/moe_rows.h"

#include <algorithm>

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/blocks/biased_rows.h"
#include "estimator/frameworks/torchtitan/blocks/expert_rows.h"
#include "estimator/frameworks/torchtitan/blocks/ffn.h"
#include "estimator/frameworks/torchtitan/blocks/mixture.h"
#include "estimator/frameworks/torchtitan/blocks/shared_expert_rows.h"
#include "estimator/frameworks/torchtitan/sizes.h"

namespace shardplan::torchtitan {
namespace {

void add_norm(MoeRows& m) {
  TitanBlock& block = m.block;
  const BlockShape& s = block.shape;
  const bool casts = block.is_autocast();
  add_titan_ffn_input(block);
  block.keep_or_write_again("ffn.norm_output",
                            s.gathers_sequence ? block.gathered() : block.sequence(), s.dtype,
                            {.born = Step::kForwardFfnNorm,
                             .last_forward_use = Step::kForwardCombine,
                             .dies = MoeRows::kScores},
                            "h*T: input of the router (gathered under tp, cast under autocast)");
  if (casts || s.gathers_sequence) {
    block.rows.use("ffn.norm_local", block.sequence(), block.residual(), Step::kForwardFfnNorm,
                   Step::kForwardCombine, "h*u: before it is cast or gathered");
  }
}

void add_router(MoeRows& m) {
  const TitanMoe& s = m.moe;
  const Life to_scores{.born = Step::kForwardRouter,
                       .last_forward_use = Step::kForwardRouter,
                       .dies = MoeRows::kScores};
  const Life to_combine{.born = Step::kForwardRouter,
                        .last_forward_use = Step::kForwardCombine,
                        .dies = MoeRows::kCombine};
  const bool saves_logits = m.block.recomputes_ops() && m.sizes.saves_product(Weight::kRouter);
  if (saves_logits && !m.block.compiles_parts()) {
    m.block.rows.keep("router.logits", m.of(s.logits), m.block.shape.dtype,
                      {.born = Step::kForwardRouter,
                       .last_forward_use = Step::kForwardRouter,
                       .dies = Step::kBackwardOutput},
                      "E*T: fifth matmul, saved");
  } else if (!m.block.compiles_parts()) {
    m.use("router.logits", s.logits, Step::kForwardRouter, Step::kForwardRouter, "E*T");
  }
  m.use("router.fp32_scores", m.block.compiles_parts() ? 0 : s.scores, Step::kForwardRouter,
        Step::kForwardRouter, "E*T: input of softmax, then scores and biases added up");
  if (m.block.compiles_parts()) {
    m.keep("router.probabilities", s.logits + 2 * s.denominators, to_scores,
           "E*T in bf16, 2*T: logits, their maxima and sums of exponentials");
  } else {
    m.keep("router.probabilities", s.scores, to_scores, "E*T: softmax in fp32");
  }
  m.keep("router.choices", s.choices,
         {Step::kForwardRouter, Step::kForwardCombine, MoeRows::kScores},
         "n*T: chosen experts, int64");
  if (s.scores_rows_first) {
    m.use("router.weights", s.weights, Step::kForwardRouter, Step::kForwardCombine,
          "n*T: scores of the chosen, in fp32");
  } else {
    m.keep("router.chosen", s.weights + s.denominators, to_scores,
           "(n+1)*T: their probabilities and the sum of these");
    m.keep("router.weights", s.weights, to_combine, "n*T: normalised, in fp32");
  }
  Life of_order = to_combine;
  of_order.dies = s.scores_rows_first ? MoeRows::kToTokens : MoeRows::kCombine;
  m.keep("router.order", s.order, of_order, "R: rows in the order of experts, int64");
  m.keep("router.token_of_row", s.order,
         {Step::kForwardDispatch, Step::kForwardDispatch, MoeRows::kToTokens}, "R: int64");
  m.keep("router.slots", s.slots, {Step::kForwardDispatch, Step::kForwardUnsort, MoeRows::kUnpad},
         "P: row of every padded row, int32");
  if (s.scores_rows_first) {
    m.keep("router.order_weights", s.order_weights,
           {Step::kForwardDispatch, Step::kForwardCombine, MoeRows::kToTokens}, "R: in fp32");
  } else {
    m.use("router.order_weights", s.order_weights, Step::kForwardDispatch, Step::kForwardCombine,
          "R: in fp32, held by forward");
  }
  m.use("router.score_gradients", 2 * s.scores + s.logits, MoeRows::kScores, MoeRows::kScores,
        "E*T: of softmax and of its input");
}

// A checkpoint by operations may save both.
void add_exchanged(MoeRows& m) {
  RowList& rows = m.block.rows;
  const std::int64_t elements = m.of(m.moe.rows);
  const DType dtype = m.block.shape.dtype;
  constexpr std::string_view kFormula = "h*R: after the all-to-all";
  const auto add = [&](std::string_view name, Step born, Step dies) {
    if (m.block.recomputes_ops() && m.moe.saves_exchanges) {
      rows.keep(name, elements, dtype,
                {.born = born, .last_forward_use = dies, .dies = Step::kBackwardOutput}, kFormula);
      rows.rows.back().component = Component::kCommunication;
    } else {
      rows.use_as(Component::kCommunication, name, elements, dtype, born, dies, kFormula);
    }
  };
  add("experts.received", Step::kForwardDispatch, Step::kForwardDispatch);
  add("experts.combined", Step::kForwardUnsort, Step::kForwardCombine);
}

void add_forward_rows(MoeRows& m) {
  const TitanMoe& s = m.moe;
  const bool casts = m.block.is_autocast();
  m.use("experts.sent", s.rows, Step::kForwardDispatch, Step::kForwardCombine,
        "h*R: tokens by expert, held by forward");
  m.keep("experts.wide_sent", s.wide_rows,
         {Step::kForwardDispatch, Step::kForwardDispatch, MoeRows::kToTokens},
         "h*R in fp32: factor of the scores, where rows are scored first");
  m.use("experts.wide_scored", s.wide_rows, Step::kForwardDispatch, Step::kForwardDispatch,
        "h*R in fp32: their product");
  m.use("experts.joined", s.rows_and_zero, Step::kForwardDispatch, Step::kForwardDispatch,
        "h*(R+1): with a row of zeros");
  if (s.exchanges) {
    add_exchanged(m);
  }
  if (casts) {
    m.use("experts.padded", s.padded_rows, Step::kForwardDispatch, Step::kForwardUnsort,
          "h*P: in fp32");
    m.keep("experts.input_of_w1", s.expert_input,
           {Step::kForwardFc1, Step::kForwardFc1, MoeRows::kFirstInput}, "h*P: cast");
    if (!m.block.compiles_parts()) {
      m.keep("experts.input_of_w3", s.expert_input,
             {Step::kForwardActivation, Step::kForwardActivation, MoeRows::kSecondInput},
             "h*P: cast again");
    }
  } else {
    m.keep("experts.padded", s.padded_rows,
           {Step::kForwardDispatch, Step::kForwardUnsort, MoeRows::kFirstInput},
           "h*P: input of w1 and w3, every expert's rows padded to eights");
  }
  m.use("experts.output", s.expert_input, Step::kForwardFc2,
        casts ? Step::kForwardFc2 : Step::kForwardUnsort, "h*P");
  if (casts) {
    m.use("experts.fp32_output", s.padded_rows, Step::kForwardFc2, Step::kForwardUnsort, "h*P");
  }
  m.use("experts.returned", s.rows_and_zero, Step::kForwardUnsort,
        s.exchanges ? Step::kForwardUnsort : Step::kForwardCombine, "h*(R+1): without padding");
  m.use("experts.unsorted", s.all_rows, Step::kForwardCombine, Step::kForwardCombine,
        "h*n*T: in the order of tokens");
  m.keep("experts.scored", s.scored_rows,
         {Step::kForwardCombine, Step::kForwardCombine, MoeRows::kCombine},
         "h*n*T: in fp32 (bf16 under autocast), input of the weighted sum");
  m.use("experts.summed", s.summed, Step::kForwardCombine, Step::kForwardCombine, "h*T");
  m.use("ffn.output", s.stream, Step::kForwardCombine, Step::kForwardOutput, "h*T");
}

// What is there when a replay begins and gone where it holds most: the gathered gradient in front
// of GPT-OSS's, and what a checkpoint by operations keeps for the replay of attention alone.
std::int64_t dropped_by_attention(const MoeRows& m) {
  const bool replays_ops = m.block.recomputes_ops();
  if (m.moe.is_biased && m.sizes.tensor_parallel) {
    return m.sizes.gathered + (replays_ops ? m.sizes.sequence : 0);
  }
  if (!replays_ops || !m.sizes.mla.exists) {
    return 0;
  }
  return (m.sizes.saves_product(Weight::kQuery) ? m.sizes.mla.query : 0) +
         (m.sizes.saves_product(Weight::kOutput) ? m.sizes.sequence : 0);
}

// A replay runs to its end before backward begins: what forward holds there besides what it saves.
void add_replay(MoeRows& m) {
  if (m.block.plan.recompute.granularity == RecomputeGranularity::kNone) {
    return;
  }
  const TitanMoe& s = m.moe;
  const std::int64_t output = m.block.is_autocast() ? 2 * s.padded_rows : s.expert_input;
  // Of saved rows those that were received are dropped by then, those that return are there.
  const bool has_returned = m.block.recomputes_ops() && s.saves_exchanges;
  const std::int64_t dropped = dropped_by_attention(m) + (has_returned ? s.rows : 0);
  const std::int64_t unsorting =
      output + s.rows_and_zero + (s.exchanges && !has_returned ? s.rows : 0) - s.scored_rows;
  const std::int64_t combining = (has_returned ? 0 : s.rows) + s.all_rows + s.summed + s.stream +
                                 (s.shared_inner > 0 ? m.sizes.sequence : 0);
  const std::int64_t computing = s.is_biased ? biased_replay_bytes(m) : unsorting;
  m.use("experts.forward_again",
        s.rows + s.order_weights + std::max({computing, unsorting, combining}) - dropped,
        Step::kBackwardOutput, Step::kBackwardOutput,
        "2h*R + h*n*T: sent, returned and unsorted rows of the replay");
}

void add_row_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  m.use("experts.score_gradients", 2 * s.wide_rows, MoeRows::kToTokens, MoeRows::kToTokens,
        "2h*R in fp32: of rows and of their scores, before these are summed");
  m.use("experts.summed_gradient", s.summed, Step::kBackwardOutput, MoeRows::kCombine, "h*T");
  m.use("experts.scored_gradient", s.scored_rows, MoeRows::kCombine, MoeRows::kCombine, "h*n*T");
  const bool has_shared = s.shared_inner > 0;
  m.use("experts.rows_waiting", has_shared || s.exchanges ? s.rows : 0,
        has_shared ? Step::kBackwardSharedFc2 : MoeRows::kGather, MoeRows::kGather,
        "h*R: gradients of rows, until shared experts are done and the others gathered");
  const std::int64_t from_tokens =
      s.scores_rows_first ? s.rows : std::max(s.scored_rows, s.rows) + s.all_rows;
  const std::int64_t to_experts =
      std::max(s.rows + s.rows_and_zero, s.rows_and_zero + s.padded_rows);
  m.use("experts.rows_on_the_way", has_shared ? to_experts : std::max(from_tokens, to_experts),
        MoeRows::kUnsort, MoeRows::kUnsort,
        "h*n*T and h*R: from tokens to experts, two steps at a time");
  if (has_shared) {
    m.use("experts.rows_from_tokens", from_tokens, Step::kBackwardSharedGather,
          Step::kBackwardSharedGather, "h*n*T and h*R: two steps at a time");
    add_shared_expert_gradients(m);
  }
  if (s.is_biased) {
    add_biased_expert_gradients(m);
  } else if (m.block.compiles_parts()) {
    add_compiled_expert_input_gradients(m);
  } else {
    add_expert_input_gradients(m);
  }
  m.use("experts.row_gradient", s.rows_and_zero, MoeRows::kUnpad, MoeRows::kToTokens,
        "h*(R+1): padding dropped");
  m.use("experts.row_order", index_sort_bytes(s.padded), MoeRows::kUnpad, MoeRows::kUnpad,
        "48 bytes*P: sorted");
  if (s.sums_gradient) {
    m.block.rows.use_as(Component::kCommunication, "experts.summed_rows", m.of(s.rows),
                        m.block.shape.dtype, MoeRows::kToTokens, MoeRows::kToTokens,
                        "h*R: over tp");
  }
  m.use("experts.token_order", index_sort_bytes(s.sent), MoeRows::kToTokens, MoeRows::kToTokens,
        "48 bytes*R: sorted");
  m.use("experts.token_gradient", s.stream, MoeRows::kToTokens,
        has_shared ? MoeRows::kToTokens : Step::kBackwardFfnNorm, "h*T");
  m.use("router.input_gradient", s.stream, MoeRows::kScores, MoeRows::kScores, "h*T");
  m.block.rows.use("ffn.norm_gradient", m.block.sequence(), m.block.residual(),
                   Step::kBackwardFfnNorm, Step::kBackwardFfnNorm, "h*u");
}

void add_exchange_of_tp(MoeRows& m) {
  TitanBlock& block = m.block;
  const BlockShape& s = block.shape;
  if (!s.gathers_sequence) {
    return;
  }
  const Component comm = Component::kCommunication;
  block.rows.use_as(comm, "ffn.partial_output", block.gathered(), s.dtype, Step::kForwardOutput,
                    Step::kForwardOutput, "h*T: before the reduce-scatter");
  block.rows.use_as(comm, "ffn.gathered_gradient", block.gathered(), s.dtype, Step::kBackwardOutput,
                    Step::kBackwardOutput, "h*T");
  if (block.recomputes_ops()) {
    block.rows.keep("ffn.reduced_output", block.sequence(), s.dtype,
                    {.born = Step::kForwardOutput,
                     .last_forward_use = Step::kForwardOutput,
                     .dies = Step::kBackwardOutput},
                    "h*u: output of the reduce-scatter, saved");
  }
}

}  // namespace

void add_titan_moe(TitanBlock& block) {
  MoeRows m{.block = block, .sizes = TitanSizes(block)};
  add_norm(m);
  add_router(m);
  add_forward_rows(m);
  add_replay(m);
  if (m.moe.is_biased) {
    add_biased_expert_products(m);
  } else {
    add_expert_products(m);
  }
  add_shared_experts(m);
  add_row_gradients(m);
  if (m.moe.is_biased) {
    add_biased_weight_gradients(m);
  } else {
    add_expert_weight_gradients(m);
  }
  add_exchange_of_tp(m);
  if (block.is_autocast()) {
    add_expert_casts(m);
  }
}

}  // namespace shardplan::torchtitan
