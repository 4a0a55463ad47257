// Core attention of a Megatron layer: which of Transformer Engine's kernels runs, and what it
// keeps. Letters in block_rows.h.
#include "estimator/frameworks/megatron/blocks/core_attention.h"

#include "estimator/frameworks/megatron/adapters/rows.h"
#include "estimator/frameworks/megatron/attention_backend.h"
#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/frameworks/pieces/attention_workspace.h"

#include <algorithm>

namespace shardplan::megatron {
namespace {

CudnnShape backward_shape(const MegatronBlock& block, const AttentionWidths& widths) {
  const Job& job = block.job;
  const Plan& plan = block.plan;
  CudnnShape shape{
      .batch = plan.micro_batch,
      .query_heads = block.shape.query_heads,
      .kv_heads = job.model.is_mla() ? block.shape.query_heads : block.shape.key_value_heads,
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

// flash-attention 2.8 csrc/flash_attn/flash_api.cpp, mha_bwd: fp32 sums of dQ, one for each group
// of thread blocks where the order of the sums must not change; softmax sums; dK and dV of every
// query head under GQA.
std::int64_t flash_backward_workspace_bytes(const CudnnShape& shape, bool deterministic,
                                            std::int64_t num_sms) {
  const std::int64_t heads = shape.batch * shape.query_heads;
  const std::int64_t rows = round_up(shape.query_length, 128);
  const std::int64_t width = round_up(shape.head_dim, shape.head_dim <= 128 ? 32 : 64);
  const std::int64_t splits = deterministic ? div_ceil(num_sms, heads) : 1;
  const std::int64_t expanded =
      shape.query_heads != shape.kv_heads
          ? 2 * bytes_of(DType::kBf16) * heads * shape.kv_length * shape.head_dim
          : 0;
  return 4 * heads * rows * (width * std::max<std::int64_t>(1, splits) + 1) + expanded;
}

std::int64_t backward_workspace_bytes(const MegatronBlock& block, const AttentionWidths& widths) {
  const CudnnShape shape = backward_shape(block, widths);
  const bool deterministic = block.job.profile.deterministic_attention;
  return attention_backend(block.job, block.plan) == AttentionBackend::kFlash
             ? flash_backward_workspace_bytes(shape, deterministic, block.job.cluster.gpu.num_sms)
             : cudnn_backward_workspace_bytes(shape, deterministic);
}

// Scores of a query: one of each key, and of a sink.
std::int64_t scores_of_query(const MegatronBlock& block) {
  return block.job.sequence_length + (block.layer.has_sinks ? 1 : 0);
}

bool has_transformer_engine_kernel(const MegatronBlock& block) {
  return !has_local_layers(block.job) && !block.layer.has_sinks;
}

// Megatron-LM core/fusions/fused_softmax.py, is_kernel_available: sequences that the kernel takes,
// and heads of whole blocks. Transformer Engine's takes rows of multiples of 8, which a sink makes
// longer (pytorch/attention/dot_product_attention/softmax.py, is_kernel_available).
bool is_softmax_fused(const MegatronBlock& block) {
  constexpr std::int64_t kLongest = 4096;
  constexpr std::int64_t kSide = 4;
  const std::int64_t length = block.job.sequence_length;
  return has_transformer_engine_kernel(block) ||
         (has_local_layers(block.job) && block.job.profile.masked_softmax_fusion &&
          length <= kLongest && length % kSide == 0 &&
          block.plan.micro_batch * block.shape.query_heads % kSide == 0);
}

bool has_fp32_softmax(const MegatronBlock& block) {
  return !is_softmax_fused(block) &&
         (!has_local_layers(block.job) || block.job.profile.attention_softmax_in_fp32);
}

// FusedScaleMaskSoftmax.forward_torch_softmax: where the data loader brings none, every layer makes
// a mask of its own (transformer/utils.py, get_default_causal_mask), which the filling saves;
// beside sinks a column is put behind it (Transformer Engine's UnfusedDotProductAttention).
void add_causal_mask(MegatronBlock& block) {
  const std::int64_t length = block.job.sequence_length;
  const bool makes_mask =
      !is_softmax_fused(block) && (block.layer.has_sinks || !block.job.profile.attention_mask);
  keep_or_recompute(block, block.replays_core_attention(), Step::kBackwardAttention,
                    "attention.causal_mask", makes_mask ? length * scores_of_query(block) : 0,
                    DType::kBool,
                    {.born = Step::kForwardAttention,
                     .last_forward_use = Step::kForwardAttention,
                     .dies = Step::kBackwardAttention},
                    "s*s: saved by masked_fill_");
}

// PyTorch's kernel holds the gradients of its output and of its input and their product
// (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out); the fused ones write over the
// gradient.
void add_softmax_backward(MegatronBlock& block, std::int64_t pairs, DType dtype) {
  for (const std::string_view name : {"attention.probability_gradients",
                                      "attention.softmax_products", "attention.score_gradients"}) {
    block.rows.use(name, pairs, dtype, Step::kBackwardAttention, Step::kBackwardAttention,
                   "a*s*T/t: while PyTorch's softmax is differentiated");
  }
}

// FusedScaleMaskSoftmax.forward_torch_softmax: scores in fp32, scaled to a tensor of their own; the
// mask is filled in place, and softmax saves its output, which is cast back. Transformer Engine's
// does so to its scores with a sink behind them, and its product saves all columns.
void add_fp32_softmax(MegatronBlock& block, std::int64_t pairs) {
  if (!has_fp32_softmax(block)) {
    return;
  }
  keep_or_recompute(block, block.replays_core_attention(), Step::kBackwardAttention,
                    "attention.fp32_probabilities", pairs, DType::kFp32,
                    {.born = Step::kForwardAttention,
                     .last_forward_use = Step::kForwardAttention,
                     .dies = Step::kBackwardAttention},
                    "a*s*T/t: saved by softmax in fp32");
  block.rows.use("attention.fp32_scores", pairs, DType::kFp32, Step::kForwardAttention,
                 Step::kForwardAttention, "a*s*T/t: scaled and masked");
}

// UnfusedDotProductAttention, and core's DotProductAttention: the products' function holds the
// scores until it returns, softmax saves its output, dropout its mask, the second product what
// dropout left.
void add_probabilities(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t pairs = s.query_heads * s.tokens * scores_of_query(block);
  const bool drops = block.job.attention_dropout > 0;
  const bool replays = block.replays_core_attention();
  const Life life{.born = Step::kForwardAttention,
                  .last_forward_use = Step::kForwardAttention,
                  .dies = Step::kBackwardAttention};
  const auto keep = [&](std::string_view name, std::int64_t elements, DType dtype,
                        std::string_view formula) {
    keep_or_recompute(block, replays, Step::kBackwardAttention, name, elements, dtype, life,
                      formula);
  };
  rows.use("attention.scores", pairs, s.dtype, Step::kForwardAttention, Step::kForwardAttention,
           "a*s*T/t: output of the first product, held until attention returns");
  add_causal_mask(block);
  add_fp32_softmax(block, pairs);
  keep("attention.probabilities", drops && has_fp32_softmax(block) ? 0 : pairs, s.dtype,
       "a*s*T/t: saved by softmax, or by the second product");
  keep("attention.dropout_mask", drops ? pairs : 0, DType::kBool, "a*s*T/t: saved by dropout");
  keep("attention.dropped_probabilities", drops ? pairs : 0, s.dtype,
       "a*s*T/t: saved by the second product");
  keep("attention.expanded_key_values",
       repeats_key_values(block) ? 2 * s.tokens * s.query_width : 0, s.dtype,
       "2*a*d*T/t: keys and values repeated for every query head");
  if (is_softmax_fused(block)) {
    rows.use("attention.probability_gradients", (drops ? 2 : 1) * pairs, s.dtype,
             Step::kBackwardAttention, Step::kBackwardAttention,
             "a*s*T/t: gradients behind and before dropout; softmax works in place");
  } else {
    add_softmax_backward(block, pairs, has_fp32_softmax(block) ? DType::kFp32 : s.dtype);
  }
  rows.use("attention.context", s.tokens * attention_widths(block).output, s.dtype,
           Step::kForwardAttention, Step::kForwardAttention,
           "a*d*T/t: by heads, before it is copied to sequence first");
}

void add_fused_statistics(MegatronBlock& block, const AttentionWidths& widths) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t statistics = s.query_heads * s.tokens;
  const Life saved{.born = Step::kForwardAttention,
                   .last_forward_use = Step::kForwardAttention,
                   .dies = Step::kBackwardAttention};
  if (block.replays_core_attention()) {
    rows.recompute("attention.log_sum_exp", statistics, DType::kFp32, saved,
                   Step::kBackwardAttention, "a*T/t: softmax statistics, replayed");
  } else {
    rows.keep("attention.log_sum_exp", statistics, DType::kFp32, saved,
              "a*T/t: softmax statistics of cuDNN or FlashAttention, fp32");
  }
  const std::int64_t workspace = backward_workspace_bytes(block, widths);
  rows.use_as(Component::kWorkspace, "attention.backward_workspace",
              div_ceil(workspace, bytes_of(DType::kFp32)), DType::kFp32, Step::kBackwardAttention,
              Step::kBackwardAttention,
              "cuDNN 9 or FlashAttention 2 closed form: fp32 dQ and softmax sums, dK and dV of "
              "every query head under GQA");
}

// Saved by attention, batch first, and by the projection, sequence first: one tensor where both are
// the same. The projection may save a copy in fp8 instead, a checkpoint round attention nothing.
void add_output(MegatronBlock& block, std::int64_t elements) {
  RowList& rows = block.rows;
  const DType dtype = block.shape.dtype;
  const bool replays = block.replays_core_attention();
  const bool copies = copies_batch_first(block);
  const bool attention_saves = !saves_probabilities(block.job, block.plan) && !copies && !replays;
  const Step step = attention_saves ? Step::kBackwardAttention : Step::kBackwardProjection;
  const bool projection_saves = saves_input(block, adapts_projection(block.job));
  if (attention_saves || (projection_saves && !block.saves_fp8_of_saved())) {
    rows.keep("attention.output", elements, dtype,
              {.born = Step::kForwardAttention,
               .last_forward_use = Step::kForwardProjection,
               .dies = block.weight_step(step)},
              attention_saves
                  ? "a*d*T/t: saved by attention and, the same tensor, by the projection"
                  : "a*d*T/t: saved by the projection");
  } else {
    rows.use("attention.output", elements, dtype, Step::kForwardAttention, Step::kForwardProjection,
             "a*d*T/t: cast by the projection, or frozen and not saved by it");
  }
  keep_or_recompute(block, replays, Step::kBackwardAttention, "attention.output_batch_first",
                    copies ? elements : 0, dtype,
                    {.born = Step::kForwardAttention,
                     .last_forward_use = Step::kForwardAttention,
                     .dies = Step::kBackwardAttention},
                    "a*d*T/t: FlashAttention saves its own output");
  rows.use("attention.output_replayed", replays ? elements : 0, dtype, Step::kBackwardAttention,
           Step::kBackwardAttention,
           "a*d*T/t: core_attn recompute computes the output a second time");
}

}  // namespace

bool repeats_key_values(const MegatronBlock& block) {
  return saves_probabilities(block.job, block.plan) && !block.job.model.is_mla() &&
         block.shape.key_value_heads < block.shape.query_heads;
}

bool works_on_packed_qkv(const MegatronBlock& block) {
  const ModelSpec& model = block.job.model;
  const bool is_packed = model.learned_positions > 0 || model.num_kv_heads == model.num_heads;
  return !turns_positions(model) && is_packed && !repeats_key_values(block) &&
         attention_backend(block.job, block.plan) != AttentionBackend::kFlash;
}

bool copies_batch_first(const MegatronBlock& block) {
  return attention_backend(block.job, block.plan) == AttentionBackend::kFlash &&
         block.plan.micro_batch > 1;
}

bool keeps_packed_qkv(const MegatronBlock& block) {
  const bool saves_parts = has_local_layers(block.job) && !repeats_key_values(block);
  return (block.replays_core_attention() || saves_parts) && !block.job.model.is_mla() &&
         !works_on_packed_qkv(block);
}

AttentionWidths attention_widths(const MegatronBlock& block) {
  const BlockShape& shape = block.shape;
  const ModelSpec& model = block.job.model;
  const MlaSpec& mla = model.mla;
  if (block.layer.mixer == MixerKind::kGatedDelta) {
    return {.output = div_ceil(model.delta.value_width(), block.plan.tp)};
  }
  if (block.layer.mixer == MixerKind::kMamba2) {
    return {.output = div_ceil(model.mamba.inner, block.plan.tp)};
  }
  if (model.is_mla()) {
    const std::int64_t head = mla.qk_head_dim();
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
          .head_dim = model.head_dim,
          .gate = model.attention_gate == AttentionGate::kPerElement ? shape.query_width : 0};
}

void add_te_attention(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const AttentionWidths widths = attention_widths(block);
  const std::int64_t output = s.tokens * widths.output;
  if (saves_probabilities(block.job, block.plan)) {
    add_probabilities(block);
  } else {
    add_fused_statistics(block, widths);
  }
  add_output(block, output);
  rows.use("attention.output_gradient", output, s.dtype, Step::kBackwardProjection,
           Step::kBackwardAttention, "a*d*T/t");
  rows.use("attention.qkv_gradient", s.tokens * widths.qkv(), s.dtype, Step::kBackwardAttention,
           Step::kBackwardLayout, "(a+2k)*d*T/t");
}

}  // namespace shardplan::megatron
