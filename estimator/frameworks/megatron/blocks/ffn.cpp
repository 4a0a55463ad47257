// Feed-forward part of a Megatron layer: dense, and mixture of experts. Letters in
// block_rows.h; f_s width of the shared experts, et etp.
#include "estimator/frameworks/megatron/blocks/ffn.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/blocks/biased_experts.h"
#include "estimator/frameworks/megatron/blocks/dispatch.h"
#include "estimator/frameworks/megatron/blocks/latent.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/megatron/shared_streams.h"

namespace shardplan::megatron {
namespace {

// Names and steps of one gated linear pair; the shared experts run inside the norm's step.
struct FfnPiece {
  std::string_view fc1_output;
  std::string_view activation_output;
  std::string_view gate_activation;
  std::string_view activation_gradient;
  std::string_view fc1_gradient;
  std::string_view activation_cast;  // fp8: the activation's output before it is cast
  std::string_view fc1_gradient_cast;
  Step fc1 = Step::kForwardFc1;
  Step activation = Step::kForwardActivation;
  Step fc2 = Step::kForwardFc2;
  Step backward_fc2 = Step::kBackwardFc2;
  Step backward_activation = Step::kBackwardActivation;
  Step backward_fc1 = Step::kBackwardFc1;
};

constexpr FfnPiece kDense = {.fc1_output = "ffn.fc1_output",
                             .activation_output = "ffn.activation_output",
                             .gate_activation = "ffn.gate_activation",
                             .activation_gradient = "ffn.activation_gradient",
                             .fc1_gradient = "ffn.fc1_gradient",
                             .activation_cast = "ffn.activation_output_bf16",
                             .fc1_gradient_cast = "ffn.fc1_gradient_fp8"};
constexpr FfnPiece kExperts = {.fc1_output = "experts.fc1_output",
                               .activation_output = "experts.activation_output",
                               .gate_activation = "experts.gate_activation",
                               .activation_gradient = "experts.activation_gradient",
                               .fc1_gradient = "experts.fc1_gradient",
                               .activation_cast = "experts.activation_output_bf16",
                               .fc1_gradient_cast = "experts.fc1_gradient_fp8"};
constexpr FfnPiece kShared = {.fc1_output = "shared.fc1_output",
                              .activation_output = "shared.activation_output",
                              .gate_activation = "shared.gate_activation",
                              .activation_gradient = "shared.activation_gradient",
                              .fc1_gradient = "shared.fc1_gradient",
                              .activation_cast = "shared.activation_output_bf16",
                              .fc1_gradient_cast = "shared.fc1_gradient_fp8",
                              .fc1 = Step::kForwardFfnNorm,
                              .activation = Step::kForwardFfnNorm,
                              .fc2 = Step::kForwardFfnNorm,
                              .backward_fc2 = Step::kBackwardFfnNorm,
                              .backward_activation = Step::kBackwardFfnNorm,
                              .backward_fc1 = Step::kBackwardFfnNorm};

// What selective recompute does to a piece.
enum class Replay { kNothing, kActivation, kAll };

struct PieceRun {
  Replay what = Replay::kNothing;
  Step from = Step::kBackwardFc2;
  std::int64_t turns = 1;  // linear pairs of equal size that run one after the other
};

// What each of the turns keeps: the first one in backward frees its part at `life.dies`, when the
// others still have theirs.
void keep_in_turns(MegatronBlock& block, const PieceRun& run, bool replays, std::string_view name,
                   std::int64_t elements, DType dtype, Life life, std::string_view formula) {
  const std::int64_t one = div_ceil(elements, run.turns);
  keep_or_recompute(block, replays, run.from, name, one, dtype, life, formula);
  life.dies = block.weight_step(Step::kBackwardFc1);
  keep_or_recompute(block, replays, run.from, name, elements - one, dtype, life,
                    "the same of the other experts, one after the other");
}

// `activations` = tokens x local width of all linear pairs.
void add_ffn_piece(MegatronBlock& block, const FfnPiece& piece, std::int64_t activations,
                   PieceRun replayed) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t pieces = s.ffn_pieces;
  const std::int64_t one = div_ceil(activations, replayed.turns);
  keep_in_turns(
      block, replayed, replayed.what == Replay::kAll, piece.fc1_output, pieces * activations,
      s.dtype,
      {.born = piece.fc1, .last_forward_use = piece.activation, .dies = piece.backward_activation},
      "2f*T/t: gate and up, saved as input of the activation");
  const Life input{.born = piece.activation,
                   .last_forward_use = piece.fc2,
                   .dies = block.weight_step(piece.backward_fc2)};
  if (saves_input(block, adapts_fc2(block.job))) {
    keep_in_turns(block, replayed, replayed.what != Replay::kNothing, piece.activation_output,
                  block.linear_elements(activations), block.linear_dtype(), input,
                  "f*T/t: input of the second product");
  } else {
    rows.use(piece.activation_output, activations, s.dtype, input.born, input.last_forward_use,
             "f*T/t: input of the second product, which is frozen");
  }
  if (block.job.profile.swiglu == SwigluKind::kUnfused && pieces == 2) {
    keep_in_turns(block, replayed, replayed.what != Replay::kNothing, piece.gate_activation,
                  activations, s.dtype,
                  {.born = piece.activation,
                   .last_forward_use = piece.activation,
                   .dies = piece.backward_activation},
                  "f*T/t: silu(gate), saved by the unfused product");
  }
  if (block.plan.precision == Precision::kFp8) {
    rows.use(piece.activation_cast, one, s.dtype, piece.activation, piece.fc2,
             "f*T/t: the activation's output before the second linear layer casts it");
  }
  add_fp8_cast(block, piece.fc1_gradient_cast, pieces * one, piece.backward_fc1);
  rows.use(piece.activation_gradient, one, s.dtype, piece.backward_fc2, piece.backward_activation,
           "f*T/t");
  rows.use(piece.fc1_gradient, pieces * one, s.dtype, piece.backward_activation,
           block.weight_step(piece.backward_fc1), "2f*T/t");
}

void add_ffn_norm(MegatronBlock& block, bool norm_recomputed, Step replayed) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  const bool is_layer_input = block.layer.mixer == MixerKind::kNone;
  rows.keep("ffn.input", is_layer_input ? 0 : sequence, s.dtype,
            {.born = Step::kForwardProjection,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardFfnNorm},
            "h*u: residual stream, saved as input of the FFN norm");
  rows.keep("ffn.norm_statistics", norm_statistics(block), DType::kFp32,
            {.born = Step::kForwardFfnNorm,
             .last_forward_use = Step::kForwardFfnNorm,
             .dies = Step::kBackwardFfnNorm},
            "u: reciprocal root mean square (LayerNorm: and the mean), fp32");
  // A dense FFN has the norm inside its first linear layer; experts share one norm output among
  // router, shared experts and dispatch, the router's weight gradient using it last.
  const Step last = block.is_moe ? Step::kBackwardFfnNorm : Step::kBackwardFc1;
  const Life normed{.born = Step::kForwardFfnNorm,
                    .last_forward_use = block.is_moe ? Step::kForwardDispatch : Step::kForwardFc1,
                    .dies = s.gathers_sequence ? last : block.weight_step(last)};
  if (block.is_moe || saves_normed_input(block, adapts_fc1(block.job))) {
    keep_or_recompute(block, norm_recomputed, replayed, "ffn.norm_output",
                      block.is_moe ? sequence : block.linear_elements(sequence),
                      block.is_moe ? s.dtype : block.linear_dtype(), normed,
                      "h*u: saved sharded, gathered again in backward");
  } else {
    rows.use("ffn.norm_output", sequence, s.dtype, normed.born, normed.last_forward_use,
             "h*u: freed behind the frozen product (LayerNormLinear)");
  }
  rows.use("ffn.norm_gradient", sequence, s.dtype,
           block.is_moe ? Step::kBackwardDispatch : Step::kBackwardFc1, Step::kBackwardFfnNorm,
           "h*u: gradient of the norm's output");
  const std::int64_t dropped = drops_hidden(block) ? sequence : 0;
  rows.keep("ffn.hidden_dropout_mask", dropped, DType::kBool,
            {.born = Step::kForwardOutput,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardOutput},
            "h*u: saved by the fused addition of bias, dropout and residual");
  rows.use("ffn.dropped_gradient", dropped, s.dtype, Step::kBackwardOutput, Step::kBackwardFc2,
           "h*u: gradient behind dropout");
  if (block.job.model.norms_per_layer > 2) {
    rows.keep("ffn.post_norm_input", sequence, s.dtype,
              {.born = Step::kForwardFc2,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardOutput},
              "h*u: input of the norm after the FFN (Gemma 2 and 3)");
  }
}

// Gathers and partial sums of sequence parallelism round one linear pair.
void add_sequence_gathers(MegatronBlock& block, const FfnPiece& piece) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t full = s.hidden * s.tokens;
  if (!s.gathers_sequence) {
    return;
  }
  const bool is_gathered_before = &piece == &kShared && has_shared_streams(block.job);
  if (!has_local_layers(block.job) && !is_gathered_before) {
    rows.use("ffn.gathered_norm_output", block.linear_elements(full), block.linear_dtype(),
             piece.fc1, piece.fc1, "h*T: gathered for the first product, freed after it");
    rows.use("ffn.gathered_norm_output_again",
             trains_linears(block) ? block.gathered_again(full) : 0, block.linear_dtype(),
             piece.backward_fc1, block.weight_step(piece.backward_fc1),
             "h*T: gathered again for the weight gradient");
  }
  rows.use("ffn.full_output", full, s.dtype, piece.fc2, piece.fc2,
           "h*T: partial sums before the reduce-scatter");
  rows.use("ffn.gathered_output_gradient", block.output_gradient(full), block.linear_dtype(),
           piece.backward_fc2, block.weight_step(piece.backward_fc2),
           "h*T: gathered for both products of the second linear layer");
  rows.use("ffn.full_norm_gradient", full, s.dtype, piece.backward_fc1, piece.backward_fc1,
           "h*T: input gradient before its reduce-scatter");
}

// Beside the exchange shared experts' linear layers take what was gathered before, and save it
// (core/ transformer/moe/shared_experts.py, pre_forward_comm).
void add_gathered_before(MegatronBlock& block, bool recomputed) {
  const BlockShape& s = block.shape;
  if (!s.gathers_sequence || !has_shared_streams(block.job)) {
    return;
  }
  const std::int64_t elements = block.linear_elements(s.hidden * s.tokens);
  constexpr std::string_view kFormula = "h*T: gathered for the first product";
  if (saves_input(block, adapts_fc1(block.job))) {
    keep_or_recompute(block, recomputed, Step::kBackwardCombine, "shared.gathered_input", elements,
                      block.linear_dtype(),
                      {.born = Step::kForwardFfnNorm,
                       .last_forward_use = Step::kForwardFfnNorm,
                       .dies = block.weight_step(Step::kBackwardFfnNorm)},
                      kFormula);
  } else {
    block.rows.use("shared.gathered_input", elements, block.linear_dtype(), Step::kForwardFfnNorm,
                   Step::kForwardFfnNorm, kFormula);
  }
}

// Beside the exchange A and B have no tensor-parallel collectives, as the layers that they stand on
// (mcore-bridge 1.6.5 tuners/lora.py, parallel_mode; core/transformer/moe/shared_experts.py).
void add_shared_adapters(MegatronBlock& block) {
  for (const AdapterPlace place : {AdapterPlace::kSharedFc1, AdapterPlace::kSharedFc2}) {
    if (has_shared_streams(block.job)) {
      add_whole_adapter(block, place);
    } else {
      add_adapter(block, place);
    }
  }
}

// Activation and routing probability are one kernel for a gate with a fused activation alone
// (core/transformer/mlp.py, weighted_bias_swiglu_impl); else the product saves its factor. Without
// a gate the most of backward are the gradient that arrives and those of both factors, seen by
// PyTorch's memory profiler of the operators on the CPU; with probabilities in fp32 all three are,
// and forward's product is before it is cast back.
void add_unscaled_activation(MegatronBlock& block, std::int64_t activations, bool recomputed,
                             Step replayed) {
  const FrameworkProfile& profile = block.job.profile;
  const bool has_gate = block.shape.ffn_pieces == 2;
  const bool fused = has_gate && profile.swiglu == SwigluKind::kFused;
  const DType dtype = block.shape.dtype;
  keep_or_recompute(block, recomputed, replayed, "experts.unscaled_activation",
                    fused ? 0 : activations, dtype,
                    {.born = Step::kForwardActivation,
                     .last_forward_use = Step::kForwardActivation,
                     .dies = Step::kBackwardActivation},
                    "topk*f*u*I: saved by the product with the routing probabilities");
  if (has_gate) {
    return;
  }
  const bool is_fp32 = profile.moe_router_dtype == DType::kFp32;
  const std::int64_t one = div_ceil(activations, expert_turns(block));
  block.rows.use("experts.scaled_activation_fp32", is_fp32 ? one : 0, DType::kFp32,
                 Step::kForwardActivation, Step::kForwardActivation,
                 "topk*f*u*I: the product, before it is cast back");
  block.rows.use("experts.factor_gradients", (is_fp32 ? 4 : 1) * one, dtype,
                 Step::kBackwardActivation, Step::kBackwardActivation,
                 "topk*f*u*I: of both factors of the product, less the gradient of fc1's output, "
                 "made behind them");
}

void add_router(MegatronBlock& block, bool recomputed) {
  const MoeSpec& moe = block.job.model.moe;
  const std::int64_t tokens = block.shape.sharded_tokens;
  const Life life{.born = Step::kForwardFfnNorm,
                  .last_forward_use = Step::kForwardCombine,
                  .dies = Step::kBackwardFfnNorm};
  const Step replayed = Step::kBackwardCombine;
  keep_or_recompute(block, recomputed, replayed, "router.scores", 2 * moe.num_experts * tokens,
                    DType::kFp32, life, "2*E*u: softmax of the router and of its auxiliary loss");
  keep_or_recompute(block, recomputed, replayed, "router.map",
                    (moe.num_experts + 8 * moe.topk) * tokens, DType::kBool, life,
                    "(E+8*topk)*u bytes: tokens to experts as a mask and as 64-bit indices");
  keep_or_recompute(block, recomputed, replayed, "router.row_map",
                    (2 * moe.num_experts + 1) * tokens, DType::kInt32, life,
                    "(2*E+1)*u: row map of the fused permutation (TE triton/permutation.py)");
}

}  // namespace

void add_dense_ffn(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const std::int64_t width = div_ceil(block.job.model.ffn, block.plan.tp);
  const bool mlp = block.selective() && block.recomputed().mlp;
  add_ffn_norm(block, mlp, Step::kBackwardOutput);
  add_ffn_piece(block, kDense, s.tokens * width,
                {.what = mlp ? Replay::kAll : Replay::kNothing, .from = Step::kBackwardOutput});
  add_sequence_gathers(block, kDense);
  block.rows.use("ffn.output", s.hidden * s.sharded_tokens, s.dtype, Step::kForwardFc2,
                 Step::kForwardOutput, "h*u: before the residual add");
  if (mlp) {
    block.rows.use("ffn.output_replayed",
                   s.hidden * (s.gathers_sequence ? s.tokens : 0) + s.hidden * s.sharded_tokens,
                   s.dtype, Step::kBackwardOutput, Step::kBackwardOutput,
                   "h*(T+u): mlp recompute runs the whole FFN again");
  }
  add_linear_gradient(block, "ffn.fc1_weight_gradient", s.ffn_pieces * s.hidden * width,
                      block.weight_step(Step::kBackwardFc1));
  add_linear_gradient(block, "ffn.fc2_weight_gradient", s.hidden * width,
                      block.weight_step(Step::kBackwardFc2));
  add_adapter(block, AdapterPlace::kFc1);
  add_adapter(block, AdapterPlace::kFc2);
}

void add_moe(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const MoeSpec& moe = block.job.model.moe;
  const RecomputeModules& modules = block.recomputed();
  const bool whole = block.selective() && modules.moe;
  const bool shared = whole || (block.selective() && modules.shared_experts);
  const bool activation = block.selective() && modules.moe_act;
  const Dispatch dispatch = dispatch_of(block);
  const std::int64_t width = div_ceil(moe.expert_ffn, block.plan.etp);
  const std::int64_t local_experts = div_ceil(moe.num_experts, block.plan.ep);
  const bool norm = block.selective() && modules.layernorm;
  add_ffn_norm(block, norm, Step::kBackwardOutput);
  block.rows.use("ffn.norm_output_again", norm ? s.hidden * s.sharded_tokens : 0, s.dtype,
                 Step::kBackwardOutput, Step::kBackwardFfnNorm, kComputedAgain);
  add_router(block, whole);
  add_latent_input(block, whole);
  block.rows.follow_load = true;
  add_token_dispatch(block, dispatch, whole);
  const Step replay = whole ? Step::kBackwardCombine : Step::kBackwardFc2;
  add_ffn_piece(block, kExperts, dispatch.padded * width,
                {.what = whole        ? Replay::kAll
                         : activation ? Replay::kActivation
                                      : Replay::kNothing,
                 .from = replay,
                 .turns = expert_turns(block)});
  add_unscaled_activation(block, dispatch.padded * width, whole || activation, replay);
  add_clamped_gate(block, dispatch.padded * width, whole || activation, replay);
  add_expert_biases(block, dispatch.padded, div_ceil(dispatch.padded * width, expert_turns(block)));
  block.rows.use("experts.activation_output_again",
                 activation && !whole ? dispatch.padded * width : 0, s.dtype, Step::kBackwardFc2,
                 Step::kBackwardActivation, kComputedAgain);
  const AdapterTokens routed = {
      .input = dispatch.padded, .low = dispatch.padded, .output = dispatch.padded};
  add_adapter(block, AdapterPlace::kExpertsFc1, routed);
  add_adapter(block, AdapterPlace::kExpertsFc2, routed);
  block.rows.follow_load = false;
  if (moe.shared_ffn > 0) {
    add_ffn_piece(block, kShared, s.tokens * div_ceil(moe.shared_ffn, block.plan.tp),
                  {.what = shared ? Replay::kAll : Replay::kNothing,
                   .from = whole ? Step::kBackwardCombine : Step::kBackwardFfnNorm});
    keep_or_recompute(
        block, shared, whole ? Step::kBackwardCombine : Step::kBackwardFfnNorm,
        "shared.fc1_input_fp8",
        block.saves_fp8_of_saved() ? block.linear_elements(s.hidden * s.sharded_tokens) : 0,
        DType::kFp8,
        {.born = Step::kForwardFfnNorm,
         .last_forward_use = Step::kForwardFfnNorm,
         .dies = block.weight_step(Step::kBackwardFfnNorm)},
        "h*u: the norm's output in fp8, which the router saves in bf16");
    keep_or_recompute(block, shared, whole ? Step::kBackwardCombine : Step::kBackwardFfnNorm,
                      "shared.ungated_output", moe.shared_gate ? s.hidden * s.sharded_tokens : 0,
                      s.dtype,
                      {.born = Step::kForwardFfnNorm,
                       .last_forward_use = Step::kForwardFfnNorm,
                       .dies = Step::kBackwardFfnNorm},
                      "h*u: fc2's output, which the gate multiplies");
    add_sequence_gathers(block, kShared);
    add_gathered_before(block, whole);
    add_shared_adapters(block);
    block.rows.use("shared.output", s.hidden * s.sharded_tokens, s.dtype, Step::kForwardFfnNorm,
                   Step::kForwardOutput, "h*u: added to the routed output at the end");
  }
  add_latent_output(block, whole);
  block.rows.use("ffn.output", s.hidden * s.sharded_tokens, s.dtype, Step::kForwardCombine,
                 Step::kForwardOutput, "h*u: tokens put back in order");
  const std::int64_t product = block.routed_width() * width;
  add_linear_gradient(block, "experts.fc1_weight_gradient", s.ffn_pieces * product,
                      block.weight_step(Step::kBackwardFc1), local_experts);
  add_linear_gradient(block, "experts.fc2_weight_gradient", product,
                      block.weight_step(Step::kBackwardFc2), local_experts);
}

}  // namespace shardplan::megatron
