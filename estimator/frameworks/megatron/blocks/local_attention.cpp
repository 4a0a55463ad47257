// Attention of a Megatron-core layer under the local spec. Letters in block_rows.h. A local
// variable of a module's forward keeps its tensor until the module returns; autograd frees what an
// operation saved once its backward has run.
#include "estimator/frameworks/megatron/blocks/local_attention.h"

#include <algorithm>

#include "estimator/frameworks/megatron/blocks.h"
#include "estimator/frameworks/megatron/blocks/linear.h"
#include "estimator/frameworks/pieces/attention_workspace.h"

namespace shardplan::megatron {
namespace {

// The rotary embedding of the queries or of the keys.
struct Rotation {
  Step step;
  Step backward;
  std::int64_t elements = 0;
  std::string_view cos;
  std::string_view sin;
  std::string_view products;
  std::string_view rotated;
};

// q_layernorm or k_layernorm, each a torch.nn.RMSNorm of d.
struct HeadNorm {
  Step step;
  Step backward;
  std::int64_t rows = 0;    // a*T/t of queries, k*T/t of keys
  bool is_strided = false;  // its input is a view of the packed projection
  std::string_view contiguous;
  std::string_view statistics;
  std::string_view output;
  std::string_view contiguous_again;
  std::string_view gradient;
  std::string_view weight_parts;
};

// The norm saves its input as it is, and takes a view only as a copy, forward and backward
// (layer_norm_kernel.cu, expect_contiguous).
void add_head_norm(MegatronBlock& block, const HeadNorm& norm) {
  const std::int64_t elements = block.job.model.head_dim * norm.rows;
  const DType dtype = block.shape.dtype;
  RowList& rows = block.rows;
  rows.use(norm.contiguous, norm.is_strided ? elements : 0, dtype, norm.step, norm.step,
           "d of every row: the view, contiguous");
  rows.use(norm.output, elements, dtype, norm.step, Step::kForwardProjection,
           "d of every row: held by the forward's tuple of q, k and v");
  rows.keep(norm.statistics, norm.rows, DType::kFp32,
            {.born = norm.step, .last_forward_use = norm.step, .dies = norm.backward},
            "a*T/t of queries, k*T/t of keys: reciprocal root mean square, fp32");
}

// Of more than 64 Ki rows the weight's gradient is first summed over 32 rows each, or more where
// that made 32 Ki blocks of 32 columns (LaunchGammaBetaBackwardCUDAKernel).
std::int64_t weight_part_elements(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t kManyRows = std::int64_t{64} * 1024;
  constexpr std::int64_t kMostBlocks = std::int64_t{32} * 1024;
  constexpr std::int64_t kSide = 32;
  return rows > kManyRows
             ? width * std::min(kMostBlocks / div_ceil(width, kSide), div_ceil(rows, kSide))
             : 0;
}

void add_head_norm_backward(MegatronBlock& block, const HeadNorm& norm) {
  const std::int64_t elements = block.job.model.head_dim * norm.rows;
  const DType dtype = block.shape.dtype;
  RowList& rows = block.rows;
  rows.use(norm.contiguous_again, norm.is_strided ? elements : 0, dtype, norm.backward,
           norm.backward, "d of every row: the view, contiguous again");
  rows.use(norm.gradient, elements, dtype, norm.backward, Step::kBackwardQkvGather,
           "d of every row: of the norm's input");
  rows.use(norm.weight_parts, weight_part_elements(norm.rows, block.job.model.head_dim), dtype,
           norm.backward, norm.backward, "partial sums of the weight's gradient");
}

// t*cos, a half negated, rotate_half(t), rotate_half(t)*sin, their sum; then cat with an empty
// rest copies the sum.
void add_rotation(MegatronBlock& block, const Rotation& rotation) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t angles = s.tokens / block.plan.micro_batch * block.job.model.head_dim;
  const std::int64_t t = rotation.elements;
  for (const std::string_view name : {rotation.cos, rotation.sin}) {
    rows.keep(name, angles, s.dtype,
              {.born = rotation.step, .last_forward_use = rotation.step, .dies = rotation.backward},
              "s*d/c: cast to the activations' type, saved by the rotary product");
  }
  rows.use(rotation.products, 2 * t, s.dtype, rotation.step, rotation.step,
           "products of the unfused rotary embedding beyond its result");
  rows.pass_last({{t, 4}, {t / 2, 1}, {t, 1}, {t, 1}, {t, 1}});
  rows.keep(rotation.rotated, t, s.dtype,
            {.born = rotation.step,
             .last_forward_use = Step::kForwardProjection,
             .dies = Step::kBackwardAttention},
            "a*d*T/t of queries, k*d*T/t of keys: saved by attention");
}

// Keys first. The gradient times sin, a half negated, both halves, the gradient times cos, which
// is added to them; slicing off the empty rest copies the sum, which lives until all inputs are
// packed, or their norm has used it.
void add_rotation_backward(MegatronBlock& block, Step step, Step last, std::int64_t elements,
                           std::string_view products, std::string_view gradient) {
  RowList& rows = block.rows;
  rows.use(products, 2 * elements, block.shape.dtype, step, step,
           "products of the rotary embedding's backward and their sum");
  rows.pass_last({{elements, 2}, {elements / 2, 1}, {elements, 2}, {elements, 0}});
  rows.use(gradient, elements, block.shape.dtype, step, last,
           "a*d*T/t of queries, k*d*T/t of keys: before the rotation");
}

HeadNorm query_norm(const BlockShape& s) {
  return {.step = Step::kForwardQueryNorm,
          .backward = Step::kBackwardQueryNorm,
          .rows = s.tokens * s.query_heads,
          .is_strided = !copies_query(s),
          .contiguous = "attention.contiguous_query",
          .statistics = "attention.query_norm_statistics",
          .output = "attention.query_norm_output",
          .contiguous_again = "attention.contiguous_query_again",
          .gradient = "attention.query_norm_input_gradient",
          .weight_parts = "attention.query_norm_weight_parts"};
}

HeadNorm key_norm(const BlockShape& s) {
  return {.step = Step::kForwardKeyNorm,
          .backward = Step::kBackwardKeyNorm,
          .rows = s.tokens * s.key_value_heads,
          .is_strided = true,
          .contiguous = "attention.contiguous_key",
          .statistics = "attention.key_norm_statistics",
          .output = "attention.key_norm_output",
          .contiguous_again = "attention.contiguous_key_again",
          .gradient = "attention.key_norm_input_gradient",
          .weight_parts = "attention.key_norm_weight_parts"};
}

// The packed product of q, k and v, which a norm of q or k saves as well, and q copied out of it.
void add_packed_inputs(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const bool norms = block.job.model.qk_norm;
  const std::int64_t query = s.tokens * s.query_width;
  const Step last_norm = copies_query(s) ? Step::kBackwardKeyNorm : Step::kBackwardQueryNorm;
  rows.keep("attention.packed_qkv", query + 2 * s.tokens * s.key_value_width, s.dtype,
            {.born = Step::kForwardQkv,
             .last_forward_use = Step::kForwardProjection,
             .dies = norms ? last_norm : Step::kBackwardAttention},
            "(a+2k)*d*T/t: output of the product; v is a view of it and keeps it alive")
      .is_first_product = true;
  if (!norms) {
    rows.use("attention.query_copy", copies_query(s) ? query : 0, s.dtype, Step::kForwardLayout,
             Step::kForwardProjection, "a*d*T/t: q copied out of the packed groups, unrotated");
    return;
  }
  rows.keep("attention.query_copy", copies_query(s) ? query : 0, s.dtype,
            {.born = Step::kForwardQueryNorm,
             .last_forward_use = Step::kForwardQueryNorm,
             .dies = Step::kBackwardQueryNorm},
            "a*d*T/t: q copied out of the packed groups, saved by its norm");
  add_head_norm(block, query_norm(s));
  add_head_norm(block, key_norm(s));
}

// Inputs of attention.
//   packed: linear_qkv's output; v is a view of it, so all of it stays until attention's backward.
//   query_copy: reshape's, where q is no view (attention.py, get_query_key_value_tensors). The
//   tuple
//     qkv_output of Attention.forward holds the copy, or what its norm makes of it.
//   rotary: t*cos + rotate_half(t)*sin, then cat with an empty rest: three products of one tensor
//     are alive at the worst instant (rope_utils.py, _apply_rotary_pos_emb_bshd). Autograd keeps
//     cos and sin, cast to bf16 once for q and once for k.
void add_inputs(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  const std::int64_t query = s.tokens * s.query_width;
  const std::int64_t key = s.tokens * s.key_value_width;
  add_packed_inputs(block);
  add_rotation(block, {.step = Step::kForwardLayout,
                       .backward = Step::kBackwardLayout,
                       .elements = query,
                       .cos = "attention.query_cos",
                       .sin = "attention.query_sin",
                       .products = "attention.query_rotary_products",
                       .rotated = "attention.rotated_query"});
  add_rotation(block, {.step = Step::kForwardKeyValues,
                       .backward = Step::kBackwardKeyValueReduce,
                       .elements = key,
                       .cos = "attention.key_cos",
                       .sin = "attention.key_sin",
                       .products = "attention.key_rotary_products",
                       .rotated = "attention.rotated_key"});
}

void add_inputs_backward(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t query = s.tokens * s.query_width;
  const std::int64_t key = s.tokens * s.key_value_width;
  const std::int64_t full = s.hidden * s.tokens;
  const bool norms = block.job.model.qk_norm;
  add_rotation_backward(block, Step::kBackwardKeyValueReduce,
                        norms ? Step::kBackwardKeyNorm : Step::kBackwardQkvGather, key,
                        "attention.key_rotary_gradients", "attention.unrotated_key_gradient");
  add_rotation_backward(block, Step::kBackwardLayout,
                        norms ? Step::kBackwardQueryNorm : Step::kBackwardQkvGather, query,
                        "attention.query_rotary_gradients", "attention.unrotated_query_gradient");
  if (norms) {
    add_head_norm_backward(block, key_norm(s));
    add_head_norm_backward(block, query_norm(s));
  }
  rows.use("attention.packed_qkv_gradient", query + 2 * key, s.dtype, Step::kBackwardQkvGather,
           Step::kBackwardQkv, "(a+2k)*d*T/t");
  if (s.gathers_sequence) {
    rows.use("attention.full_norm_gradient", full, s.dtype, Step::kBackwardQkv, Step::kBackwardQkv,
             "h*T: input gradient before its reduce-scatter");
  }
  rows.use("attention.norm_gradient", s.hidden * s.sharded_tokens, s.dtype, Step::kBackwardQkv,
           Step::kBackwardNorm, "h*u: gradient of the norm's output");
  add_weight_gradient(block, "attention.qkv_weight_gradient",
                      s.hidden * (s.query_width + 2 * s.key_value_width), Step::kBackwardQkv);
}

// torch's scaled_dot_product_attention; cuDNN comes first on compute capability 9 and 10
// (sdp_utils.cpp, check_prefer_cudnn_attention). Its output has the memory layout of q, so that
// the permutation back to [s, b, h] is a view: projection and attention save the same tensor.
void add_core_attention(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  const std::int64_t output = s.tokens * s.query_width;
  const bool replays = block.selective() && block.recomputed().core_attn;
  const Life saved{.born = Step::kForwardAttention,
                   .last_forward_use = Step::kForwardAttention,
                   .dies = Step::kBackwardAttention};
  rows.keep("attention.output", output, s.dtype,
            {.born = Step::kForwardAttention,
             .last_forward_use = Step::kForwardProjection,
             .dies = replays ? Step::kBackwardProjection : Step::kBackwardAttention},
            "a*d*T/t: saved by attention and, the same tensor, by the projection");
  if (replays) {
    rows.use("attention.output_replayed", output, s.dtype, Step::kBackwardAttention,
             Step::kBackwardAttention, "a*d*T/t: core_attn recompute computes the output again");
  }
  keep_or_recompute(block, replays, Step::kBackwardAttention, "attention.log_sum_exp",
                    s.query_heads * s.tokens, DType::kFp32, saved,
                    "a*T/t: softmax statistics, fp32");
  keep_or_recompute(block, replays, Step::kBackwardAttention, "attention.seed", 1, DType::kInt64,
                    saved, "state of the random generator, saved although nothing is dropped");
  keep_or_recompute(block, replays, Step::kBackwardAttention, "attention.offset", 1, DType::kInt64,
                    saved, "state of the random generator, saved although nothing is dropped");
  const std::int64_t key = s.tokens * s.key_value_width;
  rows.use("attention.query_gradient", output, s.dtype, Step::kBackwardAttention,
           Step::kBackwardLayout, "a*d*T/t");
  rows.use("attention.key_gradient", key, s.dtype, Step::kBackwardAttention,
           Step::kBackwardKeyValueReduce, "k*d*T/t");
  rows.use("attention.value_gradient", key, s.dtype, Step::kBackwardAttention,
           Step::kBackwardQkvGather, "k*d*T/t");
  const std::int64_t length = s.tokens / block.plan.micro_batch;
  const std::int64_t workspace =
      cudnn_backward_workspace_bytes({.batch = block.plan.micro_batch,
                                      .query_heads = s.query_heads,
                                      .kv_heads = s.key_value_heads,
                                      .query_length = length,
                                      .kv_length = length,
                                      .head_dim = block.job.model.head_dim},
                                     block.job.profile.deterministic_attention);
  rows.use_as(Component::kWorkspace, "attention.backward_workspace",
              div_ceil(workspace, bytes_of(DType::kFp32)), DType::kFp32, Step::kBackwardAttention,
              Step::kBackwardAttention,
              "cuDNN 9 closed form: fp32 dQ and softmax sums, full-head dK and dV under GQA");
}

void add_projection(MegatronBlock& block) {
  const BlockShape& s = block.shape;
  RowList& rows = block.rows;
  if (s.gathers_sequence) {
    rows.use("attention.full_projection_output", s.hidden * s.tokens, s.dtype,
             Step::kForwardProjection, Step::kForwardProjection,
             "h*T: partial sums before the reduce-scatter");
    rows.use(
        "attention.gathered_projection_gradient", s.hidden * s.tokens, s.dtype,
        Step::kBackwardProjection, Step::kBackwardProjection,
        "h*T: output gradient gathered for both products (mappings.py, not the shared buffer)");
  }
  rows.use("attention.projection_output", s.hidden * s.sharded_tokens, s.dtype,
           Step::kForwardProjection, Step::kForwardProjectionReduce,
           "h*u: before the residual add");
  rows.use("attention.output_gradient", s.tokens * s.query_width, s.dtype,
           Step::kBackwardProjection, Step::kBackwardAttention, "a*d*T/t");
  add_weight_gradient(block, "attention.projection_weight_gradient", s.hidden * s.query_width,
                      Step::kBackwardProjection);
}

}  // namespace

bool copies_query(const BlockShape& s) {
  return s.key_value_heads > 1 && s.query_heads > s.key_value_heads;
}

void add_local_attention(MegatronBlock& block) {
  add_inputs(block);
  add_core_attention(block);
  add_projection(block);
  add_inputs_backward(block);
}

}  // namespace shardplan::megatron
