#include "estimator/frameworks/nanotron/layer.h"

#include <string_view>

#include "estimator/frameworks/nanotron/block.h"

namespace shardplan::nanotron {
namespace {

// Around a pair of linear layers: names of the rows, and steps.
struct ExchangeRows {
  std::string_view partial;
  std::string_view gathered;
  std::string_view full_gradient;
  Step forward;
  Step backward;
  Step input_backward;
};

void add_sequence_exchange(NanotronBlock& b, const ExchangeRows& rows) {
  if (!b.s.gathers_sequence) {
    return;
  }
  b.rows.use(rows.partial, b.full_sequence(), b.s.dtype, rows.forward, rows.forward,
             "h*T: partial sums before the reduce-scatter");
  b.rows.use(rows.gathered, b.job.profile.keeps_gather_buffers ? 0 : b.full_sequence(), b.s.dtype,
             rows.backward, rows.backward, "h*T: output gradient, gathered");
  b.rows.use(rows.full_gradient, b.full_sequence(), b.s.dtype, rows.input_backward,
             rows.input_backward, "h*T: input gradient before its reduce-scatter");
}

// More than one sequence makes the transposed view non-contiguous. F.linear saves the copy; the
// product that scatters its sums by itself (_RowLinearAsyncCommunication; after v0.4, with the
// buffers that stay) the view.
void add_projection_input(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t copied = b.plan.micro_batch > 1 ? b.query() : 0;
  const bool saves_view = s.gathers_sequence && b.job.profile.keeps_gather_buffers;
  rows.keep("attention.projection_input", saves_view ? 0 : copied, s.dtype,
            {.born = Step::kForwardProjection,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardProjection},
            "a*d*T/t: a contiguous copy of the view");
  rows.use("attention.projection_input_copy", saves_view ? copied : 0, s.dtype,
           Step::kForwardProjection, Step::kForwardProjection, "a*d*T/t: for the product");
  rows.use("attention.projection_input_again", saves_view ? copied : 0, s.dtype,
           Step::kBackwardProjection, Step::kBackwardProjection,
           "a*d*T/t: for the product of the weight's gradient");
}

// Queries are rotated in place, in the storage that q, k and v were made contiguous in; keys and
// values are stacked into a second one. With fewer kv heads q has a storage of its own.
void add_attention_forward(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t query = b.query();
  const std::int64_t key_value = b.key_value();
  const bool is_mha = b.is_mha();
  const Life saved{.born = Step::kForwardLayout,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardAttention};
  rows.use("attention.packed_qkv", query + key_value, s.dtype, Step::kForwardQkv,
           Step::kForwardProjection, "(a+2k)*d*T/t: held by the forward's local variable")
      .is_first_product = true;
  rows.keep("attention.query_storage", is_mha ? query + key_value : query, s.dtype, saved,
            "3*a*d*T/t (a*d*T/t with fewer kv heads): q rotated in place inside it");
  rows.use("attention.separate_keys_values", is_mha ? 0 : key_value, s.dtype, Step::kForwardLayout,
           Step::kForwardProjection, "2*k*d*T/t: contiguous k and v, held by local variables");
  rows.use("attention.concatenated_keys_values", key_value, s.dtype, Step::kForwardLayout,
           Step::kForwardLayout, "2*k*d*T/t: torch.cat before the permute copies");
  rows.keep("attention.keys_values", key_value, s.dtype, saved,
            "2*k*d*T/t: saved by flash attention");
  rows.keep("attention.log_sum_exp", s.query_heads * s.tokens, DType::kFp32,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardAttention,
             .dies = Step::kBackwardAttention},
            "a*T/t: fp32");
  rows.keep("attention.output", query, s.dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardAttention},
            "a*d*T/t: saved by flash attention");
  add_projection_input(b);
  rows.use("attention.projection_output", b.sequence(), s.dtype, Step::kForwardProjection,
           Step::kForwardOutput, "h*u: the layer's local variable holds attention's answer");
}

void add_attention_backward(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t query = b.query();
  const std::int64_t key_value = b.key_value();
  const bool is_mha = b.is_mha();
  keep_weight_gradient(rows, "attention.projection_weight_gradient", s.hidden * s.query_width,
                       s.dtype, Step::kBackwardProjection);
  rows.use("attention.output_gradient", query, s.dtype, Step::kBackwardProjection,
           Step::kBackwardAttention, "a*d*T/t");
  rows.use("attention.query_gradient", query, s.dtype, Step::kBackwardAttention,
           Step::kBackwardLayout, "a*d*T/t");
  rows.use("attention.key_value_gradients", key_value, s.dtype, Step::kBackwardAttention,
           Step::kBackwardKeyValueReduce, "2*k*d*T/t: of k and of v");
  rows.split_last({key_value / 2, key_value - key_value / 2});
  rows.use("attention.query_accumulator", query, DType::kFp32, Step::kBackwardAttention,
           Step::kBackwardAttention, "a*d*T/t: flash attention's dQ in fp32");
  rows.use("attention.stacked_key_value_gradient", key_value, s.dtype,
           Step::kBackwardKeyValueReduce, Step::kBackwardLayout, "2*k*d*T/t");
  rows.use("attention.stacked_gradient", is_mha ? query + key_value : 0, s.dtype,
           Step::kBackwardLayout, Step::kBackwardQkvGather,
           "3*a*d*T/t: q, k and v in the order of the packed storage");
  rows.use("attention.packed_gradient", query + key_value, s.dtype,
           is_mha ? Step::kBackwardQkvGather : Step::kBackwardLayout, Step::kBackwardQkv,
           "(a+2k)*d*T/t");
  keep_weight_gradient(rows, "attention.qkv_weight_gradient",
                       s.hidden * (s.query_width + 2 * s.key_value_width), s.dtype,
                       Step::kBackwardQkv);
  add_sequence_exchange(b, {.partial = "attention.partial_output",
                            .gathered = "attention.gathered_output_gradient",
                            .full_gradient = "attention.full_input_gradient",
                            .forward = Step::kForwardProjection,
                            .backward = Step::kBackwardProjection,
                            .input_backward = Step::kBackwardQkv});
}

void add_ffn(NanotronBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t width = div_ceil(b.job.model.ffn, b.plan.tp);
  const std::int64_t activations = width * s.tokens;
  rows.keep("ffn.gate_up", 2 * activations, s.dtype,
            {.born = Step::kForwardFc1,
             .last_forward_use = Step::kForwardFc2,
             .dies = Step::kBackwardFc2Weight},
            "2f*T/t: gate and up, saved by silu and by the product");
  rows.keep("ffn.gate_activation", activations, s.dtype,
            {.born = Step::kForwardActivation,
             .last_forward_use = Step::kForwardActivation,
             .dies = Step::kBackwardActivation},
            "f*T/t: silu(gate), saved by the product");
  rows.keep("ffn.activation_output", activations, s.dtype,
            {.born = Step::kForwardActivation,
             .last_forward_use = Step::kForwardFc2,
             .dies = Step::kBackwardFc2},
            "f*T/t: input of the second linear layer");
  rows.use("ffn.output", b.sequence(), s.dtype, Step::kForwardFc2, Step::kForwardOutput, "h*u");
  keep_weight_gradient(rows, "ffn.down_weight_gradient", s.hidden * width, s.dtype,
                       Step::kBackwardFc2)
      .is_first_product = true;
  rows.use("ffn.activation_gradient", activations, s.dtype, Step::kBackwardFc2,
           Step::kBackwardActivation, "f*T/t");
  rows.use("ffn.gate_activation_gradient", activations, s.dtype, Step::kBackwardActivation,
           Step::kBackwardFc2Weight, "f*T/t: of silu(gate)");
  rows.use("ffn.up_gradient", activations, s.dtype, Step::kBackwardActivation,
           Step::kBackwardFc1Gather, "f*T/t");
  rows.use("ffn.gate_gradient", activations, s.dtype, Step::kBackwardFc2Weight,
           Step::kBackwardFc1Gather, "f*T/t");
  rows.use("ffn.gate_up_gradient", 2 * activations, s.dtype, Step::kBackwardFc1Gather,
           Step::kBackwardFc1, "2f*T/t: put together");
  keep_weight_gradient(rows, "ffn.gate_up_weight_gradient", 2 * s.hidden * width, s.dtype,
                       Step::kBackwardFc1);
  add_sequence_exchange(b, {.partial = "ffn.partial_output",
                            .gathered = "ffn.gathered_output_gradient",
                            .full_gradient = "ffn.full_input_gradient",
                            .forward = Step::kForwardFc2,
                            .backward = Step::kBackwardFc2,
                            .input_backward = Step::kBackwardFc1});
}

}  // namespace

void add_layer(NanotronBlock& b) {
  RowList& rows = b.rows;
  const DType dtype = b.s.dtype;
  rows.keep("input", b.sequence(), dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardNorm},
            "h*u: residual stream, saved by the norm");
  add_norm(b, {.statistics = "attention.norm_statistics",
               .output = "attention.norm_output",
               .local_output = "attention.local_norm_output",
               .norm = Step::kForwardNorm,
               .product = Step::kForwardQkv,
               .last_local = Step::kForwardProjection,
               .backward = Step::kBackwardQkv});
  add_attention_forward(b);
  add_attention_backward(b);
  rows.keep("ffn.input", b.sequence(), dtype,
            {.born = Step::kForwardProjection,
             .last_forward_use = Step::kForwardOutput,
             .dies = Step::kBackwardFfnNorm},
            "h*u: residual stream, saved by the norm");
  add_norm(b, {.statistics = "ffn.norm_statistics",
               .output = "ffn.norm_output",
               .local_output = "ffn.local_norm_output",
               .norm = Step::kForwardFfnNorm,
               .product = Step::kForwardFc1,
               .last_local = Step::kForwardFc2,
               .backward = Step::kBackwardFc1});
  add_ffn(b);
  rows.use("output_gradient", b.sequence(), dtype, Step::kBackwardOutput, Step::kBackwardFfnNorm,
           "h*u: kept for the residual path");
  rows.use("ffn.norm_gradient", b.sequence(), dtype, Step::kBackwardFc1, Step::kBackwardFfnNorm,
           "h*u");
  rows.use("ffn.input_gradient", b.sequence(), dtype, Step::kBackwardFfnNorm, Step::kBackwardNorm,
           "h*u");
  rows.use("attention.norm_gradient", b.sequence(), dtype, Step::kBackwardQkv, Step::kBackwardNorm,
           "h*u");
  rows.use("input_gradient", b.sequence(), dtype, Step::kBackwardNorm, Step::kBackwardInput, "h*u");
  rows.use("output", b.sequence(), dtype, Step::kForwardOutput, Step::kForwardOutput, "h*u");
  keep_weight_gradient(rows, "norm_weight_gradients", 2 * b.s.hidden, dtype,
                       Step::kBackwardFfnNorm);
}

}  // namespace shardplan::nanotron
