#include "estimator/frameworks/torchtitan/host.h"

#include <array>

#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/choices.h"
#include "estimator/time/host_time.h"

namespace shardplan::torchtitan {
namespace {

constexpr auto kEagerNumbers = std::to_array<HostNumber>({
    {.name = "host_slowdown", .member = &HostTable::host_slowdown, .is_seconds = false},
    {.name = "layer", .member = &HostTable::layer},
    {.name = "sharded", .member = &HostTable::sharded},
    {.name = "tensor_parallel", .member = &HostTable::tensor_parallel},
    {.name = "context_parallel", .member = &HostTable::context_parallel},
    {.name = "further_hop", .member = &HostTable::further_hop},
    {.name = "both", .member = &HostTable::both},
    {.name = "expert_parallel", .member = &HostTable::expert_parallel},
    {.name = "routing", .member = &HostTable::routing},
    {.name = "head_norms", .member = &HostTable::head_norms},
    {.name = "latent", .member = &HostTable::latent},
    {.name = "shared_experts", .member = &HostTable::shared_experts},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "sharded_ends", .member = &HostTable::sharded_ends},
    {.name = "update", .member = &HostTable::update_s},
    {.name = "chosen_operator", .member = &HostTable::chosen_operator},
    {.name = "exchange_operators", .member = &HostTable::exchange_operators, .is_seconds = false},
});

constexpr auto kCompiledNumbers = std::to_array<HostNumber>({
    {.name = "host_slowdown", .member = &HostTable::host_slowdown, .is_seconds = false},
    {.name = "layer", .member = &HostTable::layer},
    {.name = "sharded", .member = &HostTable::sharded},
    {.name = "tensor_parallel", .member = &HostTable::tensor_parallel},
    {.name = "context_parallel", .member = &HostTable::context_parallel},
    {.name = "further_hop", .member = &HostTable::further_hop},
    {.name = "expert_parallel", .member = &HostTable::expert_parallel},
    {.name = "routing", .member = &HostTable::routing},
    {.name = "latent", .member = &HostTable::latent},
    {.name = "shared_experts", .member = &HostTable::shared_experts},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "sharded_ends", .member = &HostTable::sharded_ends},
    {.name = "update", .member = &HostTable::update_s},
});

// Operators that a layer's forward dispatches in torchtitan, as its checkpoint by operators meets
// them. Autocast dispatches casts, and norms over heads operation by operation. Latent attention
// dispatches 37 more, 48 with latent queries, shared experts 6, GPT-OSS's rotation, sinks, biases
// and bounds 30, as one layer on a CPU shows.
double dispatched_operators(const Job& job, const Plan& plan, const LayerSpec& layer,
                            const HostTable& table) {
  const bool casts = plan.zero == 0;
  double operators = job.model.qk_norm ? (casts ? 91 : 63) : (casts ? 71 : 59);
  if (job.model.is_mla()) {
    operators += job.model.mla.q_lora_rank > 0 ? 48 : 37;
  }
  if (is_gpt_oss(job.model)) {
    operators += 30;
  }
  if (layer.is_moe) {
    operators += (casts ? 56 : 52) + (plan.ep > 1 ? table.exchange_operators : 0) +
                 (job.model.moe.shared_ffn > 0 ? 6 : 0);
  }
  return operators;
}

// cp alone leaves what they cost as it is (titan:cp=2,ac=op of data/measured/host_cost_h200.json).
// With tp they were not counted: as the time of a forward grows.
double growth_with_tp(const HostTable& table, const Plan& plan, double forward_s, double slower) {
  const double split_s = slower * split_launches(table, plan).forward_s;
  return plan.tp > 1 && forward_s > 0 ? forward_s / (forward_s - split_s) : 1;
}

// GPT-OSS's layer dispatches 26 operators forward and 23 backward more than Qwen 3's, as one layer
// of each on a CPU shows: half of what routing's fifty and forty take.
HostCost latent_and_shared(const Job& job, const LayerSpec& layer, const HostTable& table) {
  HostCost cost;
  add(cost, is_gpt_oss(job.model) ? 0.5 : 0, table.routing);
  if (job.model.is_mla()) {
    add(cost, 1, table.latent);
    add(cost, layer.is_moe && job.model.moe.shared_ffn > 0 ? 1 : 0, table.shared_experts);
  }
  return cost;
}

// Compiled layers have no choice of their own.
HostCost chosen_by_operator(const Job& job, const Plan& plan, const LayerSpec& layer,
                            const HostCost& launches, const HostTable& table) {
  HostCost cost;
  if (!compiles_layers(job.profile)) {
    const double slower = host_factor(job, table);
    const double growth = growth_with_tp(table, plan, launches.forward_s, slower);
    add(cost, growth * dispatched_operators(job, plan, layer, table),
        scaled(slower, table.chosen_operator));
  }
  return cost;
}

}  // namespace

bool gathers_once(const FrameworkProfile& profile, const Plan& plan) {
  return plan.pp > 1 && profile.reshard_after_forward != ReshardAfterForward::kAlways;
}

double shardings_per_microbatch(const Job& job, const Plan& plan) {
  if (plan.zero != 3) {
    return 0;
  }
  return gathers_once(job.profile, plan)
             ? static_cast<double>(data_parallel_size(job, plan) * plan.micro_batch) /
                   static_cast<double>(job.global_batch)
             : 1;
}

constinit const HostLaunches kHost = {.numbers = kEagerNumbers,
                                      .compiled_numbers = kCompiledNumbers,
                                      .shardings_per_microbatch = shardings_per_microbatch,
                                      .latent_and_shared = latent_and_shared,
                                      .chosen_by_operator = chosen_by_operator};

}  // namespace shardplan::torchtitan
