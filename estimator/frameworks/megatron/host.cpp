#include "estimator/frameworks/megatron/host.h"

#include <array>

#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/mixers/hybrid.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"
#include "estimator/time/host_time.h"

namespace shardplan::megatron {
namespace {

// Of layers of Transformer Engine.
constexpr auto kEngineNumbers = std::to_array<HostNumber>({
    {.name = "layer", .member = &HostTable::layer},
    {.name = "tensor_parallel", .member = &HostTable::tensor_parallel},
    {.name = "context_parallel", .member = &HostTable::context_parallel},
    {.name = "expert_parallel", .member = &HostTable::expert_parallel},
    {.name = "fused_expert_parallel", .member = &HostTable::fused_expert_parallel},
    {.name = "routing", .member = &HostTable::routing},
    {.name = "routing_behind_graph", .member = &HostTable::routing_behind_graph},
    {.name = "fused_router_spares", .member = &HostTable::fused_router_spares},
    {.name = "expert", .member = &HostTable::expert},
    {.name = "grouped_expert", .member = &HostTable::grouped_expert},
    {.name = "biased_expert", .member = &HostTable::biased_expert},
    {.name = "head_norms", .member = &HostTable::head_norms},
    {.name = "delta_net", .member = &HostTable::delta_net},
    {.name = "mamba", .member = &HostTable::mamba},
    {.name = "latent", .member = &HostTable::latent},
    {.name = "latent_query", .member = &HostTable::latent_query},
    {.name = "shared_experts", .member = &HostTable::shared_experts},
    {.name = "shared_experts_beside", .member = &HostTable::shared_experts_beside},
    {.name = "fp8", .member = &HostTable::fp8},
    {.name = "grouped_expert_fp8", .member = &HostTable::grouped_expert_fp8},
    {.name = "combined_schedule", .member = &HostTable::combined_schedule},
    {.name = "graph", .member = &HostTable::graph},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "expert_update", .member = &HostTable::expert_update_s},
    {.name = "zero3_hooks", .member = &HostTable::zero3_hooks},
    {.name = "zero3_ends", .member = &HostTable::zero3_ends},
    {.name = "expert_weight_hooks", .member = &HostTable::expert_weight_hooks},
    {.name = "copied_gradient", .member = &HostTable::copied_gradient},
    {.name = "checkpoint", .member = &HostTable::checkpoint_s},
    {.name = "checkpoint_host_slowdown",
     .member = &HostTable::checkpoint_host_slowdown,
     .is_seconds = false},
    {.name = "chunk_pass", .member = &HostTable::chunk_pass},
    {.name = "newton_schulz", .member = &HostTable::newton_schulz_s},
});

// Of the local layer spec.
constexpr auto kLocalNumbers = std::to_array<HostNumber>({
    {.name = "host_slowdown", .member = &HostTable::host_slowdown, .is_seconds = false},
    {.name = "layer", .member = &HostTable::layer},
    {.name = "tensor_parallel", .member = &HostTable::tensor_parallel},
    {.name = "expert_parallel", .member = &HostTable::expert_parallel},
    {.name = "routing", .member = &HostTable::routing},
    {.name = "expert", .member = &HostTable::expert},
    {.name = "grouped_expert", .member = &HostTable::grouped_expert},
    {.name = "head_norms", .member = &HostTable::head_norms},
    {.name = "ends", .member = &HostTable::ends},
    {.name = "update", .member = &HostTable::update_s},
    {.name = "checkpoint", .member = &HostTable::checkpoint_s},
    {.name = "checkpoint_host_slowdown",
     .member = &HostTable::checkpoint_host_slowdown,
     .is_seconds = false},
    {.name = "chunk_pass", .member = &HostTable::chunk_pass},
    {.name = "newton_schulz", .member = &HostTable::newton_schulz_s},
});

constexpr auto kPaperNumbers = std::to_array<HostNumber>({
    {.name = "newton_schulz", .member = &HostTable::newton_schulz_s},
});

// What graphs of attention leave of a dense layer: besides attention, its projections and norms it
// has two of four products and the activation, a third; two of four linear modules, and of its
// collectives the feed-forward's. Norms of heads and latent attention are within.
HostCost beside_attention(const HostTable& table, const Plan& plan) {
  HostCost cost;
  add(cost, 1.0 / 3, table.layer);
  add(cost, plan.tp > 1 ? 0.5 : 0, table.tensor_parallel);
  add(cost, plan.precision == Precision::kFp8 ? 0.5 : 0, table.fp8);
  return cost;
}

bool shards_parameters(const Job& job, const Plan& plan) {
  return is_megatron_fsdp(job, plan) && plan.zero == 3;
}

bool launches_once(const FrameworkProfile& profile) {
  return profile.cuda_graphs == CudaGraphs::kIteration;
}

bool waits_for_kernels(const FrameworkProfile& profile) {
  return profile.launch_blocking;
}

// Rows go by an all-to-all in parts whose sizes the host reads; padded ones, and those of other
// dispatchers, in parts that it knows.
ExpertLaunches launches_of_experts(const FrameworkProfile& profile) {
  return {.are_grouped = profile.moe_grouped_gemm,
          .fuse_routing = profile.moe_router_fusion,
          .fuse_permutation = profile.moe_permute_fusion,
          .read_sizes = profile.moe_dispatcher == MoeDispatcher::kAllToAll &&
                        profile.moe_capacity_factor == 0};
}

// What a layer of one part leaves out of one of attention and an FFN, of which the latter is a
// third and has half of the collectives, and what Mamba-2 adds to attention's launches.
HostCost single_part(const Plan& plan, const LayerSpec& layer, const HostTable& table) {
  const bool is_single = has_single_part(layer);
  HostCost cost;
  add(cost, layer.mixer == MixerKind::kNone ? -2.0 / 3 : is_single ? -1.0 / 3 : 0, table.layer);
  add(cost, is_single && plan.tp > 1 ? -0.5 : 0, table.tensor_parallel);
  add(cost, layer.mixer == MixerKind::kMamba2 ? 1 : 0, table.mamba);
  return cost;
}

// A layer of which CUDA graphs may hold a part.
HostCost layer_launches(const Job& job, const Plan& plan, const LayerSpec& layer,
                        const HostLaunches& host, const HostTable& table) {
  HostCost cost;
  HostCost routing = table.routing_behind_graph;
  switch (job.profile.cuda_graphs) {
    case CudaGraphs::kIteration: return {};
    case CudaGraphs::kLayers: return table.graph;
    case CudaGraphs::kAttention:
      cost = beside_attention(table, plan);
      add(cost, 1, table.graph);
      break;
    case CudaGraphs::kRouter:
      cost = eager_launches(job, plan, layer, host, table);
      add(cost, 1, single_part(plan, layer, table));
      add(cost, layer.is_moe ? 1 : 0, table.graph);
      break;
    case CudaGraphs::kNone:
      cost = eager_launches(job, plan, layer, host, table);
      add(cost, 1, single_part(plan, layer, table));
      routing = routing_launches(job, host, table);
      break;
  }
  if (layer.is_moe) {
    add(cost, 1, expert_launches(job, plan, host, table, routing));
  }
  return cost;
}

HostCost layer_hooks(const Job& job, const Plan& plan, const LayerSpec& layer,
                     const HostTable& table) {
  constexpr double kDenseWeights = 6;
  constexpr double kWeightsOfExpert = 2;
  if (!shards_parameters(job, plan)) {
    return {};
  }
  const double of_experts =
      layer.is_moe ? kWeightsOfExpert * number(div_ceil(job.model.moe.num_experts, plan.ep)) : 0;
  HostCost cost = table.zero3_hooks;
  add(cost, of_experts, table.expert_weight_hooks);
  add(cost, fuses_weight_gradients(job, plan) ? 0 : kDenseWeights + of_experts,
      table.copied_gradient);
  return cost;
}

HostCost end_hooks(const Job& job, const Plan& plan, const HostTable& table) {
  return shards_parameters(job, plan) ? table.zero3_ends : HostCost{};
}

// Projections around experts are two of a dense layer's four linear modules, as beside_attention
// counts them.
HostCost latent_and_shared(const Job& job, const LayerSpec& layer, const HostTable& table) {
  const bool shares = layer.is_moe && job.model.moe.shared_ffn > 0;
  const bool is_delta_net = layer.mixer == MixerKind::kGatedDelta;
  HostCost cost;
  add(cost, is_delta_net ? 1 : 0, table.delta_net);
  add(cost, is_delta_net && job.model.qk_norm ? -1 : 0, table.head_norms);
  add(cost, job.model.is_mla() ? 1 : 0, table.latent);
  add(cost, job.model.is_mla() && job.model.mla.q_lora_rank > 0 ? 1 : 0, table.latent_query);
  add(cost, layer.is_moe && job.model.moe.latent > 0 ? 1.0 / 3 : 0, table.layer);
  add(cost, shares ? 1 : 0, table.shared_experts);
  add(cost, shares && job.profile.moe_shared_expert_overlap ? 1 : 0, table.shared_experts_beside);
  return cost;
}

std::int64_t separate_norms_of(const Job& job, const LayerSpec& layer) {
  const SeparateNorms norms = separate_norms(job, layer.is_moe);
  return (norms.attention ? 1 : 0) + (norms.ffn ? 1 : 0);
}

}  // namespace

double host_orthogonalize_s(const Job& job) {
  const HostTable* table = host_table(job.profile);
  return table == nullptr ? 0 : table->newton_schulz_s * job.cluster.host_slowdown;
}

constinit const HostLaunches kHost = {.numbers = kEngineNumbers,
                                      .layer = layer_launches,
                                      .launches_once = launches_once,
                                      .waits_for_kernels = waits_for_kernels,
                                      .experts = launches_of_experts,
                                      .layer_hooks = layer_hooks,
                                      .end_hooks = end_hooks,
                                      .latent_and_shared = latent_and_shared,
                                      .separate_norms = separate_norms_of};

constinit const HostLaunches kLocalHost = {.numbers = kLocalNumbers};

constinit const HostLaunches kPaperHost = {.numbers = kPaperNumbers};

}  // namespace shardplan::megatron
