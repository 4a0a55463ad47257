#include "estimator/frameworks/torchtitan/host.h"

#include "estimator/time/host_time.h"

namespace shardplan::torchtitan {
namespace {

// torchtitan's own layers take less than that measurement says, as models of 2 and 6 layers on one
// GPU leave (data/measured/host_steps_h200.jsonl, host_steps_h100.jsonl), and sharding them with
// NCCL takes more than with collectives that do nothing: the two together are what 24 whole runs
// bound by the host need (h200_frameworks.jsonl, frameworks_h200.jsonl). So with the ends, of which
// the same models leave 1.5 ms on one GPU and all of the measurement with sharding.
constexpr double kLayerInRuns = 0.65;
constexpr HostCost kSharded = microseconds(1500, 950);

constexpr HostCost layer_in_runs(double forward, double backward) {
  return microseconds(kLayerInRuns * forward, kLayerInRuns * backward);
}

// torchtitan's mixture beside the feed-forward that it stands for, some fifty operators forward and
// forty backward: 2.2 ms a layer and microbatch with sharding on two H100 (host_steps_h100.jsonl,
// host-two-titan-dp2-moe32-l6 less -dp2-l6, over the speed of that host), 2.6 and 3.0 on single
// GPUs; compiled in parts 2.5 (host_steps_h200.jsonl, host-titan-moe32-compiled-...). Divided as
// the operators.
constexpr HostCost kRouting = microseconds(1400, 1100);
// Experts on several ranks: exchanges both ways, whose sizes are read on the host, and a group of
// shards of their own (host-two-titan-ep2-moe32-..., less the same without ep).
constexpr HostCost kExperts = microseconds(2200, 1950);
constexpr HostCost kCompiledExperts = microseconds(3500, 3200);

// DeepSeek's latent attention instead of grouped queries, and its shared experts: what six layers
// on two H100 take more than that, over the speed of that host (host_steps_h100.jsonl,
// host-ds-...).
constexpr HostCost kLatent = microseconds(450, 350);
constexpr HostCost kShared = microseconds(150, 130);

// Norms of q and of k: of eager torchtitan 0.6 ms, as models of 2 and 6 layers with and without
// them leave (data/measured/host_steps_h200.jsonl, host-titan-dense-... and -llama-...).
constexpr HostCost kHeadNorms = microseconds(200, 400);

// data/measured/host_cost_h200.json: torchtitan v0.2.2 on PyTorch 2.11, tensors so small that the
// host decides; one layer is a quarter of the difference between models of 2 and 6. `sharded` is
// with FSDP2; tensor and context parallelism come on top of that, `both` where they meet. Further
// hops: 4 and 8 ranks against 2, models of 2 and 6 layers, ten pairs of 0.3 to 1.9 ms both ways;
// compiled, 4 ranks once.
constexpr HostTable kEager = {.host_slowdown = kMeasuringHost,
                              .layer = layer_in_runs(1880, 1520),
                              .sharded = kSharded,
                              .tensor_parallel = microseconds(2840, 5160),
                              .context_parallel = microseconds(1090, 2140),
                              .further_hop = microseconds(450, 700),
                              .both = microseconds(1280, 2120),
                              .expert_parallel = kExperts,
                              .routing = kRouting,
                              .head_norms = kHeadNorms,
                              .ends = microseconds(700, 800),
                              .sharded_ends = microseconds(3300, 3700),
                              .update_s = 600 * kMicro};
constexpr HostTable kCompiled = {.host_slowdown = kMeasuringHost,
                                 .layer = layer_in_runs(900, 1890),
                                 .sharded = kSharded,
                                 .tensor_parallel = microseconds(610, 1360),
                                 .context_parallel = microseconds(50, 540),
                                 .further_hop = microseconds(150, 250),
                                 .expert_parallel = kCompiledExperts,
                                 .routing = kRouting,
                                 .ends = microseconds(700, 800),
                                 .sharded_ends = microseconds(2300, 1700),
                                 .update_s = 500 * kMicro};

// Operators that a layer's forward dispatches in torchtitan, as its checkpoint by operators meets
// them, and what each costs it, there and when it is replayed: with and without that checkpoint six
// models differ by 51 to 98 us an operator (data/measured/host_cost_h200.json, frameworks_again),
// whole runs on other days' machines by 50 to 100: between.
// Autocast dispatches casts, and norms over heads operation by operation. Latent attention
// dispatches 37 more, 48 with latent queries, shared experts 6, as one layer on a CPU shows;
// exchanges of experts were not counted: what host-ds-moe-l6-ep2-op leaves for them.
constexpr HostCost kChosenOperator = microseconds(25, 43);

double dispatched_operators(const Job& job, const Plan& plan, const LayerSpec& layer) {
  const bool casts = plan.zero == 0;
  constexpr double kExchange = 45;
  double operators = job.model.qk_norm ? (casts ? 91 : 63) : (casts ? 71 : 59);
  if (job.model.is_mla()) {
    operators += job.model.mla.q_lora_rank > 0 ? 48 : 37;
  }
  if (layer.is_moe) {
    operators +=
        (casts ? 56 : 52) + (plan.ep > 1 ? kExchange : 0) + (job.model.moe.shared_ffn > 0 ? 6 : 0);
  }
  return operators;
}

// cp alone leaves what they cost as it is (titan:cp=2,ac=op of the same file). With tp they were
// not counted: as the time of a forward grows.
double growth_with_tp(const HostTable& table, const Plan& plan, double forward_s, double slower) {
  const double split_s = slower * split_launches(table, plan).forward_s;
  return plan.tp > 1 && forward_s > 0 ? forward_s / (forward_s - split_s) : 1;
}

const HostTable* table_of(const FrameworkProfile& profile) {
  return profile.compiles_layers() ? &kCompiled : &kEager;
}

HostCost latent_and_shared(const Job& job, const LayerSpec& layer) {
  HostCost cost;
  if (job.model.is_mla()) {
    add(cost, 1, kLatent);
    add(cost, layer.is_moe && job.model.moe.shared_ffn > 0 ? 1 : 0, kShared);
  }
  return cost;
}

// Compiled layers have no choice of their own.
HostCost chosen_by_operator(const Job& job, const Plan& plan, const LayerSpec& layer,
                            const HostCost& launches, const HostTable& table) {
  HostCost cost;
  if (!job.profile.compiles_layers()) {
    const double slower = host_factor(job, table);
    const double growth = growth_with_tp(table, plan, launches.forward_s, slower);
    add(cost, growth * dispatched_operators(job, plan, layer), scaled(slower, kChosenOperator));
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

constinit const HostLaunches kHost = {.table = table_of,
                                      .shardings_per_microbatch = shardings_per_microbatch,
                                      .latent_and_shared = latent_and_shared,
                                      .chosen_by_operator = chosen_by_operator};

}  // namespace shardplan::torchtitan
