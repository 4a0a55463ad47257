#include "estimator/frameworks/torchtitan/exchange_kernels.h"

#include "estimator/frameworks/pieces/ring_kernels.h"
#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/frameworks/torchtitan/gpt_oss/kernels.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_context_parallel.h"
#include "estimator/time/block_work.h"
#include "estimator/time/collective_time.h"

namespace shardplan::torchtitan {
namespace {

// models/moe (moe.py, utils.py), one PyTorch kernel an operator; halves of a bf16 element's two
// bytes, w halves an element. Forward: rows picked 2w, a row of zeros joined 2w, padded 2w, put
// back 2w, zeros w, put in order 2w, weighted sum. Backward: its gradient, picked 2w, zeros and
// slice 3w, picked 2w, inputs' gradients added 3w, zeros and sorted addition 3w for the padding and
// 2w + w/n for tokens. Under FSDP the sum runs in fp32, cast 3 on the way there and back; under
// autocast rows are fp32, cast to bf16 for each of two products and the sum and back behind the
// experts, 3 each.
Passes permutation_kernels(const GpuSpec& gpu, bool is_autocast, double tokens) {
  const double w = is_autocast ? 2 : 1;
  const double sum = is_autocast ? 1 : 2;
  const double casts = is_autocast ? 4 * 3 : 3;
  return {.forward = {.streamed = (2 + 2 + 2 + 1) * w + sum * (1 + tokens),
                      .converted = casts,
                      .rearranged = (2 + 2) * w},
          .backward =
              KernelBytes{.streamed = (2 + 3 + 2 + 3 + 1 + tokens) * w + sum, .converted = casts} +
              at_share(gpu, (2 + 1 + tokens) * w, &TimeConstants::index_add_share)};
}

// eager_ring_merges in a compiled layer, whose kernels take several of these steps at once: a block
// that is merged reads the sum so far 4 and itself 2 and writes the sum 4; keys and values are
// joined 4, values made contiguous 2. Backward: the first block's gradient of queries cast and the
// sum cast back, 9 besides what the rotation's kernel does, every further one, half of them in
// turn, added 5; those of keys and values start as zeros 4, are cast 6 and back 4, and in every hop
// added 8 and joined 8.
RingKernels compiled_ring_merges(double c) {
  const double hops = c - 1;
  return {.query = {.forward = {.fused = 10 * hops}, .backward = {.fused = 9 + 5 * hops}},
          .key_value = {.forward = {.fused = 6}, .backward = {.fused = 14 + 16 * hops}}};
}

}  // namespace

// Every rank of tp that shares experts sends all rows of its tokens, and sums their gradients; the
// tokens themselves are gathered in front and summed behind (v0.2.2 distributed/expert_parallel.py,
// TensorParallel and ExpertTensorParallel; models/llama4/infra/parallelize.py, apply_moe_ep_tp).
BlockTime expert_exchange(const BlockContext& context, double rows) {
  const ClusterSpec& cluster = context.job.cluster;
  const double token_bytes = number(context.model().hidden) * context.element_bytes;
  const double bytes = rows * number(context.plan.etp) * token_bytes;
  const double one_way_s = all_to_all_s(cluster, context.ep, bytes);
  const double sum_s = context.plan.etp > 1 ? all_reduce_s(cluster, context.etp, bytes) : 0;
  const double tokens_bytes = number(context.tokens) * token_bytes;
  const double gather_s = context.plan.tp > 1 ? all_gather_s(cluster, context.tp, tokens_bytes) : 0;
  const double scatter_s =
      context.plan.tp > 1 ? reduce_scatter_s(cluster, context.tp, tokens_bytes) : 0;
  const double tokens = 1 / static_cast<double>(context.model().moe.topk);
  BlockTime time = memory_bound(
      context, bytes,
      permutation_kernels(context.gpu(), context.job.cluster.world_size() == 1, tokens));
  if (is_gpt_oss(context.model())) {
    add(time, memory_bound(context, bytes, second_bias_kernels(context.gpu())));
  }
  const double share = context.job.profile.exposed_ep_share;
  time.forward_ep_s = 2 * one_way_s * share;
  time.backward_ep_s = (2 * one_way_s + sum_s) * share;
  note_communication(context, PieceKind::kExpertParallel,
                     context.plan.ep > 1 ? context.ep : context.etp,
                     {.forward_s = 2 * one_way_s, .backward_s = 2 * one_way_s + sum_s},
                     {.forward_s = time.forward_ep_s, .backward_s = time.backward_ep_s});
  add(time, tensor_parallel(context, {.forward_s = gather_s + scatter_s, .backward_s = gather_s},
                            {.forward_s = gather_s + scatter_s, .backward_s = gather_s}));
  return time;
}

// What is scattered along the sequence, the second dimension, is cut and put together in front of
// it; what was gathered behind it, where a microbatch has several sequences: of one nothing moves
// (torch.distributed._functional_collectives, reduce_scatter_tensor and _maybe_view_chunk_cat).
// Compiled, both kernels are as fast as a copy.
BlockTime torchtitan_sequence_copies(const BlockContext& context, double in_bytes,
                                     double out_bytes) {
  const KernelBytes scattered = {.fused = 2};
  const KernelBytes several =
      compiles_layers(context.job.profile) ? KernelBytes{.fused = 2} : KernelBytes{.rearranged = 2};
  const KernelBytes gathered = context.plan.micro_batch > 1 ? several : KernelBytes{};
  BlockTime time = memory_bound(context, in_bytes, {.forward = gathered, .backward = scattered});
  add(time, memory_bound(context, out_bytes, {.forward = scattered, .backward = gathered}));
  return time;
}

BlockTime torchtitan_ring_merges(const BlockContext& context, const LayerSpec&,
                                 const AttentionWork& work) {
  const double c = number(context.plan.cp);
  const RingKernels kernels =
      compiles_layers(context.job.profile) ? compiled_ring_merges(c) : eager_ring_merges(c);
  BlockTime time =
      memory_bound(context, number(context.tokens * work.heads * work.qk_dim), kernels.query);
  add(time,
      memory_bound(context, number(context.tokens * key_value_width(context)), kernels.key_value));
  return time;
}

}  // namespace shardplan::torchtitan
