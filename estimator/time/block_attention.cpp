// Attention proper: which kernels run it, and what they cost around their products.
#include <algorithm>

#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/attention_calls.h"
#include "estimator/time/block_context_parallel.h"
#include "estimator/time/block_work.h"

namespace shardplan {
namespace {

AttentionBackend backend_of(const BlockContext& context) {
  const auto backend = context.framework.attention_kernels;
  return backend != nullptr ? backend(context.job, context.plan) : AttentionBackend::kAuto;
}

// A deterministic backward of cuDNN's on compute capability 9 writes the scores' gradients of every
// head in bf16 and reads them for dQ, of the pairs that attend, in place of adding to dQ as it goes
// (cudnn_backward_workspace_bytes); FlashAttention 2's adds to as many fp32 dQ as fill the GPU,
// which are zeroed and summed up (flash_backward_workspace_bytes).
double deterministic_s(const BlockContext& context, const AttentionWork& work,
                       AttentionBackend backend) {
  const auto adds_deterministically = context.framework.adds_deterministically;
  if (adds_deterministically == nullptr || !adds_deterministically(context.job)) {
    return 0;
  }
  if (backend == AttentionBackend::kFused) {
    return memory_bound_s(context.gpu(), 2 * 2 * work.pairs * number(work.heads));
  }
  if (backend == AttentionBackend::kFlash) {
    const double sums = number(div_ceil(std::max<std::int64_t>(1, context.gpu().num_sms),
                                        std::max<std::int64_t>(1, work.heads_of_call)));
    const double dq_bytes = 4 * number(context.tokens * work.heads * work.qk_dim);
    return memory_bound_s(context.gpu(), 2 * (sums - 1) * dq_bytes);
  }
  return 0;
}

// Attention as batched products and kernels over all scores, of the whole square (Megatron-LM
// legacy/model/transformer.py, CoreAttention). Bytes of a score besides the products' own: forward
// softmax 4, backward 6; dropout 4 and its mask 1 either way, nothing where none drops out.
void attend_unfused(const BlockContext& context, const AttentionWork& work, BlockTime& time) {
  const std::int64_t length = context.job.sequence_length;
  const std::int64_t heads = context.plan.micro_batch * work.heads;
  const GpuSpec& gpu = context.gpu();
  const auto product_s = [&](std::int64_t n, std::int64_t k) {
    return gemm_s(gpu, context.plan.precision, {.m = length, .n = n, .k = k, .count = heads});
  };
  const double scores_s = product_s(length, work.qk_dim);
  const double values_s = product_s(work.v_dim, length);
  const double scores = number(heads * length) * number(length);
  const double dropout = context.job.attention_dropout > 0 ? 5 : 0;
  time.forward_s = scores_s + values_s + memory_bound_s(gpu, (4 + dropout) * scores);
  time.backward_input_s = 2 * (scores_s + values_s) + memory_bound_s(gpu, (6 + dropout) * scores);
}

// Context parallelism divides the pairs evenly (zigzag chunks, or heads under all-to-all). Chunks
// are sequences of one call.
AttentionWork attention_work(const BlockContext& context, const LayerSpec& layer,
                             AttentionBackend backend) {
  const ModelSpec& model = context.model();
  const Plan& plan = context.plan;
  const std::int64_t sequence = context.job.sequence_length;
  const std::int64_t window = layer.attention_window < sequence ? layer.attention_window : 0;
  const std::int64_t length = layer.attends_in_chunks && window > 0 ? window : sequence;
  const AttentionHeads of_layer = model.heads_of(layer);
  const std::int64_t heads = div_ceil(of_layer.num_heads, plan.tp);
  return {.pairs = attention_pairs(context.job, layer) * number(plan.micro_batch) / number(plan.cp),
          .heads = heads,
          .qk_dim = of_layer.qk_head_dim,
          .v_dim = of_layer.v_head_dim,
          .length = length,
          .window = layer.attends_in_chunks ? 0 : window,
          .heads_of_call = heads * plan.micro_batch * div_ceil(sequence, length),
          .is_flash2 = backend == AttentionBackend::kFlash};
}

}  // namespace

BlockTime core_attention(const BlockContext& context, const LayerSpec& layer) {
  const Plan& plan = context.plan;
  const AttentionBackend backend = backend_of(context);
  const AttentionWork work = attention_work(context, layer, backend);
  BlockTime time;
  time.forward_flops = work.forward_flops();
  ForwardBackward calls = attention_calls_s(context, layer, work);
  if (backend == AttentionBackend::kFlex) {
    calls.forward_s /= context.gpu().constants->flex_forward_share;
    calls.backward_s /= context.gpu().constants->flex_backward_share;
  }
  time.forward_s = context.clock.attention * calls.forward_s;
  time.backward_input_s =
      context.clock.attention * calls.backward_s + deterministic_s(context, work, backend);
  if (context.mix != nullptr) {
    double& kind =
        context.kernels.light_attention ? context.mix->light_s : context.mix->attention_s;
    kind += time.forward_s + time.backward_input_s;
  }
  const auto saves_probabilities = context.framework.saves_probabilities;
  if (saves_probabilities != nullptr && saves_probabilities(context.job, plan)) {
    attend_unfused(context, work, time);
  }
  note(context, PieceKind::kAttention, time);
  if (plan.cp > 1) {
    add(time, context_parallel_merges(context, layer, work));
    const ContextExchange exchange = context_exchange(context, work);
    const ForwardBackward visible = visible_context_parallel_s(context, exchange, time);
    time.forward_cp_s = visible.forward_s * context.job.profile.exposed_cp_share;
    time.backward_cp_s = visible.backward_s * context.job.profile.exposed_cp_share;
    note_communication(
        context, PieceKind::kContextParallel, context.cp,
        {.forward_s = exchange.forward.alone_s, .backward_s = exchange.backward.alone_s},
        {.forward_s = time.forward_cp_s, .backward_s = time.backward_cp_s});
  }
  return time;
}

}  // namespace shardplan
