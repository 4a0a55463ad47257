#include "estimator/frameworks/megatron/expert_kernels.h"

#include <algorithm>

#include "estimator/frameworks/megatron/dispatch_cost.h"
#include "estimator/plan/expert_loads.h"
#include "estimator/plan/expert_routing.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/block_experts.h"
#include "estimator/time/block_work.h"
#include "estimator/time/collective_time.h"

namespace shardplan::megatron {
namespace {

GroupShape experts_group(const BlockContext& context) {
  return group_shape(context.job, context.plan, GroupKind::kExperts);
}

// The all-gather dispatcher (core_v0.16.1 core/transformer/moe/token_dispatcher.py,
// MoEAllGatherTokenDispatcher): every rank gathers the tokens of all ranks that hold the experts
// together (etp x ep), whatever their number of experts, with their probabilities and choices, 5
// bytes an expert, and sums its experts' outputs for all of them over these ranks. Backward does
// the reverse.
BesideCost gathered_cost(const BlockContext& context) {
  const GroupShape group = experts_group(context);
  const ModelSpec& model = context.model();
  const double tokens = number(context.sharded_tokens * group.size);
  const double token_bytes = number(routed_width(model)) * context.element_bytes;
  const double routed_bytes = 5 * number(model.moe.num_experts);
  return collective_cost(context.job.cluster, group, Collective::kAllGather,
                         tokens * (token_bytes + routed_bytes)) +
         collective_cost(context.job.cluster, group, Collective::kReduceScatter,
                         tokens * token_bytes);
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
  const double token_bytes = number(routed_width(context.model())) * context.element_bytes;
  const double received = tokens * number(group.size) * share_choosing(moe, own_experts);
  const double crossing = tokens * (domains - 1) * share_choosing(moe, near_experts);
  const DispatchCost cost = dispatch_cost(context.job);
  const double link = cost.link_share * cluster.gpu.nvlink_bytes_per_s;
  const double start_s = cost.start_s + cost.row_s * received;
  const double inside_s = near > 1 ? received * token_bytes / link : 0;
  const double network = rank_bytes_per_s(cluster, group, Collective::kAllToAll);
  const double across_s = domains > 1 ? crossing * token_bytes / network : 0;
  // Products leave multiprocessors to it; bytes inside a group that leaves the domain were not
  // measured beside them.
  const double left = beside_rates(cluster, group, Collective::kAllToAll).collectives;
  const double sms = number(context.gpu().num_sms);
  const double lost_share = sms > 0 ? number(dispatch_sms(context.job.profile)) / sms : 0;
  const double beside_s =
      start_s + (domains > 1 ? std::max(inside_s, across_s / left) : inside_s / left);
  return {.alone_s = start_s + std::max(inside_s, across_s),
          .beside_s = beside_s,
          .lost_s = lost_share * beside_s};
}

// Bytes that sort rows by expert behind their way and unsort them: none where a rank has one expert
// (core_v0.16.1 core/transformer/moe/token_dispatcher.py, num_local_experts). Rows of experts with
// a capacity lie in chunks of one size, whose dimensions PyTorch swaps (drop_and_pad).
KernelBytes sorting_kernels(const Job& job, const Plan& plan) {
  constexpr double kBytes = 4;
  if (div_ceil(job.model.moe.num_experts, plan.ep) == 1) {
    return {};
  }
  return job.profile.moe_capacity_factor > 0
             ? at_share(job.cluster.gpu, kBytes, &TimeConstants::chunk_copy_share)
             : KernelBytes{.fused = kBytes};
}

// Four times read and written: by the permutation and the sort behind the exchange, and on the way
// back. Unfused permutation adds the rows up with atomics, on the way back and in backward
// (core_v0.16.1 core/transformer/moe/moe_utils.py, unpermute, and index_select's gradient).
Passes permutation_kernels(const Job& job, const Plan& plan) {
  const FrameworkProfile& profile = job.profile;
  const double tokens = 1 / static_cast<double>(job.model.moe.topk);
  // Tokens that go once are permuted behind their way, alone.
  const bool once = sends_tokens_once(profile);
  const KernelBytes sorting = once ? KernelBytes{} : sorting_kernels(job, plan);
  if (profile.moe_permute_fusion) {
    const KernelBytes moved = KernelBytes{.fused = 4} + sorting;
    return {.forward = moved, .backward = moved};
  }
  const double ends = once ? 0.5 : 1;
  const KernelBytes moved = KernelBytes{.fused = once ? 3 + tokens / 2 : 2 + tokens} + sorting;
  return {.forward = moved + KernelBytes{.rearranged = 3 * ends},
          .backward = moved + at_share(job.cluster.gpu, 3 * ends, &TimeConstants::index_add_share)};
}

// What fused permutation that scans all experts takes beyond its bytes, one way: a kernel on either
// side of the exchanges.
double scans_s(const BlockContext& context, double rows) {
  const FrameworkProfile& profile = context.job.profile;
  if (!profile.moe_permute_fusion || !profile.moe_permute_scans_experts) {
    return 0;
  }
  constexpr std::int64_t kColumns = 1024;
  const std::int64_t hidden = routed_width(context.model());
  const double looks = number(context.sharded_tokens * context.model().moe.num_experts) *
                       number(div_ceil(hidden, kColumns));
  const double looks_s = looks * context.gpu().constants->expert_look_s /
                         number(std::max<std::int64_t>(1, context.gpu().num_sms));
  const double moving_s =
      memory_bound_s(context.gpu(), 2 * rows * number(hidden) * context.element_bytes);
  return 2 * std::max(0.0, looks_s - moving_s);
}

// Kernels that wait for single values rather than move bytes.
BlockTime noted_kernels(const BlockContext& context, const BlockTime& time) {
  if (context.mix != nullptr) {
    context.mix->memory_bound_s += time.forward_s + time.backward_input_s;
  }
  if (time.forward_s > 0) {
    note(context, PieceKind::kElementwise, time);
  }
  return time;
}

const ChoiceCost& choice_cost(const TimeConstants& of, bool fused, bool in_groups) {
  if (fused) {
    return in_groups ? of.fused_choice_in_groups : of.fused_choice;
  }
  return in_groups ? of.choice_in_groups : of.choice;
}

// Scans, and, in forward, experts with a capacity choosing their tokens (core_v0.16.1
// core/transformer/moe/moe_utils.py, apply_router_token_dropping).
BlockTime waiting_kernels(const BlockContext& context, double rows) {
  BlockTime time;
  time.forward_s = scans_s(context, rows);
  time.backward_input_s = time.forward_s;
  if (context.job.profile.moe_capacity_factor > 0) {
    const double scores = number(context.sharded_tokens * context.model().moe.num_experts);
    const TimeConstants& of = *context.gpu().constants;
    time.forward_s += of.capacity_start_s + scores * of.capacity_score_s;
  }
  return noted_kernels(context, time);
}

// Biases behind experts (core/transformer/moe/experts.py, _apply_bias), `p` the bytes of a
// probability. Forward the weighted bias 1, its sum with the output 3 and all put together 2;
// backward both factors' gradients 2 each and their sums 1 each, and all put together 2. In fp32
// the output is cast, and so is its gradient, as a whole and once more by expert.
BlockTime bias_kernels(const BlockContext& context, double rows) {
  if (!context.model().moe.biased_experts) {
    return {};
  }
  const double e = context.element_bytes;
  const bool is_fp32 = context.job.profile.moe_router_dtype == DType::kFp32;
  const double p = is_fp32 ? 4 : e;
  const double cast = is_fp32 ? p + e : 0;
  return memory_bound(context, rows * number(routed_width(context.model())),
                      {.forward = {.streamed = (e + 2 * p) + 2 * p, .converted = p + cast},
                       .backward = {.streamed = 2 * p + 2 * e, .converted = 2 * 2 * p + 2 * cast}});
}

// The product of an activation without a gate with the routing probabilities, which no kernel fuses
// (core/transformer/moe/experts.py, bias_act_func), `p` the bytes of a probability. Forward 2, in
// fp32 with a cast; backward each factor's gradient, 2 and 3, and the sum over a row, 1; in fp32
// with casts of what arrives and of what leaves.
BlockTime weighing_kernels(const BlockContext& context, double rows) {
  const ModelSpec& model = context.model();
  if (model.gated_ffn) {
    return {};
  }
  const double e = context.element_bytes;
  const bool is_fp32 = context.job.profile.moe_router_dtype == DType::kFp32;
  const double p = is_fp32 ? 4 : e;
  const double cast = is_fp32 ? p + e : 0;
  const double width = number(div_ceil(model.moe.expert_ffn, context.plan.etp) * context.plan.etp);
  return memory_bound(context, rows * width,
                      {.forward = {.streamed = is_fp32 ? 0 : 2 * e, .converted = 2 * cast},
                       .backward = {.streamed = 2 * p + (e + 2 * p) + p, .converted = 2 * cast}});
}

// Read and written: an all-gather dispatcher picks rows and puts them back once, where all tokens
// lie zeroed and added; others permute rows on both sides of both exchanges.
BlockTime exchange_kernels(const BlockContext& context, double rows) {
  const double row_bytes = number(routed_width(context.model())) * context.element_bytes;
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

BlockTime expert_choice(const BlockContext& context) {
  const FrameworkProfile& profile = context.job.profile;
  const MoeSpec& moe = context.model().moe;
  const ChoiceCost& cost =
      choice_cost(*context.gpu().constants, profile.moe_router_fusion, moe.num_groups > 1);
  const double scores = number(context.sharded_tokens * moe.num_experts);
  BlockTime time;
  time.forward_s = cost.forward_s + scores * cost.forward_score_s;
  time.backward_input_s = cost.backward_s + scores * cost.backward_score_s;
  return noted_kernels(context, time);
}

// Dispatch and combine: what the dispatcher gathers and sums, sends once to a rank, or exchanges.
BesideCost exchange_cost(const BlockContext& context, double rows) {
  if (context.job.profile.moe_dispatcher == MoeDispatcher::kAllGather) {
    return gathered_cost(context);
  }
  return sends_tokens_once(context.job.profile) ? 2 * once_cost(context)
                                                : exchange_of_rows(context, rows);
}

BlockTime expert_exchange(const BlockContext& context, double rows) {
  const bool gathers = context.job.profile.moe_dispatcher == MoeDispatcher::kAllGather;
  BlockTime kernels = exchange_kernels(context, rows);
  add(kernels, bias_kernels(context, rows));
  add(kernels, weighing_kernels(context, rows));
  return exposed_exchange(context, kernels,
                          gathers               ? experts_group(context)
                          : context.plan.ep > 1 ? context.ep
                                                : context.etp,
                          shardplan::exchange_cost(context, rows));
}

}  // namespace shardplan::megatron
