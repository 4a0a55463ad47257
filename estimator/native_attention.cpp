// Attention of a native layer, with its norm and context parallelism.
#include "estimator/block_rows_native.h"
#include "estimator/outside_memory.h"

namespace shardplan {
namespace {

AttentionShape attention_shape(const NativeBlock& block) {
  const Job& job = block.job;
  const std::int64_t c = block.plan.cp;
  const bool mla = job.model.attention == AttentionKind::kMla;
  AttentionShape shape{
      .batch = block.plan.micro_batch,
      .query_heads = block.shape.query_heads,
      .kv_heads = mla ? block.shape.query_heads : block.shape.key_value_heads,
      .query_length = div_ceil(job.sequence_length, c),
      .kv_length = div_ceil(job.sequence_length, c),
      .head_dim = mla ? job.model.mla.qk_nope_head_dim + job.model.mla.qk_rope_head_dim
                      : job.model.head_dim};
  if (c > 1 && block.plan.cp_method == CpMethod::kA2a) {
    shape.query_heads = div_ceil(shape.query_heads, c);
    shape.kv_heads = div_ceil(shape.kv_heads, c);
    shape.query_length = shape.kv_length = job.sequence_length;
  }
  if (c > 1 && block.plan.cp_method == CpMethod::kAllGather) {
    shape.kv_length = job.sequence_length;
  }
  return shape;
}

// Widths per token on one tp rank.
struct QkvWidths {
  std::int64_t packed = 0;
  std::int64_t key_value = 0;
  std::int64_t output = 0;
};

QkvWidths qkv_widths(const NativeBlock& block) {
  const BlockShape& s = block.shape;
  const MlaSpec& mla = block.job.model.mla;
  if (block.job.model.attention == AttentionKind::kMla) {
    const std::int64_t query = s.query_heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim);
    const std::int64_t value = s.query_heads * mla.v_head_dim;
    return {.packed = 2 * query + value, .key_value = query + value, .output = value};
  }
  return {.packed = s.query_width + 2 * s.key_value_width,
          .key_value = 2 * s.key_value_width,
          .output = s.query_width};
}

void add_context_exchange(NativeBlock& block, const QkvWidths& widths) {
  const BlockShape& s = block.shape;
  const Component comm = Component::kCommunication;
  const std::int64_t key_value = s.tokens * widths.key_value;
  const std::int64_t c = block.plan.cp;
  const Step forward = Step::kForwardAttention;
  const Step backward = Step::kBackwardAttention;
  if (c == 1) {
    return;
  }
  switch (block.plan.cp_method) {
    case CpMethod::kRing:
      block.rows.use_as(comm, "attention.ring_key_values", 2 * key_value, s.dtype, forward, forward,
                        "2*KV: two buffers in turn");
      block.rows.use("attention.ring_accumulator", s.tokens * widths.output, DType::kFp32, forward,
                     forward, "a*d*T/t: partial output in fp32");
      block.rows.use_as(comm, "attention.ring_exchange", 4 * key_value, s.dtype, backward, backward,
                        "4*KV: keys, values and their gradients, two buffers each");
      break;
    case CpMethod::kAllGather:
      block.rows.use_as(comm, "attention.gathered_key_values", c * key_value, s.dtype, forward,
                        forward, "c*KV");
      block.rows.use_as(comm, "attention.gathered_again", 2 * c * key_value, s.dtype, backward,
                        backward, "2*c*KV: keys, values and their gradients");
      break;
    case CpMethod::kA2a:
      block.rows.use_as(comm, "attention.a2a_forward", s.tokens * widths.packed, s.dtype, forward,
                        forward, "(a+2k)*d*T/t");
      block.rows.use_as(comm, "attention.a2a_backward", s.tokens * widths.packed, s.dtype, backward,
                        backward, "(a+2k)*d*T/t");
      break;
  }
}

}  // namespace

void add_native_norm(NativeBlock& block, const NormNames& names, Life input, Life output) {
  block.rows.keep(names.input, block.sequence(), block.shape.dtype, input,
                  "h*u: residual stream after the fused add and norm");
  block.rows.keep(names.statistics, block.shape.sharded_tokens, DType::kFp32,
                  {.born = output.born, .last_forward_use = output.born, .dies = input.dies},
                  "u: reciprocal root mean square, fp32");
  const bool again = block.recomputes(&RecomputeModules::layernorm);
  const Step replayed = output.dies == Step::kWeight ? Step::kBackwardOutput : output.dies;
  block.keep_or_write_again(again, names.output, block.sequence(), block.shape.dtype, output,
                            replayed,
                            "h*u: input of the next product; written again under recompute");
}

void add_sequence_exchange(NativeBlock& block, const PairNames& names, const PairSteps& steps) {
  const BlockShape& s = block.shape;
  const std::int64_t full = s.hidden * s.tokens;
  if (!s.gathers_sequence) {
    return;
  }
  const Component comm = Component::kCommunication;
  block.rows.use_as(comm, names.gathered, full, s.dtype, steps.first, steps.first, "h*T");
  block.rows.use_as(comm, names.partial, full, s.dtype, steps.second, steps.second,
                    "h*T: before the reduce-scatter");
  block.rows.use_as(comm, names.gathered_gradient, full, s.dtype, steps.backward_second,
                    block.weight_step(steps.backward_second), "h*T");
  block.rows.use_as(comm, names.gathered_again, full, s.dtype, steps.backward_first,
                    block.weight_step(steps.backward_first), "h*T");
  block.rows.use_as(comm, names.partial_gradient, full, s.dtype, steps.backward_first,
                    steps.backward_first, "h*T: before the reduce-scatter");
}

void add_native_attention(NativeBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const QkvWidths widths = qkv_widths(block);
  add_native_norm(block, {"input", "attention.norm_statistics", "attention.norm_output"},
                  {.born = Step::kForwardInput,
                   .last_forward_use = Step::kForwardProjection,
                   .dies = Step::kBackwardNorm},
                  {.born = Step::kForwardNorm,
                   .last_forward_use = Step::kForwardQkv,
                   .dies = block.weight_step(Step::kBackwardQkv)});
  if (block.job.model.attention == AttentionKind::kMla) {
    const MlaSpec& mla = block.job.model.mla;
    rows.keep(
        "attention.compressed",
        s.sharded_tokens * (2 * mla.q_lora_rank + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim),
        s.dtype,
        {.born = Step::kForwardQkv,
         .last_forward_use = Step::kForwardLayout,
         .dies = block.weight_step(Step::kBackwardQkv)},
        "(2*ql+2*kl+dr)*u: compressed vectors before and after their norms");
  }
  const bool up_again = block.job.model.attention == AttentionKind::kMla &&
                        block.recomputes(&RecomputeModules::mla_up_proj);
  block.keep_or_write_again(up_again, "attention.packed_qkv", s.tokens * widths.packed, s.dtype,
                            {.born = Step::kForwardQkv,
                             .last_forward_use = Step::kForwardAttention,
                             .dies = Step::kBackwardAttention},
                            Step::kBackwardProjection,
                            "(a+2k)*d*T/t: one buffer, rotary embedding in place");
  const bool core_again = block.recomputes(&RecomputeModules::core_attn);
  block.keep_or_write_again(core_again, "attention.log_sum_exp", s.query_heads * s.tokens,
                            DType::kFp32,
                            {.born = Step::kForwardAttention,
                             .last_forward_use = Step::kForwardAttention,
                             .dies = Step::kBackwardAttention},
                            Step::kBackwardProjection, "a*T/t: softmax statistics, fp32");
  block.keep_or_write_again(core_again, "attention.output", s.tokens * widths.output, s.dtype,
                            {.born = Step::kForwardAttention,
                             .last_forward_use = Step::kForwardProjection,
                             .dies = block.weight_step(Step::kBackwardAttention)},
                            Step::kBackwardProjection, "a*d*T/t");
  rows.use("attention.output_gradient", s.tokens * widths.output, s.dtype,
           Step::kBackwardProjection, Step::kBackwardAttention, "a*d*T/t");
  rows.use("attention.packed_qkv_gradient", s.tokens * widths.packed, s.dtype,
           Step::kBackwardAttention, block.weight_step(Step::kBackwardQkv), "(a+2k)*d*T/t");
  rows.use_as(Component::kWorkspace, "attention.backward_workspace",
              div_ceil(cudnn_backward_workspace_bytes(attention_shape(block),
                                                      block.job.profile.deterministic_attention),
                       bytes_of(DType::kFp32)),
              DType::kFp32, Step::kBackwardAttention, Step::kBackwardAttention,
              "cuDNN 9 closed form");
  add_context_exchange(block, widths);
  add_sequence_exchange(
      block,
      {"attention.gathered_input", "attention.partial_output", "attention.gathered_gradient",
       "attention.gathered_input_again", "attention.partial_gradient"},
      {});
  rows.use("output_gradient", block.sequence(), s.dtype, Step::kBackwardOutput,
           Step::kBackwardInput, "h*u: gradient of the residual stream, updated in place");
  rows.use("attention.norm_gradient", block.sequence(), s.dtype, Step::kBackwardQkv,
           Step::kBackwardNorm, "h*u");
  rows.use("output", block.sequence(), s.dtype, Step::kForwardOutput, Step::kForwardOutput,
           "h*u: becomes the input of the next layer");
}

}  // namespace shardplan
