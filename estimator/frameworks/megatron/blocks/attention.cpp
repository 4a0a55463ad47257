// Attention of a Megatron layer: grouped-query and multi-latent, with norms, rotary embedding,
// projections and context parallelism. Letters in block_rows.h; ql, kl, dn, dr, dv are the widths
// of multi-latent attention.

#include "estimator/frameworks/megatron/blocks/attention.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/blocks/core_attention.h"
#include "estimator/frameworks/megatron/blocks/layer_ends.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/megatron/blocks/local_attention.h"
#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/frameworks/megatron/mixers/sparse_attention.h"

namespace shardplan::megatron {
namespace {

// Norms of queries and keys by PyTorch, on views of the packed product.
bool norms_packed_parts(const MegatronBlock& block) {
  return block.job.model.qk_norm && has_local_layers(block.job) && !block.job.model.is_mla();
}

void add_qkv_projection(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  const std::int64_t packed = s.tokens * widths.packed();
  add_input_gathers(block);
  const bool in_place = works_on_packed_qkv(block);
  const bool rotates = turns_positions(block.job.model);
  const bool checkpointed = keeps_packed_qkv(block);
  const bool is_saved = checkpointed || norms_packed_parts(block);
  rows.use("attention.packed_qkv", in_place || is_saved ? 0 : packed, s.dtype, Step::kForwardQkv,
           Step::kForwardLayout,
           "(a+2k)*d*T/t: output of the product, split and copied by the attention layout");
  rows.use("attention.unrotated_query", rotates ? s.tokens * widths.query : 0, s.dtype,
           Step::kForwardLayout, Step::kForwardLayout,
           "a*d*T/t: the reshape before the fused rotary embedding copies");
  rows.use("attention.unrotated_gradients", rotates ? s.tokens * (widths.query + widths.key) : 0,
           s.dtype, Step::kBackwardLayout, Step::kBackwardLayout,
           "(a+k)*d*T/t: gradients of q and k before the rotary embedding");
  rows.use("attention.packed_qkv_gradient", packed, s.dtype, Step::kBackwardLayout,
           block.weight_step(Step::kBackwardQkv), "(a+2k)*d*T/t");
  add_input_gradients(block, widths.packed());
  add_adapter(block, AdapterPlace::kQkv);
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
  const bool is_saved = saves_normed_input(block, adapts_qkv(block.job));
  keep_where_saved(block, is_saved, "attention.q_down_norm_output",
                   block.linear_elements(s.sharded_tokens * mla.q_lora_rank), block.linear_dtype(),
                   normed, "ql*u: input of the q up-projection");
  rows.keep("attention.kv_down", s.sharded_tokens * kv_down, s.dtype, raw,
            "(kl+dr)*u: input of the kv norm and the rotary part of the keys");
  keep_where_saved(block, is_saved, "attention.kv_down_norm_output",
                   block.linear_elements(s.sharded_tokens * mla.kv_lora_rank), block.linear_dtype(),
                   normed, "kl*u: input of the kv up-projection");
  rows.use("attention.compressed_gradients",
           s.sharded_tokens * (mla.q_lora_rank + kv_down + mla.kv_lora_rank), s.dtype,
           Step::kBackwardQkv, Step::kBackwardQkv, "(ql+2*kl+dr)*u");
  add_replicated_adapter(block, AdapterPlace::kQueryDown);
  add_adapter(block, AdapterPlace::kQueryUp);
  add_replicated_adapter(block, AdapterPlace::kKeyValueDown);
  add_adapter(block, AdapterPlace::kKeyValueUp);
}

// Without a fused kernel queries and keys are multiplied with cosines and sines, each cast once for
// both: core/models/common/embeddings/rope_utils.py, _apply_rotary_pos_emb_bshd.
void add_rotary_tables(MegatronBlock& block) {
  const Job& job = block.job;
  const bool is_fused =
      job.profile.rope_fusion || !turns_positions(job.model) || job.model.is_mla();
  const std::int64_t angles = div_ceil(job.sequence_length, block.plan.cp) * job.model.head_dim;
  block.rows.keep("attention.rotary_tables", is_fused ? 0 : 4 * angles, block.shape.dtype,
                  {.born = Step::kForwardLayout,
                   .last_forward_use = Step::kForwardLayout,
                   .dies = Step::kBackwardLayout},
                  "4*s*d/c: cosines and sines of queries and of keys");
}

// Norms of queries and keys. PyTorch's save the keys as they lie in the packed product, which stays
// alive, and queries copied out of it where they are no view, with their statistics.
void add_head_norms(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const AttentionWidths widths = attention_widths(block);
  const Life saved{.born = Step::kForwardLayout,
                   .last_forward_use = Step::kForwardLayout,
                   .dies = Step::kBackwardLayout};
  if (!norms_packed_parts(block)) {
    block.rows.keep("attention.qk_norm_input", s.tokens * (widths.query + widths.key), s.dtype,
                    saved, "(a+k)*d*T/t: inputs of the norms of q and k");
    return;
  }
  block.rows.keep("attention.packed_qkv", keeps_packed_qkv(block) ? 0 : s.tokens * widths.qkv(),
                  s.dtype,
                  {.born = Step::kForwardQkv,
                   .last_forward_use = Step::kForwardLayout,
                   .dies = Step::kBackwardLayout},
                  "(a+2k)*d*T/t: the norm of k saves a view of it");
  block.rows.keep("attention.query_norm_input", copies_query(s) ? s.tokens * widths.query : 0,
                  s.dtype, saved, "a*d*T/t: q copied out of the packed product");
  block.rows.keep("attention.head_norm_statistics", s.tokens * (s.query_heads + s.key_value_heads),
                  DType::kFp32, saved, "(a+k)*T/t: reciprocal root mean squares");
}

// A checkpoint around core attention saves what it is given: q and k after the rotary embedding,
// and v as a part of the packed product. The copies in one layout are made inside it. Core's own
// attention saves the same, and makes none.
void add_checkpointed_qkv(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const AttentionWidths widths = attention_widths(block);
  const bool rotates = turns_positions(block.job.model);
  const bool batch_first = copies_batch_first(block);
  const auto saved = [](Step born) {
    return Life{.born = born,
                .last_forward_use = Step::kForwardAttention,
                .dies = Step::kBackwardAttention};
  };
  Life packed = saved(Step::kForwardQkv);
  packed.dies = norms_packed_parts(block) ? Step::kBackwardLayout : packed.dies;
  block.rows.keep("attention.packed_qkv", s.tokens * widths.packed(), s.dtype, packed,
                  "(a+2k)*d*T/t: held by the checkpoint, v is a part");
  block.rows.keep("attention.rotated_query_key",
                  rotates ? s.tokens * (widths.query + widths.key) : 0, s.dtype,
                  saved(Step::kForwardLayout), "(a+k)*d*T/t: the checkpoint's q and k");
  block.rows.recompute("attention.one_layout",
                       has_local_layers(block.job) ? 0
                       : rotates && !batch_first   ? s.tokens * widths.value
                                                   : s.tokens * widths.qkv(),
                       s.dtype, saved(Step::kForwardAttention), Step::kBackwardAttention,
                       "k*d*T/t: v copied out of the packed product, to the layout of q and k");
}

void add_qkv(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  const bool repeats = repeats_key_values(block);
  const std::int64_t elements = s.tokens * (repeats ? widths.query : widths.qkv());
  const Life life{.born = works_on_packed_qkv(block) ? Step::kForwardQkv : Step::kForwardLayout,
                  .last_forward_use = Step::kForwardAttention,
                  .dies = Step::kBackwardAttention};
  if (block.job.model.is_mla() && block.selective() && block.recomputed().mla_up_proj) {
    rows.recompute("attention.qkv", elements, s.dtype, life, Step::kBackwardAttention,
                   "(2*a*(dn+dr)+a*dv)*T/t: mla_up_proj recompute discards q, k and v");
    rows.use("attention.qkv_again", elements, s.dtype, Step::kBackwardAttention, Step::kBackwardQkv,
             kComputedAgain);
  } else if (keeps_packed_qkv(block)) {
    add_checkpointed_qkv(block);
  } else {
    rows.keep("attention.qkv", elements, s.dtype, life,
              repeats ? "a*d*T/t: q, copied out of the packed product"
                      : "(a+2k)*d*T/t: q and k after the rotary embedding, v copied out of the "
                        "packed product: TE's fused attention wants one layout");
  }
  if (block.job.model.qk_norm) {
    add_head_norms(block);
  }
  add_rotary_tables(block);
}

// SelfAttention, _apply_output_gate, compiled: the gate, a copy out of the packed product, and the
// output that it multiplies are saved by it, their product by the projection.
void add_output_gate(MegatronBlock& block) {
  const std::int64_t gate = block.shape.tokens * attention_widths(block).gate;
  const DType dtype = block.shape.dtype;
  block.rows.keep("attention.gate", gate, dtype,
                  {.born = Step::kForwardLayout,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardProjection},
                  "a*d*T/t: saved by the gate's product");
  keep_where_saved(block,
                   saves_input(block, adapts_projection(block.job)) && !block.saves_fp8_of_saved(),
                   "attention.gated_output", gate, dtype,
                   {.born = Step::kForwardProjection,
                    .last_forward_use = Step::kForwardProjection,
                    .dies = block.weight_step(Step::kBackwardProjection)},
                   "a*d*T/t: saved by the projection");
  block.rows.use("attention.gate_gradient", gate, dtype, Step::kBackwardProjection,
                 Step::kBackwardLayout, "a*d*T/t");
}

}  // namespace

void add_projection(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  const std::int64_t input = block.linear_elements(s.tokens * widths.output);
  const bool is_fp8 = block.plan.precision == Precision::kFp8;
  // Behind a mixer that works on the whole sequence gradients are gathered before they are rounded.
  const bool is_whole = gathers_in_front(block.job, block.plan, block.layer);
  // Attention alone tells its projection to save what it was given.
  if (is_fp8 && (block.saves_fp8_of_saved() || block.layer.mixer != MixerKind::kAttention)) {
    rows.keep("attention.projection_input_fp8", input, DType::kFp8,
              {.born = Step::kForwardProjection,
               .last_forward_use = Step::kForwardProjection,
               .dies = block.weight_step(Step::kBackwardProjection)},
              "a*d*T/t: the projection saves its own fp8 copy of the attention output");
  } else if (is_fp8) {
    rows.use("attention.projection_input_fp8", input, DType::kFp8, Step::kForwardProjection,
             Step::kForwardProjection, "a*d*T/t: cast for the product, saved in bf16");
    rows.use("attention.projection_input_fp8_again", input, DType::kFp8,
             block.weight_step(Step::kBackwardProjection),
             block.weight_step(Step::kBackwardProjection), "a*d*T/t: cast for the weight gradient");
  }
  if (s.gathers_sequence) {
    rows.use("attention.full_projection_output", s.hidden * s.tokens, s.dtype,
             Step::kForwardProjection, Step::kForwardProjection,
             "h*T: partial sums before the reduce-scatter");
    rows.use("attention.gathered_projection_gradient",
             is_whole ? s.hidden * s.tokens : block.output_gradient(s.hidden * s.tokens),
             is_whole ? s.dtype : block.linear_dtype(), Step::kBackwardProjection,
             block.weight_step(Step::kBackwardProjection),
             "h*T: output gradient gathered for both products of the projection");
  }
  const std::int64_t dropped = drops_hidden(block) ? s.hidden * s.sharded_tokens : 0;
  rows.keep("attention.hidden_dropout_mask", dropped, DType::kBool,
            {.born = Step::kForwardProjection,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardProjection},
            "h*u: saved by the fused addition of bias, dropout and residual");
  rows.use("attention.dropped_gradient", dropped, s.dtype, Step::kBackwardProjection,
           Step::kBackwardProjection, "h*u: gradient behind dropout");
  rows.use("attention.projection_output", s.hidden * s.sharded_tokens, s.dtype,
           Step::kForwardProjection, Step::kForwardProjection, "h*u: before the residual add");
  if (block.job.model.norms_per_layer > 2) {
    rows.keep("attention.post_norm_input", s.hidden * s.sharded_tokens, s.dtype,
              {.born = Step::kForwardProjection,
               .last_forward_use = Step::kForwardProjection,
               .dies = Step::kBackwardProjection},
              "h*u: input of the norm after attention (Gemma 2 and 3)");
  }
  const auto add_gradient = s.gathers_sequence && !is_whole ? add_fp8_part : add_fp8_cast;
  add_gradient(block, "attention.projection_gradient_fp8",
               s.hidden * (is_whole ? s.tokens : s.sharded_tokens), Step::kBackwardProjection);
  add_linear_gradient(block, "attention.projection_weight_gradient", s.hidden * widths.output,
                      block.weight_step(Step::kBackwardProjection));
}

void add_attention(MegatronBlock& block) {
  add_qkv_projection(block);
  if (block.job.model.is_mla()) {
    add_mla_compression(block);
  }
  if (block.layer.has_indexer) {
    add_sparse_attention(block);
  } else {
    add_qkv(block);
    add_te_attention(block);
  }
  add_output_gate(block);
  add_projection(block);
  add_adapter(block, AdapterPlace::kProjection);
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

}  // namespace shardplan::megatron
