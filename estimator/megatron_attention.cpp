// Attention of a Megatron layer: grouped-query and multi-latent, with norms, rotary embedding,
// projections and context parallelism. Letters in block_rows.h; ql, kl, dn, dr, dv are the widths
// of multi-latent attention.
#include <algorithm>

#include "estimator/block_rows_megatron.h"
#include "estimator/outside_memory.h"

namespace shardplan {
namespace {

struct AttentionWidths {  // per token on one tp rank
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t value = 0;
  std::int64_t output = 0;
  std::int64_t head_dim = 0;  // of queries and keys
  std::int64_t qkv() const { return query + key + value; }
};

AttentionWidths attention_widths(const MegatronBlock& block) {
  const BlockShape& shape = block.shape;
  const MlaSpec& mla = block.job.model.mla;
  if (block.job.model.attention == AttentionKind::kMla) {
    const std::int64_t head = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
    return {.query = shape.query_heads * head,
            .key = shape.query_heads * head,
            .value = shape.query_heads * mla.v_head_dim,
            .output = shape.query_heads * mla.v_head_dim,
            .head_dim = head};
  }
  return {.query = shape.query_width,
          .key = shape.key_value_width,
          .value = shape.key_value_width,
          .output = shape.query_width,
          .head_dim = block.job.model.head_dim};
}

void add_qkv_projection(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  const std::int64_t packed = s.tokens * widths.qkv();
  if (s.gathers_sequence) {
    rows.use("attention.gathered_norm_output", s.hidden * s.tokens, block.linear_dtype(),
             Step::kForwardQkv, Step::kForwardQkv,
             "h*T: LayerNormLinear gathers its input for the product and frees it");
    rows.use("attention.gathered_norm_output_again", s.hidden * s.tokens, block.linear_dtype(),
             Step::kBackwardQkv, block.weight_step(Step::kBackwardQkv),
             "h*T: gathered again for the weight gradient");
    rows.use("attention.full_norm_gradient", s.hidden * s.tokens, s.dtype, Step::kBackwardQkv,
             Step::kBackwardQkv, "h*T: input gradient before its reduce-scatter");
  }
  rows.use("attention.packed_qkv", packed, s.dtype, Step::kForwardQkv, Step::kForwardLayout,
           "(a+2k)*d*T/t: output of the product, split and copied by the attention layout");
  rows.use("attention.unrotated_query", s.tokens * widths.query, s.dtype, Step::kForwardLayout,
           Step::kForwardLayout, "a*d*T/t: the reshape before the fused rotary embedding copies");
  rows.use("attention.unrotated_gradients", s.tokens * (widths.query + widths.key), s.dtype,
           Step::kBackwardLayout, Step::kBackwardLayout,
           "(a+k)*d*T/t: gradients of q and k before the rotary embedding");
  rows.use("attention.packed_qkv_gradient", packed, s.dtype, Step::kBackwardLayout,
           block.weight_step(Step::kBackwardQkv), "(a+2k)*d*T/t");
  rows.use("attention.norm_gradient", s.hidden * s.sharded_tokens, s.dtype, Step::kBackwardQkv,
           Step::kBackwardNorm, "h*u: gradient of the norm's output");
  add_fp8_cast(block, "attention.packed_qkv_gradient_fp8", packed, Step::kBackwardQkv);
  add_weight_gradient(block, "attention.qkv_weight_gradient", s.hidden * widths.qkv(),
                      Step::kBackwardQkv);
}

// Down-projections are duplicated over tp and work on this rank's share of the sequence; the norms
// of the compressed vectors are part of the up-projections (LayerNormLinear), which save both.
void add_mla_compression(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const MlaSpec& mla = block.job.model.mla;
  RowList& rows = block.rows;
  const std::int64_t kv_down = mla.kv_lora_rank + mla.qk_rope_head_dim;
  const Life raw{.born = Step::kForwardQkv,
                 .last_forward_use = Step::kForwardLayout,
                 .dies = Step::kBackwardQkv};
  const Life normed{.born = Step::kForwardQkv,
                    .last_forward_use = Step::kForwardLayout,
                    .dies = block.weight_step(Step::kBackwardQkv)};
  rows.keep("attention.q_down", s.sharded_tokens * mla.q_lora_rank, s.dtype, raw,
            "ql*u: input of the q norm");
  rows.keep("attention.q_down_norm_output", s.sharded_tokens * mla.q_lora_rank,
            block.linear_dtype(), normed, "ql*u: input of the q up-projection");
  rows.keep("attention.kv_down", s.sharded_tokens * kv_down, s.dtype, raw,
            "(kl+dr)*u: input of the kv norm and the rotary part of the keys");
  rows.keep("attention.kv_down_norm_output", s.sharded_tokens * mla.kv_lora_rank,
            block.linear_dtype(), normed, "kl*u: input of the kv up-projection");
  rows.use("attention.compressed_gradients",
           s.sharded_tokens * (mla.q_lora_rank + kv_down + mla.kv_lora_rank), s.dtype,
           Step::kBackwardQkv, Step::kBackwardQkv, "(ql+2*kl+dr)*u");
}

void add_qkv(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  const std::int64_t elements = s.tokens * widths.qkv();
  const Life life{.born = Step::kForwardLayout,
                  .last_forward_use = Step::kForwardAttention,
                  .dies = Step::kBackwardAttention};
  const bool mla = block.job.model.attention == AttentionKind::kMla;
  if (mla && block.selective() && block.recomputed().mla_up_proj) {
    rows.recompute("attention.qkv", elements, s.dtype, life, Step::kBackwardAttention,
                   "(2*a*(dn+dr)+a*dv)*T/t: mla_up_proj recompute discards q, k and v");
  } else {
    rows.keep("attention.qkv", elements, s.dtype, life,
              "(a+2k)*d*T/t: q and k after the rotary embedding, v copied out of the packed "
              "product: TE's fused attention wants one layout");
  }
  if (block.job.model.qk_norm) {
    rows.keep("attention.qk_norm_input", s.tokens * (widths.query + widths.key), s.dtype,
              {.born = Step::kForwardLayout,
               .last_forward_use = Step::kForwardLayout,
               .dies = Step::kBackwardLayout},
              "(a+k)*d*T/t: inputs of the norms of q and k");
  }
}

AttentionShape backward_shape(const MegatronBlock& block, const AttentionWidths& widths) {
  const Job& job = block.job;
  const Plan& plan = block.plan;
  const bool mla = job.model.attention == AttentionKind::kMla;
  AttentionShape shape{.batch = plan.micro_batch,
                       .query_heads = block.shape.query_heads,
                       .kv_heads = mla ? block.shape.query_heads : block.shape.key_value_heads,
                       .query_length = div_ceil(job.sequence_length, plan.cp),
                       .kv_length = div_ceil(job.sequence_length, plan.cp),
                       .head_dim = widths.head_dim};
  if (plan.cp > 1 && plan.cp_method == CpMethod::kA2a) {
    shape.query_heads = div_ceil(shape.query_heads, plan.cp);
    shape.kv_heads = div_ceil(shape.kv_heads, plan.cp);
    shape.query_length = shape.kv_length = job.sequence_length;
  }
  if (plan.cp > 1 && plan.cp_method == CpMethod::kAllGather) {
    shape.query_length = div_ceil(job.sequence_length, 2 * plan.cp);
    shape.kv_length = job.sequence_length;
  }
  return shape;
}

void add_core_attention(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  const std::int64_t statistics = s.query_heads * s.tokens;
  const Life saved{.born = Step::kForwardAttention,
                   .last_forward_use = Step::kForwardAttention,
                   .dies = Step::kBackwardAttention};
  if (block.selective() && block.recomputed().core_attn) {
    rows.recompute("attention.log_sum_exp", statistics, DType::kFp32, saved,
                   Step::kBackwardAttention, "a*T/t: softmax statistics, replayed");
    rows.use("attention.output_replayed", s.tokens * widths.output, s.dtype,
             Step::kBackwardAttention, Step::kBackwardAttention,
             "a*d*T/t: core_attn recompute computes the output a second time");
  } else {
    rows.keep("attention.log_sum_exp", statistics, DType::kFp32, saved,
              "a*T/t: softmax statistics of cuDNN or FlashAttention, fp32");
  }
  rows.keep("attention.output", s.tokens * widths.output, s.dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = block.weight_step(Step::kBackwardAttention)},
            "a*d*T/t: saved by attention and, the same tensor, by the projection");
  rows.use("attention.output_gradient", s.tokens * widths.output, s.dtype,
           Step::kBackwardProjection, Step::kBackwardAttention, "a*d*T/t");
  rows.use("attention.qkv_gradient", s.tokens * widths.qkv(), s.dtype, Step::kBackwardAttention,
           Step::kBackwardLayout, "(a+2k)*d*T/t");
  const std::int64_t workspace = cudnn_backward_workspace_bytes(
      backward_shape(block, widths), block.job.profile.deterministic_attention);
  rows.use_as(Component::kWorkspace, "attention.backward_workspace",
              div_ceil(workspace, bytes_of(DType::kFp32)), DType::kFp32, Step::kBackwardAttention,
              Step::kBackwardAttention,
              "cuDNN 9 closed form: fp32 dQ and softmax sums, full-head dK and dV under GQA");
}

void add_projection(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  if (block.plan.precision == Precision::kFp8) {
    rows.keep("attention.projection_input_fp8", s.tokens * widths.output, DType::kFp8,
              {.born = Step::kForwardProjection,
               .last_forward_use = Step::kForwardProjection,
               .dies = block.weight_step(Step::kBackwardProjection)},
              "a*d*T/t: the projection saves its own fp8 copy of the attention output");
  }
  if (s.gathers_sequence) {
    rows.use("attention.full_projection_output", s.hidden * s.tokens, s.dtype,
             Step::kForwardProjection, Step::kForwardProjection,
             "h*T: partial sums before the reduce-scatter");
    rows.use("attention.gathered_projection_gradient", s.hidden * s.tokens, block.linear_dtype(),
             Step::kBackwardProjection, block.weight_step(Step::kBackwardProjection),
             "h*T: output gradient gathered for both products of the projection");
  }
  rows.use("attention.projection_output", s.hidden * s.sharded_tokens, s.dtype,
           Step::kForwardProjection, Step::kForwardProjection, "h*u: before the residual add");
  if (block.job.model.norms_per_layer > 2) {
    rows.keep("attention.post_norm_input", s.hidden * s.sharded_tokens, s.dtype,
              {.born = Step::kForwardProjection,
               .last_forward_use = Step::kForwardProjection,
               .dies = Step::kBackwardProjection},
              "h*u: input of the norm after attention (Gemma 2 and 3)");
  }
  add_fp8_cast(block, "attention.projection_gradient_fp8", s.hidden * s.tokens,
               Step::kBackwardProjection);
  add_weight_gradient(block, "attention.projection_weight_gradient", s.hidden * widths.output,
                      Step::kBackwardProjection);
}

}  // namespace

void add_layer_input(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t sequence = s.hidden * s.sharded_tokens;
  rows.keep("input", sequence, s.dtype,
            {.born = Step::kForwardInput,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardNorm},
            "h*u: residual stream, saved as input of the attention norm");
  rows.keep("attention.norm_statistics", norm_statistics(block), DType::kFp32,
            {.born = Step::kForwardNorm,
             .last_forward_use = Step::kForwardNorm,
             .dies = Step::kBackwardNorm},
            "u: reciprocal root mean square (LayerNorm: and the mean), fp32");
  const Life norm{
      .born = Step::kForwardNorm,
      .last_forward_use = Step::kForwardQkv,
      .dies = s.gathers_sequence ? Step::kBackwardQkv : block.weight_step(Step::kBackwardQkv)};
  if (block.selective() && block.recomputed().layernorm) {
    rows.recompute("attention.norm_output", sequence, block.linear_dtype(), norm,
                   Step::kBackwardQkv, "h*u: layernorm recompute computes it again in backward");
  } else {
    rows.keep("attention.norm_output", sequence, block.linear_dtype(), norm,
              "h*u: saved sharded by LayerNormLinear, gathered again in backward");
  }
  rows.use("output_gradient", sequence, s.dtype, Step::kBackwardOutput, Step::kBackwardFfnNorm,
           "h*u: arrives from the next layer, kept for the residual path");
  rows.use("ffn_input_gradient", sequence, s.dtype, Step::kBackwardFfnNorm, Step::kBackwardNorm,
           "h*u: gradient between attention and FFN, residual added");
  rows.use("input_gradient", sequence, s.dtype, Step::kBackwardNorm, Step::kBackwardInput,
           "h*u: leaves to the layer before");
  rows.use("output", sequence, s.dtype, Step::kForwardOutput, Step::kForwardOutput,
           "h*u: becomes the input of the next layer");
}

void add_attention(MegatronBlock& block) {
  add_qkv_projection(block);
  if (block.job.model.attention == AttentionKind::kMla) {
    add_mla_compression(block);
  }
  add_qkv(block);
  add_core_attention(block);
  add_projection(block);
}

// Transformer Engine, context_parallel.py. KV = 2*k*d*T/t elements of this rank's keys and values.
void add_context_parallel(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const AttentionWidths widths = attention_widths(block);
  RowList& rows = block.rows;
  const std::int64_t c = block.plan.cp;
  const std::int64_t key_values = s.tokens * (widths.key + widths.value);
  const std::int64_t output = s.tokens * widths.output;
  const Step forward = Step::kForwardAttention;
  const Step backward = Step::kBackwardAttention;
  const Component comm = Component::kCommunication;
  if (c == 1) {
    return;
  }
  switch (block.plan.cp_method) {
    case CpMethod::kRing:
      rows.use_as(comm, "attention.ring_key_values", c * key_values, s.dtype, forward, forward,
                  "c*KV: one receive buffer per step, all alive until the call returns");
      rows.use("attention.ring_step_outputs", c * output, s.dtype, forward, forward,
               "c*a*d*T/t: outputs of every step, combined at the end");
      rows.use("attention.ring_step_statistics", (c + 2) * s.query_heads * s.tokens, DType::kFp32,
               forward, forward, "(c+2)*a*T/t: per step in fp32, their combination in fp64");
      rows.use_as(comm, "attention.ring_exchange", 4 * key_values, s.dtype, backward, backward,
                  "4*KV: two buffers of keys and values with their gradients");
      rows.use("attention.ring_step_gradients", s.tokens * widths.qkv(), s.dtype, backward,
               backward, "(a+2k)*d*T/t: gradients of one step before they are added");
      break;
    case CpMethod::kAllGather:
      rows.keep("attention.step_outputs", output, s.dtype,
                {.born = forward, .last_forward_use = forward, .dies = backward},
                "a*d*T/t: outputs of the two halves, saved apart from the projection's input");
      rows.use_as(comm, "attention.gathered_key_values", 2 * c * key_values, s.dtype, forward,
                  forward, "2*c*KV: gathered, and reordered to sequence order");
      rows.use_as(comm, "attention.gathered_key_values_again", 2 * c * key_values, s.dtype,
                  backward, backward, "2*c*KV");
      rows.use_as(comm, "attention.gathered_key_value_gradients", c * key_values, s.dtype, backward,
                  backward, "c*KV: before their reduce-scatter");
      break;
    case CpMethod::kA2a:
      rows.keep("attention.output_before_a2a", output, s.dtype,
                {.born = forward, .last_forward_use = forward, .dies = backward},
                "a*d*T/t: saved by attention apart from the projection's input (TE >= 2.8)");
      rows.use_as(comm, "attention.a2a_forward", 2 * s.tokens * widths.query, s.dtype, forward,
                  forward, "2*a*d*T/t: reordered and received queries");
      rows.use_as(comm, "attention.a2a_backward", 2 * s.tokens * widths.query, s.dtype, backward,
                  backward, "2*a*d*T/t: reordered and received gradients");
      break;
  }
}

}  // namespace shardplan
