// Letters: h hidden, a and k query and kv heads, d head dimension, t, c tp and cp degree.
#include "estimator/block_work.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "estimator/collective_time.h"
#include "estimator/efficiency.h"
#include "estimator/elementwise.h"

namespace shardplan {
namespace {

double number(std::int64_t count) {
  return static_cast<double>(count);
}

// nanotron calls it; torch's scaled_dot_product_attention takes cuDNN first on compute capability 9
// (sdp_utils.cpp, check_prefer_cudnn_attention).
bool runs_flash2(const FrameworkProfile& profile) {
  return profile.memory_model == MemoryModel::kNanotron ||
         (profile.memory_model == MemoryModel::kMegatron &&
          profile.attention_backend == AttentionBackend::kFlash);
}

// Width of keys and values of one token on one rank. Fewer kv heads than tp are replicated.
std::int64_t kv_width(const BlockContext& context) {
  const ModelSpec& model = context.model();
  if (model.attention == AttentionKind::kMla) {
    return div_ceil(model.num_heads, context.plan.tp) *
           (model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim + model.mla.v_head_dim);
  }
  return div_ceil(model.num_kv_heads, context.plan.tp) * 2 * model.head_dim;
}

// What one token adds to the tensors that an all-to-all over heads exchanges: q, k, v and output.
std::int64_t qkvo_width(const BlockContext& context, const AttentionWork& work) {
  return work.heads * (work.qk_dim + work.v_dim) + kv_width(context);
}

struct ForwardBackward {
  double forward_s = 0;
  double backward_s = 0;
};

// Ring (Transformer Engine, p2p): c - 1 hops of k and v; backward carries their gradients along and
// sends them home. All-gather: k and v once, gathered again and their gradients reduced in
// backward. All-to-all (Ulysses): q, k, v before and the output after attention.
ForwardBackward context_parallel_s(const BlockContext& context, const AttentionWork& work) {
  const ClusterSpec& cluster = context.job.cluster;
  const double c = number(context.plan.cp);
  const double kv_bytes = number(context.tokens * kv_width(context)) * context.element_bytes;
  switch (context.plan.cp_method) {
    case CpMethod::kRing: {
      const double hop_s = send_s(cluster, context.cp, kv_bytes);
      return {.forward_s = (c - 1) * hop_s, .backward_s = (2 * (c - 1) + 1) * hop_s};
    }
    case CpMethod::kAllGather: {
      const double gather_s = all_gather_s(cluster, context.cp, c * kv_bytes);
      return {.forward_s = gather_s, .backward_s = 2 * gather_s};
    }
    case CpMethod::kA2a: {
      const double exchange_s =
          all_to_all_s(cluster, context.cp,
                       number(context.tokens * qkvo_width(context, work)) * context.element_bytes);
      return {.forward_s = exchange_s, .backward_s = exchange_s};
    }
  }
  throw std::logic_error("context_parallel_s: unknown method");
}

// PyTorch's ring attention (torch.distributed.tensor.experimental, _context_parallel) merges blocks
// in fp32 by kernels of its own. Forward, per element of queries: every block cast to fp32 6, the
// result back 6; a block that is merged, of all queries or of half of them in turn, difference 12,
// product with a weight of the row 8, difference 12, and for halves cats of 8: 24 on average.
// Backward: zeros 4 and the result back 6; every block's gradient added, 10, or as half with a cat,
// 17; gradients of keys and values, of two elements each, are added, joined and sent in every step.
BlockTime ring_merges(const BlockContext& context, const AttentionWork& work) {
  const double queries = number(context.tokens * work.heads * work.qk_dim);
  const double keys_values = number(context.tokens * kv_width(context));
  const double c = number(context.plan.cp);
  BlockTime time = memory_bound(context, queries,
                                {.forward = {.converted = 6 + 6 * (c + 1) / 2 + 24 * (c - 1)},
                                 .backward = {.converted = 20 + 17 * (c - 1)}});
  add(time, memory_bound(context, keys_values, {.backward = {.converted = 10 + 22 * c}}));
  return time;
}

// The bases of what is noted: see kernel_time.cpp and collective_time.cpp.
void note(const BlockContext& context, PieceKind kind, const BlockTime& time) {
  if (context.log != nullptr) {
    context.log->pieces.push_back({.kind = kind,
                                   .part = context.log->part,
                                   .forward_s = time.forward_s,
                                   .backward_input_s = time.backward_input_s,
                                   .backward_weight_s = time.backward_weight_s,
                                   .forward_flops = time.forward_flops,
                                   .is_measured = is_calibrated(context.gpu())});
  }
}

void note_product(const BlockContext& context, const GemmShape& shape, Precision precision,
                  const BlockTime& time) {
  note(context, PieceKind::kProduct, time);
  if (context.log != nullptr) {
    TimedPiece& piece = context.log->pieces.back();
    piece.shape = (shape.count > 1 ? std::to_string(shape.count) + " x " : "") +
                  std::to_string(shape.m) + "x" + std::to_string(shape.n) + "x" +
                  std::to_string(shape.k);
    piece.is_measured = is_measured(context.gpu(), precision);
  }
}

// Of which `visible` is not hidden.
void note_communication(const BlockContext& context, PieceKind kind, const GroupShape& group,
                        const ForwardBackward& all, const ForwardBackward& visible) {
  if (context.log != nullptr && all.forward_s + all.backward_s > 0) {
    context.log->pieces.push_back(
        {.kind = kind,
         .part = context.log->part,
         .forward_s = visible.forward_s,
         .backward_input_s = visible.backward_s,
         .forward_hidden_s = std::max(0.0, all.forward_s - visible.forward_s),
         .backward_hidden_s = std::max(0.0, all.backward_s - visible.backward_s),
         .is_measured = is_measured(context.job.cluster, group)});
  }
}

}  // namespace

void begin_part(const BlockContext& context, const char* part) {
  if (context.log != nullptr) {
    context.log->part = part;
  }
}

BlockContext::BlockContext(const Job& of_job, const Plan& of_plan)
    : job(of_job),
      plan(of_plan),
      tokens(tokens_per_microbatch(of_job, of_plan)),
      sharded_tokens(of_plan.sequence_parallel ? div_ceil(tokens, of_plan.tp) : tokens),
      element_bytes(of_plan.precision == Precision::kFp32 ? 4 : 2),
      kernels(layer_kernels(of_job, of_plan)),
      tp(group_shape(of_job, of_plan, GroupKind::kTp)),
      cp(group_shape(of_job, of_plan, GroupKind::kCp)),
      ep(group_shape(of_job, of_plan, GroupKind::kEp)),
      etp(group_shape(of_job, of_plan, GroupKind::kEtp)) {}

void add(BlockTime& block, const BlockTime& piece, std::int64_t count) {
  const double n = number(count);
  block.forward_s += n * piece.forward_s;
  block.backward_input_s += n * piece.backward_input_s;
  block.backward_weight_s += n * piece.backward_weight_s;
  block.recompute_s += n * piece.recompute_s;
  block.forward_tp_s += n * piece.forward_tp_s;
  block.backward_tp_s += n * piece.backward_tp_s;
  block.forward_cp_s += n * piece.forward_cp_s;
  block.backward_cp_s += n * piece.backward_cp_s;
  block.forward_ep_s += n * piece.forward_ep_s;
  block.backward_ep_s += n * piece.backward_ep_s;
  block.host_s += n * piece.host_s;
  block.recompute_host_s += n * piece.recompute_host_s;
  block.forward_flops += n * piece.forward_flops;
  block.parameters.dense += count * piece.parameters.dense;
  block.parameters.expert += count * piece.parameters.expert;
}

// [rows, in] x [in, out]; input gradient [rows, out] x [out, in]; weight gradient [out, rows] x
// [rows, in]. With fusion it runs slower, as it adds to the accumulator; without, the weight
// gradient is written in the element type and added by a kernel of its own. fp8 reads 2 bytes and
// writes 1 byte in two layouts for the input (forward) and the output gradient (backward).
BlockTime linear(const BlockContext& context, const GemmShape& forward, Precision precision) {
  const GpuSpec& gpu = context.gpu();
  const std::int64_t rows = forward.m;
  const std::int64_t out = forward.n;
  const std::int64_t in = forward.k;
  const std::int64_t count = forward.count;
  BlockTime time;
  time.forward_flops = forward.flops();
  time.forward_s = gemm_s(gpu, precision, forward);
  const auto backward_s = [&](GemmPass pass, std::int64_t m, std::int64_t k) {
    return gemm_s(gpu, precision, {.m = m, .n = in, .k = k, .count = count, .pass = pass});
  };
  time.backward_input_s = backward_s(GemmPass::kInputGradient, rows, out);
  time.backward_weight_s = backward_s(GemmPass::kWeightGradient, out, rows);
  if (context.job.profile.gradient_accumulation_fusion) {
    time.backward_weight_s /= kWeightGradientShare.value;
  }
  time.backward_weight_s += elementwise_s(
      gpu, number(count * out * in) * weight_gradient_kernels(context.job, context.plan));
  if (precision == Precision::kFp8) {
    const double input = number(count * rows * in);
    const double gradient = number(count * rows * out);
    // Our own trainer keeps nothing in fp8: before every product it reads both factors for their
    // largest value and again to round them, the output's gradient once for two products.
    const bool is_native = context.job.profile.memory_model == MemoryModel::kNative;
    const double weight = is_native ? number(count * out * in) : 0;
    time.forward_s += memory_bound_s(gpu, is_native ? 5 * (input + weight) : 4 * input);
    time.backward_input_s +=
        memory_bound_s(gpu, is_native ? 6 * gradient + 5 * weight : 4 * gradient);
    time.backward_weight_s += memory_bound_s(gpu, is_native ? 5 * input : 0);
  }
  note_product(context, forward, precision, time);
  return time;
}

BlockTime memory_bound(const BlockContext& context, double elements, const Passes& passes) {
  BlockTime time;
  time.forward_s = elementwise_s(context.gpu(), elements * passes.forward);
  time.backward_input_s = elementwise_s(context.gpu(), elements * passes.backward);
  note(context, PieceKind::kElementwise, time);
  return time;
}

std::int64_t attention_length(const Job& job, const LayerSpec& layer) {
  return layer.attention_window > 0 ? std::min(layer.attention_window, job.sequence_length)
                                    : job.sequence_length;
}

// s^2 / 2 for the triangle; w s - w^2 / 2 for a band of w.
double attention_pairs(const Job& job, const LayerSpec& layer) {
  const double s = number(job.sequence_length);
  const double w = number(attention_length(job, layer));
  return w * s - w * w / 2;
}

// Context parallelism divides the pairs evenly (zigzag chunks, or heads under all-to-all).
BlockTime core_attention(const BlockContext& context, const LayerSpec& layer) {
  const ModelSpec& model = context.model();
  const Plan& plan = context.plan;
  const bool is_mla = model.attention == AttentionKind::kMla;
  const std::int64_t length = attention_length(context.job, layer);
  const AttentionWork work = {
      .pairs = attention_pairs(context.job, layer) * number(plan.micro_batch) / number(plan.cp),
      .heads = div_ceil(model.num_heads, plan.tp),
      .qk_dim = is_mla ? model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim : model.head_dim,
      .v_dim = is_mla ? model.mla.v_head_dim : model.head_dim,
      .length = plan.cp_method == CpMethod::kRing ? div_ceil(length, plan.cp) : length,
      .is_flash2 = runs_flash2(context.job.profile)};
  BlockTime time;
  time.forward_flops = work.forward_flops();
  time.forward_s = attention_forward_s(context.gpu(), work);
  time.backward_input_s = attention_backward_s(context.gpu(), work);
  note(context, PieceKind::kAttention, time);
  if (plan.cp > 1) {
    if (context.job.profile.memory_model == MemoryModel::kTorchtitan) {
      add(time, ring_merges(context, work));
    }
    const ForwardBackward exchange = context_parallel_s(context, work);
    time.forward_cp_s = exchange.forward_s * context.job.profile.exposed_cp_share;
    time.backward_cp_s = exchange.backward_s * context.job.profile.exposed_cp_share;
    note_communication(context, PieceKind::kContextParallel, context.cp, exchange,
                       {.forward_s = time.forward_cp_s, .backward_s = time.backward_cp_s});
  }
  return time;
}

BlockTime tensor_parallel(const BlockContext& context, double forward_s, double backward_s) {
  const double share = context.job.profile.exposed_tp_share;
  BlockTime time;
  time.forward_tp_s = share * forward_s;
  time.backward_tp_s = share * backward_s;
  note_communication(context, PieceKind::kTensorParallel, context.tp,
                     {.forward_s = forward_s, .backward_s = backward_s},
                     {.forward_s = time.forward_tp_s, .backward_s = time.backward_tp_s});
  return time;
}

// With sequence parallelism all-gather in and reduce-scatter out; backward does the reverse and
// gathers the input once more for the weight gradient (Megatron-LM core/tensor_parallel/layers.py).
// torchtitan keeps the gathered input, and copies every tensor that is gathered or scattered along
// the sequence, its second dimension (torch.distributed._functional_collectives: chunk and cat).
// Without it one all-reduce out, and one of the input gradient in backward.
BlockTime tensor_parallel_region(const BlockContext& context, std::int64_t in, std::int64_t out) {
  BlockTime time;
  if (context.plan.tp == 1) {
    return time;
  }
  const ClusterSpec& cluster = context.job.cluster;
  const double in_bytes = number(context.tokens * in) * context.element_bytes;
  const double out_bytes = number(context.tokens * out) * context.element_bytes;
  if (context.plan.sequence_parallel) {
    const double gather_s = all_gather_s(cluster, context.tp, in_bytes);
    const double scatter_s = reduce_scatter_s(cluster, context.tp, out_bytes);
    const bool keeps_input = context.job.profile.memory_model == MemoryModel::kTorchtitan;
    time = tensor_parallel(context, gather_s + scatter_s,
                           (keeps_input ? 1 : 2) * gather_s + scatter_s);
    if (keeps_input) {
      add(time, memory_bound(context, number(context.tokens * (in + out)),
                             {.forward = {.streamed = 2 * context.element_bytes},
                              .backward = {.streamed = 2 * context.element_bytes}}));
    }
  } else {
    time = tensor_parallel(context, all_reduce_s(cluster, context.tp, out_bytes),
                           all_reduce_s(cluster, context.tp, in_bytes));
  }
  return time;
}

// Dispatch and combine: an all-to-all over ep each, then a gather (and a scatter back) over etp.
// Rows are permuted on both sides of both exchanges: read and written four times.
BlockTime expert_exchange(const BlockContext& context, double rows) {
  const ClusterSpec& cluster = context.job.cluster;
  const double bytes = rows * number(context.model().hidden) * context.element_bytes;
  const double one_way_s = all_to_all_s(cluster, context.ep, bytes) +
                           all_gather_s(cluster, context.etp, bytes * number(context.plan.etp));
  BlockTime time =
      memory_bound(context, 8 * bytes, {.forward = {.fused = 1}, .backward = {.fused = 1}});
  time.forward_ep_s = 2 * one_way_s * context.job.profile.exposed_ep_share;
  time.backward_ep_s = time.forward_ep_s;
  note_communication(context, PieceKind::kExpertParallel,
                     context.plan.ep > 1 ? context.ep : context.etp,
                     {.forward_s = 2 * one_way_s, .backward_s = 2 * one_way_s},
                     {.forward_s = time.forward_ep_s, .backward_s = time.backward_ep_s});
  return time;
}

}  // namespace shardplan
