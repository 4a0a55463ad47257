// What experts exchange: rows on their way to other ranks and back.
#include <algorithm>

#include "estimator/plan/expert_loads.h"
#include "estimator/plan/expert_routing.h"
#include "estimator/plan/number.h"
#include "estimator/time/block_work.h"
#include "estimator/time/collective_time.h"
#include "estimator/time/dispatch_cost.h"
#include "estimator/time/efficiency.h"

namespace shardplan {
namespace {

GroupShape experts_group(const BlockContext& context) {
  return group_shape(context.job, context.plan, GroupKind::kExperts);
}

// Megatron's all-gather dispatcher (core_v0.16.1 core/transformer/moe/token_dispatcher.py,
// MoEAllGatherTokenDispatcher): every rank gathers the tokens of all ranks that hold the experts
// together (etp x ep), whatever their number of experts, with their probabilities and choices, 5
// bytes an expert, and sums its experts' outputs for all of them over these ranks. Backward does
// the reverse.
BesideCost gathered_cost(const BlockContext& context) {
  const GroupShape group = experts_group(context);
  const ModelSpec& model = context.model();
  const double tokens = number(context.sharded_tokens * group.size);
  const double token_bytes = number(model.hidden) * context.element_bytes;
  const double routed_bytes = 5 * number(model.moe.num_experts);
  return collective_cost(context.job.cluster, group, Collective::kAllGather,
                         tokens * (token_bytes + routed_bytes)) +
         collective_cost(context.job.cluster, group, Collective::kReduceScatter,
                         tokens * token_bytes);
}

// torchtitan: every rank of tp that shares experts sends all rows of its tokens, and sums their
// gradients; the tokens themselves are gathered in front and summed behind (v0.2.2
// distributed/expert_parallel.py, TensorParallel and ExpertTensorParallel;
// models/llama4/infra/parallelize.py, apply_moe_ep_tp).
BlockTime titan_exchange(const BlockContext& context, double rows) {
  const ClusterSpec& cluster = context.job.cluster;
  const double token_bytes = number(context.model().hidden) * context.element_bytes;
  const double bytes = rows * number(context.plan.etp) * token_bytes;
  const double one_way_s = all_to_all_s(cluster, context.ep, bytes);
  const double sum_s = context.plan.etp > 1 ? all_reduce_s(cluster, context.etp, bytes) : 0;
  const double tokens_bytes = number(context.tokens) * token_bytes;
  const double gather_s = context.plan.tp > 1 ? all_gather_s(cluster, context.tp, tokens_bytes) : 0;
  const double scatter_s =
      context.plan.tp > 1 ? reduce_scatter_s(cluster, context.tp, tokens_bytes) : 0;
  BlockTime time = memory_bound(context, bytes, permutation_kernels(context.job, context.plan));
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

// One way of tokens that go once to each domain that has experts of theirs, and there once to each
// rank that has (DeepEP v1.2.1 csrc/kernels/internode.cu: over the network to the GPU of the same
// index, by NVLink from there), both at the same time.
BesideCost once_cost(const BlockContext& context) {
  const ClusterSpec& cluster = context.job.cluster;
  const MoeSpec& moe = context.model().moe;
  const GroupShape group = experts_group(context);
  const double near = number(group.ranks_per_domain);
  const double domains = number(group.size) / near;
  const std::int64_t own_experts = div_ceil(moe.num_experts, context.plan.ep);
  const std::int64_t near_experts =
      std::max(own_experts, moe.num_experts * group.ranks_per_domain / group.size);
  const double tokens = number(context.sharded_tokens) * fullest_load(context.job, context.plan);
  const double token_bytes = number(context.model().hidden) * context.element_bytes;
  const double received = tokens * number(group.size) * share_choosing(moe, own_experts);
  const double crossing = tokens * (domains - 1) * share_choosing(moe, near_experts);
  const DispatchCost cost = dispatch_cost(context.job.profile);
  const double link = cost.link_share * cluster.gpu.nvlink_bytes_per_s;
  const double start_s = cost.start_s + cost.row_s * received;
  const double inside_s = near > 1 ? received * token_bytes / link : 0;
  const double network = rank_bytes_per_s(cluster, group, Collective::kAllToAll);
  const double across_s = domains > 1 ? crossing * token_bytes / network : 0;
  // Products leave multiprocessors to it; bytes inside a group that leaves the domain were not
  // measured beside them.
  const double left = beside_rates(cluster, group, Collective::kAllToAll).collectives;
  const double sms = number(context.gpu().num_sms);
  const double lost_share = sms > 0 ? number(cost.sms) / sms : 0;
  const double beside_s =
      start_s + (domains > 1 ? std::max(inside_s, across_s / left) : inside_s / left);
  return {.alone_s = start_s + std::max(inside_s, across_s),
          .beside_s = beside_s,
          .lost_s = lost_share * beside_s};
}

// What fused permutation that scans all experts takes beyond its bytes, one way: a kernel on either
// side of the exchanges.
double scans_s(const BlockContext& context, double rows) {
  const FrameworkProfile& profile = context.job.profile;
  if (!profile.moe_permute_fusion || !profile.moe_permute_scans_experts) {
    return 0;
  }
  constexpr std::int64_t kColumns = 1024;
  const std::int64_t hidden = context.model().hidden;
  const double looks = number(context.sharded_tokens * context.model().moe.num_experts) *
                       number(div_ceil(hidden, kColumns));
  const double looks_s =
      looks * kExpertLook.value / number(std::max<std::int64_t>(1, context.gpu().num_sms));
  const double moving_s =
      memory_bound_s(context.gpu(), 2 * rows * number(hidden) * context.element_bytes);
  return 2 * std::max(0.0, looks_s - moving_s);
}

// Kernels that wait for single values rather than move bytes.
BlockTime noted(const BlockContext& context, const BlockTime& time) {
  if (context.mix != nullptr) {
    context.mix->memory_bound_s += time.forward_s + time.backward_input_s;
  }
  if (time.forward_s > 0) {
    note(context, PieceKind::kElementwise, time);
  }
  return time;
}

// In either direction so many seconds, and so many for each token and expert.
struct ChoiceCost {
  double forward_s = 0;
  double forward_score_s = 0;
  double backward_s = 0;
  double backward_score_s = 0;
};

// Fitted to routing() of Megatron-core core_v0.16.1 with its auxiliary loss on an H100, by
// operators and by the kernels of Transformer Engine 2.9 (data/measured/mixture_kernels_h100.json,
// `routers`): a softmax over 8 to 128 experts, or a sigmoid, a bias and groups of 256.
ChoiceCost choice_cost(bool fused, bool in_groups) {
  if (fused) {
    return in_groups ? ChoiceCost{83e-6, 49e-12, 23e-6, 16e-12}
                     : ChoiceCost{39e-6, 46e-12, 15e-6, 13e-12};
  }
  return in_groups ? ChoiceCost{160e-6, 215e-12, 51e-6, 26e-12}
                   : ChoiceCost{95e-6, 121e-12, 27e-6, 12e-12};
}

// Scans, and, in forward, experts with a capacity choosing their tokens (core_v0.16.1
// core/transformer/moe/moe_utils.py, apply_router_token_dropping).
BlockTime waiting_kernels(const BlockContext& context, double rows) {
  BlockTime time;
  time.forward_s = scans_s(context, rows);
  time.backward_input_s = time.forward_s;
  if (context.job.profile.moe_capacity_factor > 0) {
    const double scores = number(context.sharded_tokens * context.model().moe.num_experts);
    time.forward_s += kCapacityStart.value + scores * kCapacityScore.value;
  }
  return noted(context, time);
}

// Read and written: an all-gather dispatcher picks rows and puts them back once, where all tokens
// lie zeroed and added; others permute rows on both sides of both exchanges.
BlockTime exchange_kernels(const BlockContext& context, double rows) {
  const double row_bytes = number(context.model().hidden) * context.element_bytes;
  if (context.job.profile.moe_dispatcher != MoeDispatcher::kAllGather) {
    BlockTime time =
        memory_bound(context, rows * row_bytes, permutation_kernels(context.job, context.plan));
    if (context.job.profile.moe_dispatcher == MoeDispatcher::kAllToAll) {
      add(time, waiting_kernels(context, rows));
    }
    return time;
  }
  const double tokens = number(context.sharded_tokens * experts_group(context).size);
  return memory_bound(context, (4 * rows + 2 * tokens) * row_bytes,
                      {.forward = {.fused = 1}, .backward = {.fused = 1}});
}

}  // namespace

// Counted of Megatron-core alone.
BlockTime expert_choice(const BlockContext& context) {
  const FrameworkProfile& profile = context.job.profile;
  BlockTime time;
  if (!is_megatron(profile.memory_model)) {
    return time;
  }
  const MoeSpec& moe = context.model().moe;
  const ChoiceCost cost = choice_cost(profile.moe_router_fusion, moe.num_groups > 1);
  const double scores = number(context.sharded_tokens * moe.num_experts);
  time.forward_s = cost.forward_s + scores * cost.forward_score_s;
  time.backward_input_s = cost.backward_s + scores * cost.backward_score_s;
  return noted(context, time);
}

// Dispatch and combine: an all-to-all over ep each, then a gather (and a scatter back) over etp.
BesideCost exchange_cost(const BlockContext& context, double rows) {
  if (context.job.profile.moe_dispatcher == MoeDispatcher::kAllGather) {
    return gathered_cost(context);
  }
  if (sends_tokens_once(context.job.profile)) {
    return 2 * once_cost(context);
  }
  const ClusterSpec& cluster = context.job.cluster;
  const double bytes = rows * number(context.model().hidden) * context.element_bytes;
  return 2 * (collective_cost(cluster, context.ep, Collective::kAllToAll, bytes) +
              collective_cost(cluster, context.etp, Collective::kAllGather,
                              bytes * number(context.plan.etp)));
}

BlockTime expert_exchange(const BlockContext& context, double rows) {
  if (context.job.profile.memory_model == MemoryModel::kTorchtitan) {
    return titan_exchange(context, rows);
  }
  const double whole_s = exchange_cost(context, rows).alone_s;
  BlockTime time = exchange_kernels(context, rows);
  time.forward_ep_s = whole_s * context.job.profile.exposed_ep_share;
  time.backward_ep_s = time.forward_ep_s;
  const bool gathers = context.job.profile.moe_dispatcher == MoeDispatcher::kAllGather;
  note_communication(context, PieceKind::kExpertParallel,
                     gathers               ? experts_group(context)
                     : context.plan.ep > 1 ? context.ep
                                           : context.etp,
                     {.forward_s = whole_s, .backward_s = whole_s},
                     {.forward_s = time.forward_ep_s, .backward_s = time.backward_ep_s});
  return time;
}

void note_visible_exchange(const BlockContext& context, const BlockTime& routed) {
  if (context.log == nullptr) {
    return;
  }
  for (TimedPiece& piece : context.log->pieces) {
    if (piece.kind == PieceKind::kExpertParallel) {
      piece.forward_hidden_s += piece.forward_s - routed.forward_ep_s;
      piece.backward_hidden_s += piece.backward_input_s - routed.backward_ep_s;
      piece.forward_s = routed.forward_ep_s;
      piece.backward_input_s = routed.backward_ep_s;
    }
  }
}

}  // namespace shardplan
