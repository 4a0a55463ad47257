#include "estimator/time/host_time.h"

#include <algorithm>

#include "estimator/plan/number.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

double shardings_per_microbatch(const Job& job, const Plan& plan, const HostLaunches& host) {
  return host.shardings_per_microbatch != nullptr ? host.shardings_per_microbatch(job, plan) : 0;
}

bool launches_once(const FrameworkProfile& profile, const HostLaunches& host) {
  return host.launches_once != nullptr && host.launches_once(profile);
}

// Nothing is counted where the host reads no sizes.
HostCost exchanges(const HostTable& table, const ExpertLaunches& experts) {
  return !experts.read_sizes        ? HostCost{}
         : experts.fuse_permutation ? table.fused_expert_parallel
                                    : table.expert_parallel;
}

bool combines_microbatches(const Job& job) {
  return allowed_overlaps(job).exchanges == ExchangeOverlap::kMicrobatches;
}

HostCost launches(const Job& job, const Plan& plan, const LayerSpec& layer,
                  const HostLaunches& host, const HostTable& table) {
  if (launches_once(job.profile, host)) {
    return {};
  }
  if (host.layer != nullptr) {
    return host.layer(job, plan, layer, host, table);
  }
  HostCost cost = eager_launches(job, plan, layer, host, table);
  if (layer.is_moe) {
    add(cost, 1, expert_launches(job, plan, host, table, routing_launches(job, host, table)));
  }
  return cost;
}

RecomputeModules modules_of(const Job& job, const LayerSpec& layer) {
  return {.core_attn = true,
          .mlp = !layer.is_moe,
          .moe_act = layer.is_moe,
          .mla_up_proj = job.model.is_mla(),
          .moe = layer.is_moe,
          .shared_experts = layer.is_moe && job.model.moe.shared_ffn > 0};
}

// Of each module that the layer has, of both of its norms.
double checkpoints(const RecomputeModules& chosen, const LayerHost& host) {
  double count = chosen.layernorm ? number(host.separate_norms) : 0;
  for (const NamedValue<bool RecomputeModules::*>& module : kRecomputeModules) {
    count += chosen.*module.value && host.modules.*module.value ? 1 : 0;
  }
  return count;
}

}  // namespace

ExpertLaunches launches_of_experts(const Job& job, const HostLaunches& host) {
  return answer_of(host.experts, job.profile);
}

bool waits_for_kernels(const Job& job, const HostLaunches& host) {
  return answer_of(host.waits_for_kernels, job.profile);
}

const HostTable* host_table(const FrameworkProfile& profile) {
  if (profile.host == nullptr) {
    return nullptr;
  }
  return profile.launches_compiled() ? &profile.host->compiled : &profile.host->eager;
}

double host_factor(const Job& job, const HostTable& table) {
  return job.cluster.host_slowdown / table.host_slowdown;
}

HostCost scaled(double factor, const HostCost& cost) {
  return {.forward_s = factor * cost.forward_s, .backward_s = factor * cost.backward_s};
}

void add(HostCost& cost, double count, const HostCost& more) {
  cost.forward_s += count * more.forward_s;
  cost.backward_s += count * more.backward_s;
}

HostCost split_launches(const HostTable& table, const Plan& plan) {
  HostCost cost;
  add(cost, plan.tp > 1 ? 1 : 0, table.tensor_parallel);
  add(cost, plan.cp > 1 ? 1 : 0, table.context_parallel);
  add(cost, static_cast<double>(std::max<std::int64_t>(0, plan.cp - 2)), table.further_hop);
  add(cost, plan.tp > 1 && plan.cp > 1 ? 1 : 0, table.both);
  return cost;
}

HostCost eager_launches(const Job& job, const Plan& plan, const LayerSpec& layer,
                        const HostLaunches& host, const HostTable& table) {
  HostCost cost;
  add(cost, 1, table.layer);
  add(cost, shardings_per_microbatch(job, plan, host), table.sharded);
  add(cost, 1, split_launches(table, plan));
  if (host.layer_hooks != nullptr) {
    add(cost, 1, host.layer_hooks(job, plan, layer, table));
  }
  add(cost, job.model.qk_norm ? 1 : 0, table.head_norms);
  if (host.latent_and_shared != nullptr) {
    add(cost, 1, host.latent_and_shared(job, layer, table));
  }
  add(cost, plan.precision == Precision::kFp8 ? 1 : 0, table.fp8);
  return cost;
}

HostCost routing_launches(const Job& job, const HostLaunches& host, const HostTable& table) {
  HostCost cost = table.routing;
  add(cost, launches_of_experts(job, host).fuse_routing ? -1 : 0, table.fused_router_spares);
  return cost;
}

HostCost expert_launches(const Job& job, const Plan& plan, const HostLaunches& host,
                         const HostTable& table, const HostCost& routing) {
  const ExpertLaunches launches = launches_of_experts(job, host);
  const double experts = number(div_ceil(job.model.moe.num_experts, plan.ep));
  HostCost cost = routing;
  add(cost, plan.ep > 1 ? 1 : 0, exchanges(table, launches));
  add(cost, experts, launches.are_grouped ? table.grouped_expert : table.expert);
  add(cost, launches.are_grouped && plan.precision == Precision::kFp8 ? experts : 0,
      table.grouped_expert_fp8);
  add(cost, job.model.moe.biased_experts ? experts : 0, table.biased_expert);
  add(cost, combines_microbatches(job) ? 1 : 0, table.combined_schedule);
  return cost;
}

HostCost host_cost(const Job& job, const Plan& plan, const LayerSpec& layer,
                   const HostLaunches& host) {
  const HostTable* table = host_table(job.profile);
  return table == nullptr
             ? HostCost{}
             : scaled(host_factor(job, *table), launches(job, plan, layer, host, *table));
}

LayerHost layer_host(const Job& job, const Plan& plan, const LayerSpec& layer,
                     const HostLaunches& host) {
  constexpr std::int64_t kBothNorms = 2;
  LayerHost of_layer{.launches = host_cost(job, plan, layer, host),
                     .chosen_by_operator = {},
                     .checkpoint_s = 0,
                     .modules = modules_of(job, layer),
                     .separate_norms = host.separate_norms != nullptr
                                           ? host.separate_norms(job, layer)
                                           : kBothNorms,
                     .waits = waits_for_kernels(job, host),
                     .combines = layer.is_moe && combines_microbatches(job)};
  const HostTable* table = host_table(job.profile);
  if (table == nullptr) {
    return of_layer;
  }
  of_layer.checkpoint_s =
      table->checkpoint_s * job.cluster.host_slowdown / table->checkpoint_host_slowdown;
  if (host.chosen_by_operator != nullptr) {
    of_layer.chosen_by_operator =
        host.chosen_by_operator(job, plan, layer, of_layer.launches, *table);
  }
  return of_layer;
}

HostCost host_replay_cost(const Recompute& recompute, const LayerHost& host) {
  const double forward_s = host.launches.forward_s;
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone: return {};
    case RecomputeGranularity::kFull: return {.forward_s = 0, .backward_s = forward_s};
    case RecomputeGranularity::kSelective: break;
  }
  if (recompute.policy == "every_second_matmul") {
    return host.chosen_by_operator;
  }
  if (recompute.policy == "every_second_layer") {
    return {.forward_s = 0, .backward_s = forward_s / 2};
  }
  const double checkpoints_s = checkpoints(recompute.modules, host) * host.checkpoint_s;
  return {.forward_s = 0, .backward_s = std::min(checkpoints_s, forward_s)};
}

HostCost host_cost_of_ends(const Job& job, const Plan& plan, const HostLaunches& host) {
  HostCost cost;
  const HostTable* table = host_table(job.profile);
  if (table == nullptr) {
    return cost;
  }
  if (!launches_once(job.profile, host)) {
    add(cost, 1, table->ends);
    add(cost, shardings_per_microbatch(job, plan, host), table->sharded_ends);
  }
  if (host.end_hooks != nullptr) {
    add(cost, 1, host.end_hooks(job, plan, *table));
  }
  return scaled(host_factor(job, *table), cost);
}

HostCost host_cost_of_pass(const Job& job, const Plan& plan, const HostLaunches& host) {
  const HostTable* table = host_table(job.profile);
  const bool interleaves = plan.vpp > 1 && !launches_once(job.profile, host);
  return table != nullptr && interleaves ? scaled(job.cluster.host_slowdown, table->chunk_pass)
                                         : HostCost{};
}

double host_update_s(const Job& job, const Plan& plan) {
  const HostTable* table = host_table(job.profile);
  if (table == nullptr) {
    return 0;
  }
  const auto mixtures = std::ranges::count(job.model.layers, true, &LayerSpec::is_moe);
  const double experts = number(mixtures * div_ceil(job.model.moe.num_experts, plan.ep)) /
                         number(std::ssize(job.model.layers));
  return host_factor(job, *table) * (table->update_s + experts * table->expert_update_s);
}

}  // namespace shardplan
