// Mixture of experts of a torchtitan layer, each operation on its own (moe_layer.cpp
// plays them). Letters in moe.h; R rows that a rank sends and receives.
#include <algorithm>

#include "estimator/frameworks/torchtitan/sizes.h"

namespace shardplan {
namespace {

constexpr Step kCombine = Step::kBackwardCombine;
constexpr Step kGather = Step::kBackwardSharedFc1Weight;  // of the experts' parameters
constexpr Step kUnsort = Step::kBackwardUnsort;
constexpr Step kSecondInput = Step::kBackwardFc1;       // of w3
constexpr Step kFirstInput = Step::kBackwardFc1Reduce;  // of w1
constexpr Step kUnpad = Step::kBackwardFc1Weight;
constexpr Step kReduce = Step::kBackwardRouter;  // of the experts' gradients
constexpr Step kToTokens = Step::kBackwardRouterInput;
constexpr Step kScores = Step::kBackwardRouterWeight;

struct MoeRows {
  TitanBlock& block;
  TitanSizes sizes;
  TitanMoe moe = sizes.moe;

  std::int64_t of(std::int64_t bytes) const { return bytes / bytes_of(block.shape.dtype); }
  void keep(std::string_view name, std::int64_t bytes, Life life, std::string_view formula) {
    block.keep_or_write_again(name, of(bytes), block.shape.dtype, life, formula);
  }
  void use(std::string_view name, std::int64_t bytes, Step born, Step dies,
           std::string_view formula) {
    block.rows.use(name, of(bytes), block.shape.dtype, born, dies, formula);
  }
};

void add_norm(MoeRows& m) {
  TitanBlock& block = m.block;
  const BlockShape& s = block.shape;
  const bool casts = block.is_autocast();
  add_titan_ffn_input(block);
  block.keep_or_write_again(
      "ffn.norm_output", s.gathers_sequence ? block.gathered() : block.sequence(), s.dtype,
      {.born = Step::kForwardFfnNorm, .last_forward_use = Step::kForwardCombine, .dies = kScores},
      "h*T: input of the router (gathered under tp, cast under autocast)");
  if (casts || s.gathers_sequence) {
    block.rows.use("ffn.norm_local", block.sequence(), block.residual(), Step::kForwardFfnNorm,
                   Step::kForwardCombine, "h*u: before it is cast or gathered");
  }
}

void add_router(MoeRows& m) {
  const TitanMoe& s = m.moe;
  const Life to_scores{
      .born = Step::kForwardRouter, .last_forward_use = Step::kForwardRouter, .dies = kScores};
  const Life to_combine{
      .born = Step::kForwardRouter, .last_forward_use = Step::kForwardCombine, .dies = kCombine};
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
  m.keep("router.choices", s.choices, {Step::kForwardRouter, Step::kForwardCombine, kScores},
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
  of_order.dies = s.scores_rows_first ? kToTokens : kCombine;
  m.keep("router.order", s.order, of_order, "R: rows in the order of experts, int64");
  m.keep("router.token_of_row", s.order,
         {Step::kForwardDispatch, Step::kForwardDispatch, kToTokens}, "R: int64");
  m.keep("router.slots", s.slots, {Step::kForwardDispatch, Step::kForwardUnsort, kUnpad},
         "P: row of every padded row, int32");
  if (s.scores_rows_first) {
    m.keep("router.order_weights", s.order_weights,
           {Step::kForwardDispatch, Step::kForwardCombine, kToTokens}, "R: in fp32");
  } else {
    m.use("router.order_weights", s.order_weights, Step::kForwardDispatch, Step::kForwardCombine,
          "R: in fp32, held by forward");
  }
  m.use("router.score_gradients", 2 * s.scores + s.logits, kScores, kScores,
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
         {Step::kForwardDispatch, Step::kForwardDispatch, kToTokens},
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
           {Step::kForwardFc1, Step::kForwardFc1, kFirstInput}, "h*P: cast");
    if (!m.block.compiles_parts()) {
      m.keep("experts.input_of_w3", s.expert_input,
             {Step::kForwardActivation, Step::kForwardActivation, kSecondInput}, "h*P: cast again");
    }
  } else {
    m.keep("experts.padded", s.padded_rows,
           {Step::kForwardDispatch, Step::kForwardUnsort, kFirstInput},
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
  m.keep("experts.scored", s.scored_rows, {Step::kForwardCombine, Step::kForwardCombine, kCombine},
         "h*n*T: in fp32 (bf16 under autocast), input of the weighted sum");
  m.use("experts.summed", s.summed, Step::kForwardCombine, Step::kForwardCombine, "h*T");
  m.use("ffn.output", s.stream, Step::kForwardCombine, Step::kForwardOutput, "h*T");
}

// What a checkpoint by operations keeps for the replay of latent attention alone.
std::int64_t dropped_by_attention(const MoeRows& m) {
  if (!m.block.recomputes_ops() || !m.sizes.mla.exists) {
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
  m.use("experts.forward_again",
        s.rows + s.order_weights + std::max(unsorting, combining) - dropped, Step::kBackwardOutput,
        Step::kBackwardOutput, "2h*R + h*n*T: sent, returned and unsorted rows of the replay");
}

// The shared experts run behind the others, and back before them.
void add_shared(MoeRows& m) {
  const std::int64_t inner = m.moe.shared_inner;
  if (inner == 0) {
    return;
  }
  const Step born = Step::kForwardUnsort;
  const Step activation = Step::kBackwardSharedActivation;
  const auto keep_product = [&](Weight weight, std::string_view name, Step dies,
                                std::string_view formula) {
    const Life life{.born = born, .last_forward_use = born, .dies = dies};
    if (m.sizes.saves_product(weight)) {
      m.block.rows.keep(name, m.of(inner), m.block.shape.dtype, life, formula);
    } else {
      m.keep(name, inner, life, formula);
    }
  };
  keep_product(Weight::kSharedGate, "shared.gate", Step::kBackwardSharedFc1,
               "fs*T: output of their w1");
  keep_product(Weight::kSharedUp, "shared.up", activation, "fs*T: output of their w3");
  m.keep("shared.silu", inner, {born, born, activation}, "fs*T");
  m.keep("shared.product", inner, {born, born, Step::kBackwardSharedFc2},
         "fs*T: input of their w2");
  m.use("shared.output", m.sizes.sequence, born, Step::kForwardCombine, "h*T");
  if (m.block.recomputes_ops() && m.sizes.saves_product(Weight::kSharedDown)) {
    m.block.rows.keep("shared.output_kept", m.of(m.sizes.sequence), m.block.shape.dtype,
                      {.born = Step::kForwardOutput,
                       .last_forward_use = Step::kForwardOutput,
                       .dies = Step::kBackwardOutput},
                      "h*T: saved though backward does not use it");
  }
}

void add_shared_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  const std::int64_t inner = s.shared_inner;
  const Step activation = Step::kBackwardSharedActivation;
  const Step input = Step::kBackwardSharedFc1;
  m.use("shared.product_gradient", inner, Step::kBackwardSharedFc2, activation, "fs*T");
  m.use("shared.gate_up_gradients", 2 * inner, activation, input, "2*fs*T");
  m.block.rows.split_last({m.of(inner), m.of(inner)});
  m.use("shared.input_gradients", m.sizes.sequence, input, input, "h*T: of their w1");
  m.use("shared.input_gradient", m.sizes.sequence, input, Step::kBackwardFfnNorm,
        "h*T: of all experts once it has been added to");
  const std::int64_t weight = m.of(m.sizes.weight(Weight::kSharedGate));
  const auto of_weight = [&](std::string_view name, Step born) {
    m.block.rows.use(name, weight, m.block.weight_gradient(), born, Step::kBackwardInput,
                     "h*fs: gradient of a shared weight");
  };
  of_weight("shared.down_gradient", Step::kBackwardSharedFc2);
  of_weight("shared.up_weight_gradient", input);
  of_weight("shared.gate_weight_gradient", input);
}

// The gradient of gate is written over the output of w3.
void add_compiled_inner(MoeRows& m) {
  const std::int64_t inner = m.moe.inner;
  const Step activation = Step::kBackwardActivation;
  m.keep("experts.gate", inner, {Step::kForwardFc1, Step::kForwardActivation, activation},
         "fe/et*P: output of w1");
  m.keep("experts.up", inner, {Step::kForwardActivation, Step::kForwardActivation, kFirstInput},
         "fe/et*P: output of w3, in backward the gradient of w1's");
  m.keep("experts.product", inner,
         {Step::kForwardActivation, Step::kForwardFc2, Step::kBackwardFc2}, "fe/et*P: input of w2");
  m.use("experts.product_gradient", inner, Step::kBackwardFc2, activation, "fe/et*P");
  m.use("experts.up_gradient", inner, activation, kSecondInput, "fe/et*P");
}

void add_inner(MoeRows& m) {
  if (m.block.compiles_parts()) {
    add_compiled_inner(m);
    return;
  }
  const std::int64_t inner = m.moe.inner;
  const Step activation = Step::kBackwardActivation;
  m.keep("experts.gate", inner, {Step::kForwardFc1, Step::kForwardActivation, kSecondInput},
         "fe/et*P: output of w1");
  m.keep("experts.silu", inner, {Step::kForwardActivation, Step::kForwardActivation, activation},
         "fe/et*P");
  m.keep("experts.up", inner, {Step::kForwardActivation, Step::kForwardActivation, activation},
         "fe/et*P: output of w3");
  m.keep("experts.product", inner,
         {Step::kForwardActivation, Step::kForwardFc2, Step::kBackwardFc2}, "fe/et*P: input of w2");
  m.use("experts.product_gradient", inner, Step::kBackwardFc2, activation, "fe/et*P");
  m.use("experts.up_gradient", inner, activation, kSecondInput, "fe/et*P");
  m.use("experts.gate_gradient", inner, activation, kFirstInput, "fe/et*P: of silu, then of gate");
}

void add_input_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  m.use("experts.output_gradient", s.expert_input, Step::kBackwardFc2, Step::kBackwardFc2, "h*P");
  m.use("experts.input_gradient", s.padded_rows, kSecondInput, kUnpad, "h*P: of w3, and the sum");
  m.use("experts.second_input_gradient",
        m.block.is_autocast() ? s.expert_input + s.padded_rows : s.padded_rows, kFirstInput,
        kFirstInput, "h*P: of w1");
}

// The graph holds the gradient it is called with to its end. w1's gradient comes where its input
// has been freed; under autocast both come before their sum, in fp32.
void add_compiled_input_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  const bool casts = m.block.is_autocast();
  m.use("experts.output_gradient", s.padded_rows, Step::kBackwardFc2, kFirstInput,
        "h*P: in fp32 under autocast");
  m.use("experts.cast_output_gradient", casts ? 2 * s.expert_input : 0, Step::kBackwardFc2,
        Step::kBackwardFc2, "2h*P: by rows, and as the product reads it");
  m.use("experts.input_gradient", s.padded_rows, kSecondInput, kUnpad, "h*P: of w3, and the sum");
  m.use("experts.addends", casts ? 2 * s.expert_input : 0, kSecondInput, kSecondInput,
        "2h*P: of w1 and w3 before they are added up");
}

void add_row_gradients(MoeRows& m) {
  const TitanMoe& s = m.moe;
  m.use("experts.score_gradients", 2 * s.wide_rows, kToTokens, kToTokens,
        "2h*R in fp32: of rows and of their scores, before these are summed");
  m.use("experts.summed_gradient", s.summed, Step::kBackwardOutput, kCombine, "h*T");
  m.use("experts.scored_gradient", s.scored_rows, kCombine, kCombine, "h*n*T");
  const bool has_shared = s.shared_inner > 0;
  m.use("experts.rows_waiting", has_shared || s.exchanges ? s.rows : 0,
        has_shared ? Step::kBackwardSharedFc2 : kGather, kGather,
        "h*R: gradients of rows, until shared experts are done and the others gathered");
  const std::int64_t from_tokens =
      s.scores_rows_first ? s.rows : std::max(s.scored_rows, s.rows) + s.all_rows;
  const std::int64_t to_experts =
      std::max(s.rows + s.rows_and_zero, s.rows_and_zero + s.padded_rows);
  m.use("experts.rows_on_the_way", has_shared ? to_experts : std::max(from_tokens, to_experts),
        kUnsort, kUnsort, "h*n*T and h*R: from tokens to experts, two steps at a time");
  if (has_shared) {
    m.use("experts.rows_from_tokens", from_tokens, Step::kBackwardSharedGather,
          Step::kBackwardSharedGather, "h*n*T and h*R: two steps at a time");
    add_shared_gradients(m);
  }
  if (m.block.compiles_parts()) {
    add_compiled_input_gradients(m);
  } else {
    add_input_gradients(m);
  }
  m.use("experts.row_gradient", s.rows_and_zero, kUnpad, kToTokens, "h*(R+1): padding dropped");
  m.use("experts.row_order", index_sort_bytes(s.padded), kUnpad, kUnpad, "48 bytes*P: sorted");
  if (s.sums_gradient) {
    m.block.rows.use_as(Component::kCommunication, "experts.summed_rows", m.of(s.rows),
                        m.block.shape.dtype, kToTokens, kToTokens, "h*R: over tp");
  }
  m.use("experts.token_order", index_sort_bytes(s.sent), kToTokens, kToTokens,
        "48 bytes*R: sorted");
  m.use("experts.token_gradient", s.stream, kToTokens,
        has_shared ? kToTokens : Step::kBackwardFfnNorm, "h*T");
  m.use("router.input_gradient", s.stream, kScores, kScores, "h*T");
  m.block.rows.use("ffn.norm_gradient", m.block.sequence(), m.block.residual(),
                   Step::kBackwardFfnNorm, Step::kBackwardFfnNorm, "h*u");
}

// In bf16 each where its weight's cast was, and when all are there cast to fp32, which frees them
// one by one.
void add_cast_weight_gradients(MoeRows& m) {
  TitanBlock& block = m.block;
  const std::int64_t weight = block.expert_weights().front();
  const DType dtype = block.shape.dtype;
  block.rows.use("experts.down_gradient", weight, dtype, Step::kBackwardActivation, kSecondInput,
                 "E*h*fe: gradient of w2, in bf16");
  block.rows.use("experts.weight_gradients", 3 * weight, block.weight_gradient(), kFirstInput,
                 Step::kBackwardInput, "3*E*h*fe: gradients of w1, w2 and w3");
  block.rows.split_last({weight, weight, weight});
  block.rows.use("experts.last_gradient", weight, dtype, kFirstInput, kFirstInput,
                 "E*h*fe: in bf16, not yet freed");
  block.rows.use("router.weight_gradient", block.shape.hidden * block.job.model.moe.num_experts,
                 block.weight_gradient(), kScores, Step::kBackwardInput, "E*h");
}

// Until the layer's parameters, or those of the experts alone, are reduced.
void add_weight_gradients(MoeRows& m) {
  TitanBlock& block = m.block;
  if (block.compiles_parts() && block.is_autocast()) {
    add_cast_weight_gradients(m);
    return;
  }
  const Step last = block.groups_experts() ? kReduce : Step::kBackwardInput;
  const std::int64_t weight = block.expert_weights().front();
  const DType dtype = block.weight_gradient();
  block.rows.use("experts.down_gradient", weight, dtype, Step::kBackwardFc2, last,
                 "E/e*h*fe/et: gradient of w2");
  block.rows.use("experts.up_weight_gradient", weight, dtype, kSecondInput, last,
                 "E/e*h*fe/et: gradient of w3");
  block.rows.use("experts.gate_weight_gradient", weight, dtype, kFirstInput, last,
                 "E/e*h*fe/et: gradient of w1");
  block.rows.use("router.weight_gradient", block.shape.hidden * block.job.model.moe.num_experts,
                 dtype, kScores, Step::kBackwardInput, "E*h");
}

// Saved in the layout that backward reads; products read another, in one buffer.
void add_compiled_casts(MoeRows& m) {
  TitanBlock& block = m.block;
  const std::int64_t weight = block.expert_weights().front();
  const auto keep = [&](std::string_view name, Step born, Step dies) {
    m.keep(name, 2 * weight, {.born = born, .last_forward_use = Step::kForwardFc2, .dies = dies},
           "E*h*fe: bf16 copy");
  };
  keep("experts.gate_cast", Step::kForwardFc1, Step::kBackwardActivation);
  keep("experts.up_cast", Step::kForwardActivation, Step::kBackwardActivation);
  keep("experts.down_cast", Step::kForwardFc2, Step::kBackwardFc2);
  m.use("experts.weight_cast", 2 * weight, Step::kForwardFc1, Step::kForwardFc2,
        "E*h*fe: bf16 copy as the product reads it");
}

// Beside those of every weight: of the experts autocast caches none.
void add_casts(MoeRows& m) {
  TitanBlock& block = m.block;
  if (block.compiles_parts()) {
    add_compiled_casts(m);
  } else if (!block.has_whole_layers()) {
    block.rows.use("experts.weight_cast", block.expert_weights().front(), block.shape.dtype,
                   Step::kForwardFc1, Step::kForwardFc2, "E*h*fe: bf16 copy for one product");
  }
  add_titan_weight_casts(block);
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
  add_inner(m);
  add_shared(m);
  add_row_gradients(m);
  add_weight_gradients(m);
  add_exchange_of_tp(m);
  if (block.is_autocast()) {
    add_casts(m);
  }
}

// The experts' parameters, a group of their own: gathered while the block before runs, with the
// buffers of the next block's, and reduced before the rest of the block. Nothing with experts runs
// in a pipeline (rules.cpp, qwen3_needs_pp_1).
void add_titan_expert_group(TitanBlock& block, bool is_last) {
  RowList& rows = block.rows;
  const Component comm = Component::kCommunication;
  const TitanParameters& p = block.parameters;
  const std::int64_t shard = expert_shard_size(block.job, block.plan);
  const std::int64_t gathered = shard > 1 ? p.experts : 0;
  const DType dtype = block.shape.dtype;
  const std::vector<std::int64_t> weights = block.sharded_expert_weights();
  // A replay finds all parameters there, and add_replay has what it holds beside backward's
  // buffers.
  const auto gather_in_forward = [&](std::string_view name, std::int64_t elements, Step dies,
                                     std::string_view formula) {
    block.gather(name, elements, Step::kForwardInput, dies, formula);
    if (elements > 0) {
      rows.rows.back().is_not_replayed = true;
    }
  };
  gather_in_forward("fsdp.expert_gather_output", gathered, Step::kForwardLogits,
                    "n: until the next block has been gathered");
  gather_in_forward("fsdp.next_gather_output", is_last ? p.head : p.layer + gathered,
                    Step::kForwardOutput, "n: of the next block");
  if (block.fsdp.reshards_forward) {
    rows.use_as(comm, "fsdp.unsharded_experts", p.experts, dtype, Step::kForwardDispatch,
                Step::kForwardUnsort, "n");
    rows.split_last(weights);
    const bool replays = block.plan.recompute.granularity != RecomputeGranularity::kNone;
    rows.use_as(comm, "fsdp.unsharded_experts_again", p.experts, dtype,
                replays ? Step::kBackwardOutput : kGather, kUnpad, "n: gathered again");
    rows.split_last(weights);
    block.gather("fsdp.expert_gather_again", replays ? 0 : gathered, kGather, kGather,
                 "n: until it has been copied, beside that of the block whose backward is next");
  } else {
    rows.keep(
        "fsdp.unsharded_experts", p.experts, dtype,
        {.born = Step::kForwardDispatch, .last_forward_use = Step::kForwardUnsort, .dies = kUnpad},
        "n: not resharded after forward");
    rows.rows.back().component = comm;
    rows.rows.back().outlives_recompute = true;
    rows.split_last(weights);
  }
  const std::int64_t copied = block.splits_rows() ? p.experts : 0;
  rows.use_as(comm, "fsdp.expert_copies", copied, dtype, Step::kForwardDispatch,
              Step::kForwardDispatch, "n: rank by rank before row by row");
  rows.use_as(comm, "fsdp.expert_copies_again", copied, dtype, kUnsort, kUnsort, "n");
  rows.use_as(comm, "fsdp.expert_gradient_chunks", copied / 3, dtype, kReduce, kReduce,
              "n/3: the last gradient beside its chunks, joined rank by rank");
  rows.use_as(comm, "fsdp.expert_reduction_input", p.experts, DType::kFp32, kReduce,
              Step::kBackwardNorm, "n: fp32 reduce-scatter input, held until the block's");
  rows.rows.push_back(titan_expert_gradient(block));
  rows.use_as(comm, "fsdp.expert_gradients_divided", shard > 1 ? 0 : p.experts, DType::kFp32,
              Step::kBackwardRouterInput, Step::kBackwardRouterInput,
              "n: by the factor 1, where a group of one rank copies its input (foreach_reduce)");
}

}  // namespace shardplan
