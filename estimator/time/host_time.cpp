#include "estimator/time/host_time.h"

#include <algorithm>

#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"
#include "estimator/time/host_rows.h"

namespace shardplan {
namespace {

const HostRow* row_of(const FrameworkProfile& profile) {
  for (const HostRow& row : kHostRows) {
    if (row.model == profile.memory_model && row.compiled == profile.compiles_layers()) {
      return &row;
    }
  }
  return nullptr;
}

// What the host of this cluster takes over that on which the row was measured.
double host_factor(const Job& job, const HostRow& row) {
  return job.cluster.host_slowdown / row.host_slowdown;
}

HostCost scaled(double factor, const HostCost& cost) {
  return {.forward_s = factor * cost.forward_s, .backward_s = factor * cost.backward_s};
}

void add(HostCost& cost, double count, const HostCost& more) {
  cost.forward_s += count * more.forward_s;
  cost.backward_s += count * more.backward_s;
}

// Rows of experts go to other ranks in parts whose sizes the host reads.
HostCost exchanges(const HostRow& row, const FrameworkProfile& profile) {
  const bool reads_sizes =
      profile.moe_dispatcher == MoeDispatcher::kAllToAll && profile.moe_capacity_factor == 0;
  return !reads_sizes                 ? HostCost{}
         : profile.moe_permute_fusion ? row.fused_expert_parallel
                                      : row.expert_parallel;
}

// What tensor and context parallelism add.
HostCost split_launches(const HostRow& row, const Plan& plan) {
  HostCost cost;
  add(cost, plan.tp > 1 ? 1 : 0, row.tensor_parallel);
  add(cost, plan.cp > 1 ? 1 : 0, row.context_parallel);
  add(cost, static_cast<double>(std::max<std::int64_t>(0, plan.cp - 2)), row.further_hop);
  add(cost, plan.tp > 1 && plan.cp > 1 ? 1 : 0, row.both);
  return cost;
}

// What graphs of attention leave of a dense layer: besides attention, its projections and norms it
// has two of four products and the activation, a third; two of four linear modules, and of its
// collectives the feed-forward's. Norms of heads and latent attention are within.
HostCost beside_attention(const HostRow& row, const Plan& plan) {
  HostCost cost;
  add(cost, 1.0 / 3, row.layer);
  add(cost, plan.tp > 1 ? 0.5 : 0, row.tensor_parallel);
  add(cost, plan.precision == Precision::kFp8 ? 0.5 : 0, row.fp8);
  return cost;
}

// What the hooks of ZeRO-2 and 3 add to a layer.
HostCost zero_hooks(const Job& job, const Plan& plan) {
  HostCost cost;
  const double head_norms = plan.zero == 2 ? kZero2HeadNorms : kZero3HeadNorms;
  add(cost, 1 + (job.model.qk_norm ? head_norms : 0), plan.zero == 2 ? kZero2Hooks : kZero3Hooks);
  if (plan.zero == 3) {
    const DividedTensors weights = zero3_divided_tensors(job);
    const auto ranks = static_cast<double>(data_parallel_size(job, plan));
    add(cost, weights.all, kZero3Gather);
    add(cost, ranks > 1 ? weights.all : 0, kZero3SharedGather);
    add(cost, weights.gathered_together * (ranks - 1), kZero3GatheredRank);
  }
  return cost;
}

bool shards_parameters_by_megatron(const Job& job, const Plan& plan) {
  return is_megatron_fsdp(job, plan) && plan.zero == 3;
}

// What Megatron-FSDP's hooks add to a layer.
HostCost fsdp_hooks(const Job& job, const Plan& plan, const LayerSpec& layer) {
  constexpr double kDenseWeights = 6;
  constexpr double kWeightsOfExpert = 2;
  const double of_experts =
      layer.is_moe ? kWeightsOfExpert * number(div_ceil(job.model.moe.num_experts, plan.ep)) : 0;
  HostCost cost = kFsdpLayer;
  add(cost, of_experts, kFsdpExpertWeight);
  add(cost, fuses_weight_gradients(job, plan) ? 0 : kDenseWeights + of_experts,
      kFsdpCopiedGradient);
  return cost;
}

// What latent attention instead of grouped queries and shared experts add to a layer.
HostCost deepseek_launches(const Job& job, const LayerSpec& layer) {
  const MemoryModel model = job.profile.memory_model;
  const bool shares = layer.is_moe && job.model.moe.shared_ffn > 0;
  HostCost cost;
  if (model == MemoryModel::kTorchtitan && job.model.is_mla()) {
    add(cost, 1, kTitanLatent);
    add(cost, shares ? 1 : 0, kTitanShared);
  }
  if (model == MemoryModel::kMegatron) {
    add(cost, job.model.is_mla() ? 1 : 0, kEngineLatent);
    add(cost, job.model.is_mla() && job.model.mla.q_lora_rank > 0 ? 1 : 0, kEngineLatentQuery);
    add(cost, shares ? 1 : 0, kEngineShared);
    add(cost, shares && job.profile.moe_shared_expert_overlap ? 1 : 0, kEngineSharedBeside);
  }
  return cost;
}

// A layer that is launched kernel by kernel, without its experts.
HostCost eager_launches(const Job& job, const Plan& plan, const LayerSpec& layer,
                        const HostRow& row) {
  HostCost cost;
  add(cost, 1, row.layer);
  add(cost, shardings_per_microbatch(job, plan), row.sharded);
  add(cost, 1, split_launches(row, plan));
  if (job.profile.memory_model == MemoryModel::kDeepspeed && plan.zero > 1) {
    add(cost, 1, zero_hooks(job, plan));
  }
  if (shards_parameters_by_megatron(job, plan)) {
    add(cost, 1, fsdp_hooks(job, plan, layer));
  }
  add(cost, job.model.qk_norm ? 1 : 0, row.head_norms);
  add(cost, 1, deepseek_launches(job, layer));
  add(cost, plan.precision == Precision::kFp8 ? 1 : 0, row.fp8);
  return cost;
}

// What experts add to a layer, but where whole layers are graphs.
HostCost expert_launches(const Job& job, const Plan& plan, const HostRow& row) {
  const bool is_grouped = job.profile.moe_grouped_gemm;
  const double experts = number(div_ceil(job.model.moe.num_experts, plan.ep));
  HostCost cost;
  const bool launches_router = job.profile.cuda_graphs == CudaGraphs::kNone;
  add(cost, 1, launches_router ? row.routing : kEngineRoutingBehind);
  add(cost, launches_router && job.profile.moe_router_fusion ? -1 : 0, row.fused_router_spares);
  add(cost, plan.ep > 1 ? 1 : 0, exchanges(row, job.profile));
  add(cost, experts, is_grouped ? row.grouped_expert : row.expert);
  add(cost, is_grouped && plan.precision == Precision::kFp8 ? experts : 0, row.grouped_expert_fp8);
  add(cost, job.profile.overlap_moe_expert_parallel_comm ? 1 : 0, row.combined_schedule);
  return cost;
}

// A graph is one autograd function each way, which takes what one linear layer's does, forward and
// backward 189 us (host_cost_h200.json).
HostCost launches(const Job& job, const Plan& plan, const LayerSpec& layer, const HostRow& row) {
  constexpr HostCost kGraph = microseconds(95, 95);
  HostCost cost;
  switch (job.profile.cuda_graphs) {
    case CudaGraphs::kIteration: return {};
    case CudaGraphs::kLayers: return kGraph;
    case CudaGraphs::kAttention:
      cost = beside_attention(row, plan);
      add(cost, 1, kGraph);
      break;
    case CudaGraphs::kRouter:
      cost = eager_launches(job, plan, layer, row);
      add(cost, layer.is_moe ? 1 : 0, kGraph);
      break;
    case CudaGraphs::kNone: cost = eager_launches(job, plan, layer, row); break;
  }
  if (layer.is_moe) {
    add(cost, 1, expert_launches(job, plan, row));
  }
  return cost;
}

}  // namespace

double shardings_per_microbatch(const Job& job, const Plan& plan) {
  if (job.profile.memory_model != MemoryModel::kTorchtitan || plan.zero != 3) {
    return 0;
  }
  return gathers_once(job.profile, plan)
             ? static_cast<double>(data_parallel_size(job, plan) * plan.micro_batch) /
                   static_cast<double>(job.global_batch)
             : 1;
}

bool gathers_once(const FrameworkProfile& profile, const Plan& plan) {
  return profile.memory_model == MemoryModel::kTorchtitan && plan.pp > 1 &&
         profile.reshard_after_forward != ReshardAfterForward::kAlways;
}

HostCost host_cost(const Job& job, const Plan& plan, const LayerSpec& layer) {
  const HostRow* row = row_of(job.profile);
  return row == nullptr ? HostCost{}
                        : scaled(host_factor(job, *row), launches(job, plan, layer, *row));
}

namespace {

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
double growth_with_tp(const HostRow& row, const Plan& plan, double forward_s, double slower) {
  const double split_s = slower * split_launches(row, plan).forward_s;
  return plan.tp > 1 && forward_s > 0 ? forward_s / (forward_s - split_s) : 1;
}

RecomputeModules modules_of(const Job& job, const LayerSpec& layer) {
  return {.core_attn = true,
          .mlp = !layer.is_moe,
          .moe_act = layer.is_moe,
          .mla_up_proj = job.model.is_mla(),
          .moe = layer.is_moe,
          .shared_experts = layer.is_moe && job.model.moe.shared_ffn > 0};
}

// Of each module that the layer has, of both of its norms (Megatron-LM core_v0.16.1
// core/transformer/transformer_layer.py, CheckpointWithoutOutput).
double checkpoints(const RecomputeModules& chosen, const LayerHost& host) {
  double count = chosen.layernorm ? number(host.separate_norms) : 0;
  for (const NamedValue<bool RecomputeModules::*>& module : kRecomputeModules) {
    count += chosen.*module.value && host.modules.*module.value ? 1 : 0;
  }
  return count;
}

}  // namespace

LayerHost layer_host(const Job& job, const Plan& plan, const LayerSpec& layer) {
  // A checkpoint around core_attn or mlp of Megatron-core's, which keeps the generators' states and
  // runs the module again, takes 0.7 to 1 ms (data/measured/frameworks_h200.jsonl, host-smol-*).
  // So it is of each of mla_up_proj, layernorm and mlp (latent_two_gpus_h200.jsonl).
  constexpr double kCheckpoint = 700 * kMicro;
  const SeparateNorms norms = separate_norms(job, layer.is_moe);
  LayerHost host{.launches = host_cost(job, plan, layer),
                 .chosen_by_operator = {},
                 .checkpoint_s = kCheckpoint * job.cluster.host_slowdown / kMeasuringHost,
                 .modules = modules_of(job, layer),
                 .separate_norms = (norms.attention ? 1 : 0) + (norms.ffn ? 1 : 0),
                 .waits = job.profile.launch_blocking,
                 .combines = layer.is_moe && job.profile.overlap_moe_expert_parallel_comm};
  const HostRow* row = row_of(job.profile);
  if (row != nullptr && row->model == MemoryModel::kTorchtitan && !row->compiled) {
    const double slower = host_factor(job, *row);
    const double growth = growth_with_tp(*row, plan, host.launches.forward_s, slower);
    add(host.chosen_by_operator, growth * dispatched_operators(job, plan, layer),
        scaled(slower, kChosenOperator));
  }
  return host;
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

HostCost host_cost_of_ends(const Job& job, const Plan& plan) {
  HostCost cost;
  const HostRow* row = row_of(job.profile);
  if (row == nullptr) {
    return cost;
  }
  if (job.profile.cuda_graphs != CudaGraphs::kIteration) {
    add(cost, 1, row->ends);
    add(cost, shardings_per_microbatch(job, plan), row->sharded_ends);
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed && plan.zero == 3) {
    add(cost, 1, kZero3Ends);
  }
  if (shards_parameters_by_megatron(job, plan)) {
    add(cost, 1, kFsdpEnds);
  }
  return scaled(host_factor(job, *row), cost);
}

HostCost host_cost_of_pass(const Job& job, const Plan& plan) {
  const bool interleaves = is_megatron(job.profile.memory_model) && plan.vpp > 1 &&
                           job.profile.cuda_graphs != CudaGraphs::kIteration;
  return interleaves ? scaled(job.cluster.host_slowdown, kChunkPass) : HostCost{};
}

// Newton-Schulz iterations on one matrix are about 27 operators and a look at the stack, which the
// package's log asks for: pairs of runs with AdamW and with Muon, 96 matrices in 16 layers and 148
// in 4 with experts, leave 0.4 to 0.5 ms for each on a host 1.22 times as slow
// (data/measured/muon_h100.jsonl, muon-host-...).
double host_orthogonalize_s(const Job& job) {
  constexpr double kMatrix = 350 * kMicro;
  return kMatrix * job.cluster.host_slowdown;
}

double host_update_s(const Job& job, const Plan& plan) {
  const HostRow* row = row_of(job.profile);
  if (row == nullptr) {
    return 0;
  }
  const auto mixtures = std::ranges::count(job.model.layers, true, &LayerSpec::is_moe);
  const double experts = number(mixtures * div_ceil(job.model.moe.num_experts, plan.ep)) /
                         number(std::ssize(job.model.layers));
  return host_factor(job, *row) * (row->update_s + experts * row->expert_update_s);
}

}  // namespace shardplan
