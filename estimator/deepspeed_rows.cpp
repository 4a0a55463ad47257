// Row tables of Hugging Face's Llama in eager PyTorch, as DeepSpeed trains it. Source:
// transformers 4.57 models/llama/modeling_llama.py (LlamaRMSNorm, LlamaAttention, LlamaMLP),
// integrations/sdpa_attention.py, loss/loss_utils.py (ForCausalLMLoss). No tensor, sequence or
// pipeline parallelism. Letters in block_rows.h.
#include <stdexcept>

#include "estimator/eager_rows.h"

namespace shardplan {
namespace {

struct EagerBlock {
  const Job& job;
  const Plan& plan;
  BlockShape s;
  RowList& rows;

  std::int64_t sequence() const { return s.hidden * s.tokens; }
};

// The norm in fp32: the cast input (saved by the square and by the product), its statistics, the
// normed value in bf16 (saved by the product with the weight), the output (saved by what follows).
void add_norm(EagerBlock& b, std::string_view cast, std::string_view normed,
              std::string_view output, std::string_view gradient, Step forward, Step last_use,
              Step backward) {
  b.rows.keep(cast, b.sequence() + 2 * b.s.tokens, DType::kFp32,
              {.born = forward, .last_forward_use = forward, .dies = backward},
              "(h+2)*T: input in fp32, mean of squares and its root");
  b.rows.keep(normed, b.sequence(), b.s.dtype,
              {.born = forward, .last_forward_use = forward, .dies = backward},
              "h*T: cast back, saved by the product with the weight");
  b.rows.keep(output, b.sequence(), b.s.dtype,
              {.born = forward, .last_forward_use = last_use, .dies = backward},
              "h*T: input of the linear layers");
  b.rows.use(gradient, 3 * b.sequence(), DType::kFp32, backward, backward,
             "3h*T: gradients of the norm in fp32");
}

// Without a mask on CUDA the attention itself takes fewer key and value heads (use_gqa_in_sdpa), so
// that nothing repeats them; its backward makes their gradients for every query head and adds them
// up (flash-attention csrc/flash_attn/flash_api.cpp mha_bwd: dk_expanded, dv_expanded).
void add_attention(EagerBlock& b) {
  const BlockShape& s = b.s;
  RowList& rows = b.rows;
  const std::int64_t query = s.query_width * s.tokens;
  const std::int64_t key_value = 2 * s.key_value_width * s.tokens;
  const Life saved{.born = Step::kForwardLayout,
                   .last_forward_use = Step::kForwardAttention,
                   .dies = Step::kBackwardAttention};
  const bool is_grouped = b.job.model.num_heads != b.job.model.num_kv_heads;
  rows.use("attention.projections", query + key_value / 2, s.dtype, Step::kForwardQkv,
           Step::kForwardProjection, "(a+k)*d*T: q and k, held by the forward's local variables");
  rows.use("attention.rotary_parts", 2 * query, s.dtype, Step::kForwardLayout, Step::kForwardLayout,
           "2*a*d*T: rotate_half and the products with cos and sin");
  rows.keep("attention.qkv", query + key_value, s.dtype, saved,
            "(a+2k)*d*T: q and k after the rotary embedding, v as projected");
  rows.keep("attention.log_sum_exp", s.query_heads * s.tokens, DType::kFp32, saved, "a*T");
  rows.keep("attention.output", query, s.dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardAttention},
            "a*d*T: saved by the attention and by the projection");
  rows.use("attention.projection_output", b.sequence(), s.dtype, Step::kForwardProjection,
           Step::kForwardProjection, "h*T");
  rows.use("attention.gradients", 2 * query + key_value, s.dtype, Step::kBackwardAttention,
           Step::kBackwardAttention, "2*(a+k)*d*T: of output, q, k and v");
  rows.use("attention.expanded_gradients", is_grouped ? 2 * query : 0, s.dtype,
           Step::kBackwardAttention, Step::kBackwardAttention,
           "2*a*d*T: of k and v for every query head, before they are added up");
  rows.use("attention.query_accumulator", query, DType::kFp32, Step::kBackwardAttention,
           Step::kBackwardAttention, "a*d*T: dQ in fp32");
  rows.use("attention.projection_gradients", 2 * (query + key_value), s.dtype,
           Step::kBackwardLayout, Step::kBackwardQkv, "2*(a+2k)*d*T");
}

void add_ffn(EagerBlock& b) {
  const BlockShape& s = b.s;
  const std::int64_t activations = b.job.model.ffn * s.tokens;
  b.rows.keep("ffn.gate_and_up", 2 * activations, s.dtype,
              {.born = Step::kForwardFc1,
               .last_forward_use = Step::kForwardActivation,
               .dies = Step::kBackwardActivation},
              "2f*T: saved by silu and by the product");
  b.rows.keep("ffn.gate_activation", activations, s.dtype,
              {.born = Step::kForwardActivation,
               .last_forward_use = Step::kForwardActivation,
               .dies = Step::kBackwardActivation},
              "f*T: silu(gate)");
  b.rows.keep("ffn.activation_output", activations, s.dtype,
              {.born = Step::kForwardActivation,
               .last_forward_use = Step::kForwardFc2,
               .dies = Step::kBackwardFc2},
              "f*T: input of the down projection");
  b.rows.use("ffn.output", b.sequence(), s.dtype, Step::kForwardFc2, Step::kForwardOutput, "h*T");
  b.rows.use("ffn.activation_gradient", activations, s.dtype, Step::kBackwardFc2,
             Step::kBackwardActivation, "f*T");
  b.rows.use("ffn.gate_and_up_gradients", 3 * activations, s.dtype, Step::kBackwardActivation,
             Step::kBackwardFc1, "3f*T: of silu, gate and up");
}

void add_layer(EagerBlock& b) {
  RowList& rows = b.rows;
  rows.keep("input", b.sequence(), b.s.dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kForwardProjection},
            "h*T: residual stream; no operation saves it");
  add_norm(b, "attention.norm_fp32", "attention.normed", "attention.norm_output",
           "attention.norm_gradients", Step::kForwardNorm, Step::kForwardQkv, Step::kBackwardNorm);
  add_attention(b);
  rows.use("ffn.input", b.sequence(), b.s.dtype, Step::kForwardProjection, Step::kForwardOutput,
           "h*T: residual stream");
  add_norm(b, "ffn.norm_fp32", "ffn.normed", "ffn.norm_output", "ffn.norm_gradients",
           Step::kForwardFfnNorm, Step::kForwardFc1, Step::kBackwardFfnNorm);
  add_ffn(b);
  rows.use("output", b.sequence(), b.s.dtype, Step::kForwardOutput, Step::kForwardOutput, "h*T");
  rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardOutput,
           Step::kBackwardFfnNorm, "h*T");
  rows.use("input_gradient", b.sequence(), b.s.dtype, Step::kBackwardFfnNorm, Step::kBackwardInput,
           "h*T");
}

void add_embedding(EagerBlock& b) {
  b.rows.keep("token_ids", b.s.tokens, DType::kInt64,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardOutput,
               .dies = Step::kBackwardInput},
              "T");
  b.rows.use("output", b.sequence(), b.s.dtype, Step::kForwardOutput, Step::kForwardOutput, "h*T");
  b.rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardOutput,
             Step::kBackwardInput, "h*T");
  b.rows.use("weight_gradient", b.s.local_vocab * b.s.hidden, b.s.dtype, Step::kBackwardInput,
             Step::kBackwardInput, "h*V");
}

// logits.float(), then cross_entropy over labels shifted by padding: the log-softmax is saved.
void add_head(EagerBlock& b) {
  const std::int64_t logits = b.s.local_vocab * b.s.tokens;
  add_norm(b, "final_norm.fp32", "final_norm.normed", "final_norm.output", "final_norm.gradients",
           Step::kForwardInput, Step::kForwardLogits, Step::kBackwardInput);
  b.rows.use("logits", logits, b.s.dtype, Step::kForwardLogits, Step::kForwardLoss,
             "V*T: part of the model's output until the loss has returned");
  b.rows.use("logits_fp32", logits, DType::kFp32, Step::kForwardLoss, Step::kForwardLoss, "V*T");
  b.rows.keep("loss.log_softmax", logits, DType::kFp32,
              {.born = Step::kForwardLoss,
               .last_forward_use = Step::kForwardLoss,
               .dies = Step::kBackwardLoss},
              "V*T: saved by cross_entropy");
  b.rows.keep("labels", b.s.tokens, DType::kInt64,
              {.born = Step::kForwardInput,
               .last_forward_use = Step::kForwardLoss,
               .dies = Step::kBackwardLoss},
              "T");
  b.rows.use("loss.gradient_fp32", logits, DType::kFp32, Step::kBackwardLoss, Step::kBackwardLoss,
             "V*T: of the log-softmax");
  b.rows.use("loss.logits_gradient", logits, b.s.dtype, Step::kBackwardLoss, Step::kBackwardLogits,
             "V*T: cast back");
  b.rows.use("weight_gradient", b.s.local_vocab * b.s.hidden, b.s.dtype, Step::kBackwardLogits,
             Step::kBackwardLogits, "h*V");
  b.rows.use("output_gradient", b.sequence(), b.s.dtype, Step::kBackwardLogits,
             Step::kBackwardInput, "h*T");
}

}  // namespace

std::vector<BlockRow> deepspeed_rows(const Job& job, const Plan& plan, BlockKind kind) {
  return eager_rows(job, plan, kind, add_embedding, add_layer, add_head);
}

}  // namespace shardplan
