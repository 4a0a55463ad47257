// Attention of a native layer, with its norm and context parallelism.
#include "estimator/frameworks/native/attention.h"

#include <algorithm>

#include "estimator/frameworks/native/blocks.h"
#include "estimator/frameworks/native/kernels.h"
#include "estimator/frameworks/pieces/attention_workspace.h"
#include "estimator/time/block_context_parallel.h"

namespace shardplan::native {
namespace {

bool uses_ring(const NativeBlock& block) {
  return block.plan.cp > 1 && block.plan.cp_method == CpMethod::kRing;
}

bool gathers_keys(const NativeBlock& block) {
  return block.plan.cp > 1 && block.plan.cp_method == CpMethod::kAllGather;
}

// The last steps that read keys and values.
Step last_forward_attention(const NativeBlock& block) {
  return uses_ring(block) ? Step::kForwardRingBlock : Step::kForwardAttention;
}
Step last_backward_attention(const NativeBlock& block) {
  return uses_ring(block) ? Step::kBackwardRingBlock : Step::kBackwardAttention;
}

CudnnShape attention_shape(const NativeBlock& block) {
  const Job& job = block.job;
  const std::int64_t c = block.plan.cp;
  CudnnShape shape{
      .batch = block.plan.micro_batch,
      .query_heads = block.shape.query_heads,
      .kv_heads = job.model.is_mla() ? block.shape.query_heads : block.shape.key_value_heads,
      .query_length = div_ceil(job.sequence_length, c),
      .kv_length = div_ceil(job.sequence_length, c),
      .head_dim = job.model.qk_head_dim()};
  if (c > 1 && block.plan.cp_method == CpMethod::kA2a) {
    shape.query_heads = div_ceil(shape.query_heads, c);
    shape.kv_heads = div_ceil(shape.kv_heads, c);
    shape.query_length = shape.kv_length = job.sequence_length;
  }
  if (uses_ring(block)) {
    shape.batch = 1;  // one call per sequence at most; the diagonal block is the largest
  }
  if (gathers_keys(block)) {
    // One call per zigzag chunk of each sequence; the last chunk of all sees every key, or those in
    // the longest window of a layer.
    shape.batch = 1;
    shape.query_length = div_ceil(job.sequence_length, 2 * c);
    shape.kv_length = std::min(
        job.sequence_length,
        shape.query_length + gathered_keys_before(job, job.model.longest_attention_window()));
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
  if (block.job.model.is_mla()) {
    const std::int64_t query = s.query_heads * mla.qk_head_dim();
    const std::int64_t value = s.query_heads * mla.v_head_dim;
    return {.packed = 2 * query + value, .key_value = query + value, .output = value};
  }
  return {.packed = s.query_width + 2 * s.key_value_width,
          .key_value = 2 * s.key_value_width,
          .output = s.query_width};
}

// Of all cp ranks, in the order of the sequence.
void add_gathered_key_values(NativeBlock& block, std::int64_t elements) {
  const DType dtype = block.shape.dtype;
  const Component comm = Component::kCommunication;
  const auto gathered = [&](Step born, Step dies) {
    block.rows.use_as(comm, "attention.gathered_key_values", elements, dtype, born, dies,
                      "c*KV: keys and values of the whole sequence");
  };
  gathered(Step::kForwardKeyValues, Step::kForwardAttention);
  if (block.recomputes(&RecomputeModules::core_attn)) {
    gathered(Step::kBackwardKeyValuesAgain, Step::kBackwardAttentionAgain);
  }
  // Parts of their gradients arrive in the place of keys and values.
  gathered(Step::kBackwardKeyValues, Step::kBackwardKeyValueReduce);
  block.rows.use_as(comm, "attention.key_value_gradients", elements, dtype,
                    Step::kBackwardKeyValueFill, Step::kBackwardKeyValueReduce,
                    "c*KV: their gradients, before the exchange");
}

// Steps of one pass of the ring's forward.
struct RingSteps {
  Step begin = Step::kForwardKeyValues;
  Step copy = Step::kForwardRingCopy;
  Step block = Step::kForwardRingBlock;
  Step merge = Step::kForwardRingMerge;
  Step round = Step::kForwardRingRound;
};

// Keys and values of this rank and of the one before it, in turn.
void add_ring_key_values(NativeBlock& block, const QkvWidths& widths, Step born, Step dies,
                         Step end) {
  NativeBlock::hold(block.rows.use_as(Component::kCommunication, "attention.ring_key_values",
                                      2 * block.shape.tokens * widths.key_value, block.shape.dtype,
                                      born, dies, "2*KV: two buffers in turn"),
                    {.pushed = born, .popped = end});
}

void add_ring_forward(NativeBlock& block, const QkvWidths& widths, const RingSteps& steps) {
  const BlockShape& s = block.shape;
  const std::int64_t sequence = div_exact(s.tokens, block.plan.micro_batch);
  NativeBlock::hold(block.rows.use("attention.ring_output", s.tokens * widths.output, DType::kFp32,
                                   steps.copy, steps.round, "a*d*T/t: sum over the hops in fp32"),
                    {.pushed = steps.begin, .popped = steps.round});
  add_ring_key_values(block, widths, steps.begin, steps.block, steps.round);
  block.rows.use("attention.ring_part", sequence * widths.output, s.dtype, steps.block, steps.merge,
                 "a*d*s/(c*t): of one sequence's block");
  block.rows.use("attention.ring_part_log_sum_exp", sequence * s.query_heads, DType::kFp32,
                 steps.block, steps.merge, "a*s/(c*t)");
}

void add_ring_backward(NativeBlock& block, const QkvWidths& widths) {
  const BlockShape& s = block.shape;
  const std::int64_t sequence = div_exact(s.tokens, block.plan.micro_batch);
  const NativeBlock::Hold held{.pushed = Step::kBackwardKeyValues,
                               .popped = Step::kBackwardRingHome};
  NativeBlock::hold(block.rows.use("attention.ring_query_gradient", s.tokens * widths.output,
                                   DType::kFp32, Step::kBackwardRingQueries,
                                   Step::kBackwardRingRound, "a*d*T/t: sum over the hops in fp32"),
                    held);
  add_ring_key_values(block, widths, Step::kBackwardKeyValues, Step::kBackwardRingBlock,
                      Step::kBackwardRingHome);
  NativeBlock::hold(
      block.rows.use_as(Component::kCommunication, "attention.ring_key_value_gradients",
                        2 * s.tokens * widths.key_value, DType::kFp32, Step::kBackwardRingKeyValues,
                        Step::kBackwardRingHome,
                        "2*KV: their gradients in fp32, two buffers in turn"),
      held);
  block.rows.use("attention.ring_part_gradients", sequence * (widths.output + widths.key_value),
                 s.dtype, Step::kBackwardRingBlock, Step::kBackwardRingAdd,
                 "(a+2k)*d*s/(c*t): of one sequence's block");
}

void add_ring(NativeBlock& block, const QkvWidths& widths) {
  add_ring_forward(block, widths, {});
  if (block.recomputes(&RecomputeModules::core_attn)) {
    add_ring_forward(block, widths,
                     {.begin = Step::kBackwardKeyValuesAgain,
                      .copy = Step::kBackwardRingCopyAgain,
                      .block = Step::kBackwardRingBlockAgain,
                      .merge = Step::kBackwardRingMergeAgain,
                      .round = Step::kBackwardRingRoundAgain});
  }
  add_ring_backward(block, widths);
}

void add_context_exchange(NativeBlock& block, const QkvWidths& widths) {
  const BlockShape& s = block.shape;
  const Component comm = Component::kCommunication;
  const std::int64_t key_value = s.tokens * widths.key_value;
  const std::int64_t c = block.plan.cp;
  if (c == 1) {
    return;
  }
  switch (block.plan.cp_method) {
    case CpMethod::kRing: add_ring(block, widths); break;
    case CpMethod::kAllGather: add_gathered_key_values(block, c * key_value); break;
    case CpMethod::kA2a:
      block.rows.use_as(comm, "attention.a2a_forward", s.tokens * widths.packed, s.dtype,
                        Step::kForwardAttention, Step::kForwardAttention, "(a+2k)*d*T/t");
      block.rows.use_as(comm, "attention.a2a_backward", s.tokens * widths.packed, s.dtype,
                        Step::kBackwardAttention, Step::kBackwardAttention, "(a+2k)*d*T/t");
      break;
  }
}

}  // namespace

void add_native_norm(NativeBlock& block, const NativeNorm& norm) {
  const BlockShape& s = block.shape;
  block.rows.keep(
      norm.input, block.sequence(), s.dtype,
      {.born = norm.input_born, .last_forward_use = norm.input_last_use, .dies = norm.backward},
      "h*u: residual stream after the fused add and norm");
  block.rows.keep(norm.statistics, s.sharded_tokens, DType::kFp32,
                  {.born = norm.born, .last_forward_use = norm.born, .dies = norm.backward},
                  "u: reciprocal root mean square, fp32");
  block.keep_or_write_again(
      block.recomputes(&RecomputeModules::layernorm), norm.output, block.sequence(), s.dtype,
      {.born = norm.born, .last_forward_use = norm.last_use, .dies = norm.dies}, norm.again,
      "h*u: input of the next product; written again under recompute",
      {.pushed = norm.again, .popped = norm.popped}, norm.dropped_place);
}

BlockRow& add_output_gradient(NativeBlock& block, Step dies) {
  BlockRow& row =
      block.rows.use("output_gradient", block.sequence(), block.shape.dtype, Step::kBackwardOutput,
                     dies, "h*u: gradient of the residual stream, updated in place");
  row.place = Place::kGradientBuffers;
  return row;
}

void add_ffn_output_gradient(NativeBlock& block, Step last_use) {
  if (!block.shape.delayed_weight) {
    return;  // one gradient of the residual stream, updated in place
  }
  block.rows
      .use("output_gradient", block.sequence(), block.shape.dtype, Step::kBackwardOutput, last_use,
           "h*u: of the output, until its last use")
      .place = Place::kPendingSlot;
}

namespace {

// In one place, or where delayed weight gradients find them.
void add_residual_gradients(NativeBlock& block) {
  if (!block.shape.delayed_weight) {
    add_output_gradient(block, Step::kBackwardInput);
    return;
  }
  const auto gradient = [&](Step born, Step dies, std::string_view formula) -> BlockRow& {
    return block.rows.use("output_gradient", block.sequence(), block.shape.dtype, born, dies,
                          formula);
  };
  gradient(Step::kBackwardFfnNorm,
           block.shape.gathers_sequence ? Step::kWeightProjectionGather : Step::kWeightProjection,
           "h*u: of attention's output, until the weight gradient");
  BlockRow& input = gradient(Step::kBackwardNorm, Step::kBackwardInput, "h*u: of the input");
  input.place = Place::kGradientBuffers;
  input.buffers = 2;
}

// Softmax statistics and output, which `core_attn` recompute writes again.
void add_attention_output(NativeBlock& block, std::int64_t width) {
  const BlockShape& s = block.shape;
  const bool again = block.recomputes(&RecomputeModules::core_attn);
  const NativeBlock::Hold held{.pushed = Step::kBackwardKeyValuesAgain,
                               .popped = Step::kBackwardKeyValueReduce};
  block.keep_or_write_again(
      again, "attention.output", s.tokens * width, s.dtype,
      {.born = Step::kForwardAttention,
       .last_forward_use = Step::kForwardProjection,
       .dies = block.weight_step(last_backward_attention(block), Step::kWeightProjection)},
      Step::kBackwardAttentionAgain, "a*d*T/t", held);
  block.keep_or_write_again(
      again, "attention.log_sum_exp", s.query_heads * s.tokens, DType::kFp32,
      {.born = Step::kForwardAttention,
       .last_forward_use = uses_ring(block) ? Step::kForwardRingMerge : Step::kForwardAttention,
       .dies = last_backward_attention(block)},
      Step::kBackwardAttentionAgain, "a*T/t: softmax statistics, fp32", held);
}

// Of the backward pass. Deterministic attention and that on gathered keys are our own where its
// kernels run on warpgroups. They need one float for each row of each head. Everything else is
// cuDNN's; its C++ frontend asks for 256 bytes more, measured on an H200 with cuDNN 9.14 and 9.19
// (bench_kernels, data/measured/kernels_h200.txt). Behind them lies the log-sum-exp by head: below
// cuDNN 9.26 the frontend from 1.28 on takes no other order. cuDNN writes dK and dV, which gathered
// cp adds to those of other chunks.
std::int64_t backward_workspace_bytes(const NativeBlock& block) {
  constexpr std::int64_t kFrontendBytes = 256;
  const CudnnShape shape = attention_shape(block);
  const bool deterministic = block.job.profile.deterministic_attention;
  if ((deterministic || gathers_keys(block)) &&
      attends_on_warpgroups(block.job.cluster.gpu, shape.head_dim)) {
    return shape.batch * shape.query_heads * shape.query_length * bytes_of(DType::kFp32);
  }
  const std::int64_t added = gathers_keys(block)
                                 ? 2 * shape.batch * shape.kv_length * shape.kv_heads *
                                       shape.head_dim * bytes_of(DType::kBf16)
                                 : 0;
  const std::int64_t log_sum_exp =
      shape.batch * shape.query_heads * shape.query_length * bytes_of(DType::kFp32);
  return round_up(cudnn_backward_workspace_bytes(shape, deterministic) + kFrontendBytes,
                  kNativeAlignment) +
         round_up(log_sum_exp, kNativeAlignment) + added;
}

void add_attention_gradients(NativeBlock& block, const QkvWidths& widths) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  rows.use("attention.output_gradient", s.tokens * widths.output, s.dtype,
           Step::kBackwardProjection, last_backward_attention(block), "a*d*T/t")
      .popped = Step::kBackwardKeyValueReduce;
  NativeBlock::hold(
      rows.use("attention.qkv_gradient", s.tokens * widths.packed, s.dtype,
               Step::kBackwardAttention,
               block.weight_step(Step::kBackwardQkvWeight, Step::kWeightQkv), "(a+2k)*d*T/t"),
      {.pushed = Step::kBackwardProjectionGather, .popped = Step::kBackwardNorm});
  rows.use_as(Component::kWorkspace, "attention.backward_workspace",
              div_ceil(backward_workspace_bytes(block), bytes_of(DType::kFp32)), DType::kFp32,
              Step::kBackwardAttention, last_backward_attention(block),
              "cuDNN 9 closed form, 256 bytes of its frontend, log-sum-exp by head; gathered cp: "
              "and dK, dV of a call; "
              "deterministic or gathered cp on compute capability 9.0: 4*a*T/t")
      .popped = Step::kBackwardKeyValueReduce;
  const Step reduced = s.gathers_sequence ? Step::kBackwardQkvReduce : Step::kBackwardQkv;
  NativeBlock::hold(rows.use("attention.norm_gradient", block.sequence(), s.dtype, reduced,
                             Step::kBackwardNorm, "h*u"),
                    {.pushed = Step::kBackwardProjectionGather, .popped = Step::kBackwardNorm});
}

void add_latent_vectors(NativeBlock& block) {
  const BlockShape& s = block.shape;
  const MlaSpec& mla = block.job.model.mla;
  block.rows.keep(
      "attention.compressed",
      s.sharded_tokens * (2 * mla.q_lora_rank + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim),
      s.dtype,
      {.born = Step::kForwardQkv,
       .last_forward_use = Step::kForwardLayout,
       .dies = block.weight_step(Step::kBackwardQkvWeight, Step::kWeightQkv)},
      "(2*ql+2*kl+dr)*u: compressed vectors before and after their norms");
}

}  // namespace

void add_native_attention(NativeBlock& block) {
  const BlockShape& s = block.shape;
  const QkvWidths widths = qkv_widths(block);
  const bool latent = block.job.model.is_mla();
  add_native_norm(block,
                  {.input = "input",
                   .statistics = "attention.norm_statistics",
                   .output = "attention.norm_output",
                   .last_use = s.gathers_sequence ? Step::kForwardQkvGather : Step::kForwardQkv,
                   .dies = s.gathers_sequence
                               ? block.weight_step(Step::kBackwardQkvGather, Step::kWeightQkvGather)
                               : block.weight_step(Step::kBackwardQkvWeight, Step::kWeightQkv)});
  if (latent) {
    add_latent_vectors(block);
  }
  block.keep_or_write_again(
      latent && block.recomputes(&RecomputeModules::mla_up_proj), "attention.packed_qkv",
      s.tokens * widths.packed, s.dtype,
      {.born = Step::kForwardQkv,
       .last_forward_use = last_forward_attention(block),
       .dies = last_backward_attention(block)},
      Step::kBackwardProjection, "(a+2k)*d*T/t: one buffer, rotary embedding in place",
      {.pushed = Step::kBackwardProjection, .popped = Step::kBackwardKeyValueReduce});
  add_attention_output(block, widths.output);
  add_attention_gradients(block, widths);
  add_context_exchange(block, widths);
  NativeBlock::hold(
      block.rows.use("attention.projection", block.sequence(), s.dtype,
                     s.gathers_sequence ? Step::kForwardProjectionReduce : Step::kForwardProjection,
                     Step::kForwardFfnNorm, "h*u: added to the residual stream"),
      {.pushed = Step::kForwardInput, .popped = Step::kForwardFfnNorm});
  add_residual_gradients(block);
}

}  // namespace shardplan::native
