// Read in Megatron-LM core_v0.16.1 core/ssm/gated_delta_net.py (GatedDeltaNet), and where the
// product in front is two (Megatron-SWIFT's --linear-decoupled-in-proj) in mcore-bridge 1.6.5
// src/mcore_bridge/model/modules/gated_delta_net.py; with causal-conv1d 1.7
// (causal_conv1d_interface.py, CausalConv1dFn) and flash-linear-attention 0.4.1
// (fla/modules/l2norm.py, fla/ops/gated_delta_rule/{chunk,wy_fast}.py, fla/ops/common/{chunk_o,
// chunk_delta_h}.py). Letters: T tokens, t tp; K and V widths of keys and values, H value heads, P
// a key head's width times H, each over t; d_k and d_v widths of a head.
#include "estimator/frameworks/megatron/mixers/delta_net.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/blocks/layer_ends.h"
#include "estimator/frameworks/megatron/mixers/mixer_ends.h"
#include "estimator/frameworks/pieces/delta_rule_work.h"

namespace shardplan::megatron {
namespace {

// Elements of all tokens on one rank.
struct DeltaElements {
  std::int64_t keys = 0;           // K*T
  std::int64_t repeated_keys = 0;  // P*T
  std::int64_t values = 0;         // V*T
  std::int64_t key_heads = 0;
  std::int64_t heads = 0;   // H*T
  std::int64_t states = 0;  // of all chunks: H * d_k * d_v * T/64

  std::int64_t convolved() const { return 2 * keys + values; }
  std::int64_t packed() const { return convolved() + values + 2 * heads; }
  bool repeats_keys() const { return repeated_keys > keys; }
};

DeltaElements delta_elements(const MegatronBlock& block) {
  const DeltaSpec& delta = block.job.model.delta;
  const std::int64_t tokens = block.shape.tokens;
  const std::int64_t heads = div_ceil(delta.value_heads, block.plan.tp);
  const std::int64_t key_heads = div_ceil(delta.key_heads, block.plan.tp);
  return {.keys = tokens * key_heads * delta.key_head_dim,
          .repeated_keys = tokens * heads * delta.key_head_dim,
          .values = tokens * heads * delta.value_head_dim,
          .key_heads = tokens * key_heads,
          .heads = tokens * heads,
          .states = div_ceil(tokens, kRuleChunkTokens) * heads * delta.key_head_dim *
                    delta.value_head_dim};
}

constexpr Life kInFront = {.born = Step::kForwardLayout,
                           .last_forward_use = Step::kForwardLayout,
                           .dies = Step::kBackwardLayout};
constexpr Life kInRule = {.born = Step::kForwardLayout,
                          .last_forward_use = Step::kForwardAttention,
                          .dies = Step::kBackwardAttention};
constexpr Life kBehindRule = {.born = Step::kForwardAttention,
                              .last_forward_use = Step::kForwardAttention,
                              .dies = Step::kBackwardProjection};

// The rule is preceded by a convolution of keys, queries and values, which saves its
// input alone; norms of queries and keys by head, which save their outputs; decay and step.
void add_front(MegatronBlock& block, const DeltaElements& of) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  rows.use("delta.packed", of.packed(), dtype, Step::kForwardQkv, Step::kForwardProjection,
           "(2K+2V+2H)*T: the product's output, held by the mixer's forward");
  rows.keep("delta.convolution_input", of.convolved(), dtype, kInFront,
            "(2K+V)*T: by channel, saved by the convolution");
  rows.use("delta.convolved", of.convolved(), dtype, Step::kForwardLayout, Step::kForwardProjection,
           "(2K+V)*T: the convolution's output, held by the mixer's forward");
  rows.keep("delta.unit_keys", 2 * of.keys, dtype, kInFront,
            "2K*T: queries and keys of length 1, saved by their norms");
  rows.keep("delta.key_lengths", 2 * of.key_heads, DType::kFp32, kInFront,
            "2*T a key head: reciprocal lengths, fp32");
  rows.keep("delta.repeated_keys", of.repeats_keys() ? 2 * of.repeated_keys : 0, dtype, kInRule,
            "2P*T: queries and keys repeated for every value head");
  rows.keep("delta.values", of.values, dtype, kInRule, "V*T: copied out of what was convolved");
  rows.keep("delta.decays", (trains_linears(block) ? 3 : 2) * of.heads, DType::kFp32, kInRule,
            "3*H*T: in and out of softplus, this for the decay's gradient alone, and summed up "
            "within chunks, fp32");
  rows.keep("delta.steps", of.heads, dtype, kInRule, "H*T: how much of a value is written");
}

// The rule itself writes states of chunks and drops them; backward makes them again. The norm
// behind saves its input, the gate's product both factors.
void add_rule(MegatronBlock& block, const DeltaElements& of) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const Step forward = Step::kForwardAttention;
  rows.keep("delta.chunk_products", kRuleChunkTokens * of.heads, dtype,
            {.born = forward, .last_forward_use = forward, .dies = Step::kBackwardAttention},
            "64*H*T: the inverse of every chunk's triangle");
  rows.use("delta.chunk_states", of.states, dtype, forward, forward,
           "H*d_k*d_v*T/64: the state in front of every chunk");
  rows.use("delta.chunk_values", of.repeated_keys + 2 * of.values, dtype, forward, forward,
           "(P+2V)*T: weights, values of the rule and those less what the state has");
  rows.keep("delta.output", of.values, dtype, kBehindRule, "V*T: input of the norm behind");
  rows.keep("delta.output_lengths", of.heads, DType::kFp32, kBehindRule, "H*T: of that norm, fp32");
  rows.keep("delta.normed_output", of.values, dtype, kBehindRule, "V*T: saved by the gate");
  rows.keep("delta.gate", of.values, dtype,
            {.born = Step::kForwardLayout, .last_forward_use = forward, .dies = kBehindRule.dies},
            "V*T: copied out of the packed product, saved by the gate");
  keep_mixer_output(block, "delta.gated_output", of.values, "V*T: saved by the projection");
  rows.use("delta.batch_first_output", block.plan.micro_batch > 1 ? of.values : 0, dtype, forward,
           Step::kForwardProjection, "V*T: before it is copied to sequence first");
}

// chunk_gated_delta_rule_bwd holds what it makes until it returns: states and their gradients;
// weights, two values and three gradients of values; gradients of queries and keys, of weights and
// once more of keys.
void add_backward(MegatronBlock& block, const DeltaElements& of) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const Step rule = Step::kBackwardAttention;
  const Step front = Step::kBackwardLayout;
  rows.use("delta.output_gradient", of.values, dtype, Step::kBackwardProjection, rule,
           "V*T: behind the gate, then before the norm");
  rows.use("delta.gate_gradient", of.values, dtype, Step::kBackwardProjection, front, "V*T");
  rows.use("delta.state_gradients", 2 * of.states, dtype, rule, rule,
           "2*H*d_k*d_v*T/64: states again, and their gradients");
  rows.use("delta.rule_gradients", 3 * of.repeated_keys + 3 * of.values, dtype, rule, rule,
           "(3P+3V)*T: weights and values again, and gradients that are not handed on");
  rows.use("delta.mixed_gradients", 2 * of.repeated_keys + of.values, dtype, rule, front,
           "(2P+V)*T: of queries, keys and values");
  rows.use("delta.key_gradients", of.repeats_keys() ? 2 * of.keys : 0, dtype, front, front,
           "2K*T: of queries and keys before they were repeated");
  rows.use("delta.convolution_gradients", 2 * of.convolved(), dtype, front, front,
           "2*(2K+V)*T: of the convolution's output and input");
  const bool is_two = block.job.profile.decoupled_in_proj;
  rows.use("delta.packed_gradient", of.packed(), dtype, front,
           is_two ? Step::kBackwardQkvGather : block.weight_step(Step::kBackwardQkv),
           "(2K+2V+2H)*T: all parts put together");
}

// Two products, each with a norm of its own in front: queries, keys, values and gates of one, steps
// and decays of the other, which --fp8-param-gather leaves in bf16. Their outputs are put together
// by heads, and held by the mixer's forward beside that; backward both parts are copied out.
void add_second_product(MegatronBlock& block, const DeltaElements& of) {
  if (!block.job.profile.decoupled_in_proj) {
    return;
  }
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const bool in_fp8 =
      block.plan.precision == Precision::kFp8 && !block.job.profile.fp8_param_gather;
  const std::int64_t parts =
      gathers_in_front(block.job, block.plan, block.layer) ? block.plan.tp : 1;
  const std::int64_t sequence = parts * block.shape.hidden * block.shape.sharded_tokens;
  rows.use("delta.products", of.packed(), dtype, Step::kForwardQkv, Step::kForwardProjection,
           "(2K+2V+2H)*T: both outputs before they are put together");
  rows.keep("delta.second_norm_statistics", parts * norm_statistics(block), DType::kFp32,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardNorm,
             .dies = Step::kBackwardNorm},
            "u: reciprocal root mean square, fp32");
  keep_where_saved(block, saves_normed_input(block, adapts_mixer_input(block.job)),
                   "delta.second_norm_output", in_fp8 ? block.linear_elements(sequence) : sequence,
                   in_fp8 ? DType::kFp8 : dtype,
                   {.born = Step::kForwardNorm,
                    .last_forward_use = Step::kForwardQkv,
                    .dies = block.weight_step(Step::kBackwardQkv)},
                   "h*u: saved by the product of steps and decays");
  rows.use("delta.product_gradients", of.packed(), dtype, Step::kBackwardQkvGather,
           block.weight_step(Step::kBackwardQkv), "(2K+2V+2H)*T: copied out for each product");
  rows.use("delta.second_norm_gradient", sequence, dtype, Step::kBackwardQkv, Step::kBackwardNorm,
           "h*u: gradient of its norm's output, then of its input");
}

}  // namespace

void add_delta_net(MegatronBlock& block) {
  const DeltaElements of = delta_elements(block);
  add_input_gathers(block);
  add_second_product(block, of);
  add_front(block, of);
  add_rule(block, of);
  add_backward(block, of);
  add_mixer_ends(block, of.packed() / block.shape.tokens);
}

}  // namespace shardplan::megatron
