#include "estimator/frameworks/megatron/host.h"

#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/ledger/block_memory.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"
#include "estimator/time/host_time.h"

namespace shardplan::megatron {
namespace {

// Of layers with experts of Megatron-core, one after the other, beside a dense layer's: 15.0 ms a
// layer with 8 (host-mix-tp1ep1L12 less ...L6), 41.5 with 32 (moe-tp1ep1), so 1.10 ms for each and
// 6.2 for none, 2.6 more than a dense layer (data/measured/frameworks_h200.jsonl); divided over the
// directions as a layer's time is.
constexpr HostCost kRouting = microseconds(1000, 1600);
constexpr HostCost kExpert = microseconds(420, 680);

// Experts on several ranks: exchanges both ways, whose sizes are read on the host, of
// Megatron-core's all-to-all dispatcher, which sorts what it receives with operators of PyTorch, on
// the host of kEngine: layers of 32 experts over two H100 take 10.6 ms each and microbatch over the
// speed of their host (host_steps_h100.jsonl, host-two-te-ep2-moe32-l6 less ...-l2), where two
// ranks of dense layers take 1.08 to 1.3 times what is said below and 16 experts of such a layer
// would 6.25; so 1.9 to 3.6 ms, and torchtitan's exchanges 2.6. Megatron-LM's tests with the
// all-gather dispatcher need none of it (data/published/megatron_ci.jsonl). With fused permutation
// such layers take 9.3 ms (data/measured/exchanges_two_gpus_h100.jsonl, a2a-host-base-l6 less
// ...-l2, over 16 layers and the speed of their host), which over 1.19, between the 1.08 and 1.3
// above, is 1.27 more than the rest that is said for them.
constexpr HostCost kEngineExperts = microseconds(1450, 1250);
constexpr HostCost kEngineFusedExperts = microseconds(680, 590);
// --overlap-moe-expert-parallel-comm with --delay-wgrad-compute, which Megatron-Bridge sets
// together (scripts/performance/utils/overrides.py of v0.3.0): a layer is four nodes of a schedule,
// each with an autograd call and events of its own, and weight gradients are calls apart. As above,
// a2a-host-delay-... less -base-... 2.5 ms, -fp8-delay-... less -fp8-... 2.1; without delay 1.8.
constexpr HostCost kCombinedSchedule = microseconds(1050, 1250);
// Beside experts that run one after the other, on the host of kLocal: what five whole runs with ep
// 2 need that the host bounds (h200_frameworks.jsonl, frameworks_h200.jsonl).
constexpr HostCost kLocalExperts = microseconds(950, 800);

// Latent attention instead of grouped queries, and shared experts, under Transformer Engine, whose
// latent attention has two linear layers more, a norm that stands alone and two kernels in Triton,
// and with latent queries another linear layer and a norm: models 512 wide on two H200 over 1.75
// times 1.31, the speed of that host and what dense layers of grouped queries take there over what
// is said below (data/measured/latent_two_gpus_h200.jsonl, mla-host-latent-..., -moe-latent-... and
// -moe-shared-...). Routing in groups, by a sigmoid or with a bias shows no cost of its own.
constexpr HostCost kEngineLatent = microseconds(270, 430);
constexpr HostCost kEngineLatentQuery = microseconds(240, 390);
constexpr HostCost kEngineShared = microseconds(70, 110);
// What a stream of their own adds to shared experts: 2.2 ms of a layer and microbatch, over the
// same (README.md there, --moe-shared-expert-overlap), over the directions as a layer's time is.
constexpr HostCost kEngineSharedBeside = microseconds(370, 590);

// What Megatron-FSDP's hooks of modules and parameters add under ZeRO-3: to a layer, for each
// weight of an expert, for each weight whose gradient is not fused and so copied, and to the ends
// of a microbatch. Models 512 wide on two pairs of H200, 12 dense layers and 6 of 16 experts a
// rank, less the same under ZeRO-1, over the speed of those hosts and what that was said too little
// (data/measured/overlaps_two_gpus_h200.jsonl, fsdp-host-...); copies from fsdp-q30-ep2-fp32 less
// -bf16. Directions and ends as the kernels of two of these steps follow each other.
constexpr HostCost kFsdpLayer = microseconds(900, 350);
constexpr HostCost kFsdpExpertWeight = microseconds(12, 7);
constexpr HostCost kFsdpCopiedGradient = microseconds(0, 22);
constexpr HostCost kFsdpEnds = microseconds(1500, 2500);

// Launches of q's and k's norms of Megatron-core's local layers, not measured: each is one operator
// of 2 and 3 kernels, whose weight the hooks of gradients meet as well.
constexpr HostCost kLocalHeadNorms = microseconds(80, 200);

// Transformer Engine's, and its mixtures: of host_steps_h200.jsonl, divided by kMeasuringHost and
// over the directions as a layer's time is. Norms of q and k take 0.9 (2 layers) to 1.6 ms (6).
// Grouped experts still have a weight, a product and hooks each: between 8, 32 and 128 of them 0.22
// ms a microbatch, of which a quarter of 0.25 once a step (1 against 4 microbatches); routing 3.4
// ms.
constexpr HostCost kEngineHeadNorms = microseconds(290, 470);
constexpr HostCost kEngineRouting = microseconds(810, 1290);
// Where graphs hold the router and what stands in front of the exchange, what is left of routing:
// 0.35 forward and 0.52 backward of what these take with dispatch, permutation and the way back, as
// MoELayer of core_v0.16.1 does on a CPU (PyTorch 2.6, one rank, 32 experts that only scale their
// rows, all-to-all, auxiliary loss, router in fp32; 0.31 to 0.37 and 0.47 to 0.54 in three runs; by
// operators a third of both).
constexpr HostCost kEngineRoutingBehind = microseconds(280, 670);
// What fused kernels of the router spare the host: 484 us forward with 128 and 256 experts, and
// backward nothing that its noise leaves, over the 2.35 of that host (mixture_kernels_h100.json,
// `router_host`; the fused kernels were called from Python there).
constexpr HostCost kFusedRouterSpares = microseconds(200, 0);
constexpr HostCost kGroupedExpert = microseconds(37, 60);
// Casts, largest values and scales of a layer's four linear modules in fp8: 1147 ms of 32
// microbatches with tp 2 and pp 2 are 5.0 ms a layer on H100, against 2.5 in bf16
// (data/published/megatron_ci.jsonl,
// gpt3_weekly_mcore_tp2_pp2_current_scaling_native_fp8_tp_pp_sp_tp_overlap).
constexpr HostCost kEngineFp8 = microseconds(950, 1510);

// What scaling an expert's rows and weights adds in fp8: a2a-host-fp8-... less -base-..., as
// above, 3.2 ms of a layer with 16 experts, of which its dense part is kEngineFp8.
constexpr HostCost kGroupedExpertFp8 = microseconds(17, 27);

// Layers of Transformer Engine on a DGX H100, from the step times of Megatron-LM's tests there
// (data/published/megatron_ci.jsonl; 12 layers, not deterministic): 195 ms with tp 4, pp 2 and
// 8 microbatches against 118 with tp 2, pp 2 and 4 leave 19.3 ms for six layers and one end,
// and 22 for what is once a step; with cp 2, 292 ms of 8 and 258 of 4 microbatches leave 1.8
// and 2.0 ms a layer more. With tp 2 a layer takes a third longer than with dp 2, and one end
// less than one layer (models of 2 and 6 layers on two H100, host_steps_h100.jsonl,
// host-two-te-...). Forward and backward divided as the local layers'. The update is a few
// launches of FusedAdam, and copies of every weight: with 32 experts in each of six layers
// steps of one and of four microbatches leave 51 ms for what is once a step
// (host_steps_h200.jsonl, host-te-moe32-l6), 34 on another machine.
constexpr HostTable kEngine = {.host_slowdown = 1,
                               .layer = microseconds(830, 1330),
                               .tensor_parallel = microseconds(420, 300),
                               .context_parallel = microseconds(650, 1250),
                               .expert_parallel = kEngineExperts,
                               .fused_expert_parallel = kEngineFusedExperts,
                               .routing = kEngineRouting,
                               .fused_router_spares = kFusedRouterSpares,
                               .expert = microseconds(250, 410),
                               .grouped_expert = kGroupedExpert,
                               .head_norms = kEngineHeadNorms,
                               .fp8 = kEngineFp8,
                               .grouped_expert_fp8 = kGroupedExpertFp8,
                               .combined_schedule = kCombinedSchedule,
                               .ends = microseconds(900, 1100),
                               .expert_update_s = 110 * kMicro};

// data/measured/host_cost_h200.json: Megatron-core v0.16.1's own layers on PyTorch 2.11, tensors so
// small that the host decides; one layer is a quarter of the difference between models of 2 and 6.
constexpr HostTable kLocal = {.host_slowdown = kMeasuringHost,
                              .layer = microseconds(1380, 2210),
                              .tensor_parallel = microseconds(640, 0),
                              .expert_parallel = kLocalExperts,
                              .routing = kRouting,
                              .expert = kExpert,
                              .grouped_expert = kExpert,
                              .head_norms = kLocalHeadNorms,
                              .ends = microseconds(2700, 3500),
                              .update_s = 350 * kMicro};

// A checkpoint around core_attn or mlp of Megatron-core's, which keeps the generators' states and
// runs the module again, takes 0.7 to 1 ms (data/measured/frameworks_h200.jsonl, host-smol-*).
// So it is of each of mla_up_proj, layernorm and mlp (latent_two_gpus_h200.jsonl;
// CheckpointWithoutOutput in core_v0.16.1 core/transformer/transformer_layer.py).
constexpr double kCheckpoint = 700 * kMicro;

// What an interleaved schedule adds to one pass of a chunk, either way: messages, their buffers and
// its own bookkeeping. Of 8 chunks a rank instead of one, 512 wide
// (data/measured/overlaps_two_gpus_h200.jsonl, p2p-host-...).
constexpr HostCost kChunkPass = microseconds(330, 330);

// A graph is one autograd function each way, which takes what one linear layer's does, forward and
// backward 189 us (host_cost_h200.json).
constexpr HostCost kGraph = microseconds(95, 95);

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

// A layer of which CUDA graphs may hold a part.
HostCost layer_launches(const Job& job, const Plan& plan, const LayerSpec& layer,
                        const HostLaunches& host, const HostTable& table) {
  HostCost cost;
  HostCost routing = kEngineRoutingBehind;
  switch (job.profile.cuda_graphs) {
    case CudaGraphs::kIteration: return {};
    case CudaGraphs::kLayers: return kGraph;
    case CudaGraphs::kAttention:
      cost = beside_attention(table, plan);
      add(cost, 1, kGraph);
      break;
    case CudaGraphs::kRouter:
      cost = eager_launches(job, plan, layer, host, table);
      add(cost, layer.is_moe ? 1 : 0, kGraph);
      break;
    case CudaGraphs::kNone:
      cost = eager_launches(job, plan, layer, host, table);
      routing = routing_launches(job, table);
      break;
  }
  if (layer.is_moe) {
    add(cost, 1, expert_launches(job, plan, table, routing));
  }
  return cost;
}

HostCost layer_hooks(const Job& job, const Plan& plan, const LayerSpec& layer) {
  constexpr double kDenseWeights = 6;
  constexpr double kWeightsOfExpert = 2;
  if (!shards_parameters(job, plan)) {
    return {};
  }
  const double of_experts =
      layer.is_moe ? kWeightsOfExpert * number(div_ceil(job.model.moe.num_experts, plan.ep)) : 0;
  HostCost cost = kFsdpLayer;
  add(cost, of_experts, kFsdpExpertWeight);
  add(cost, fuses_weight_gradients(job, plan) ? 0 : kDenseWeights + of_experts,
      kFsdpCopiedGradient);
  return cost;
}

HostCost end_hooks(const Job& job, const Plan& plan) {
  return shards_parameters(job, plan) ? kFsdpEnds : HostCost{};
}

HostCost latent_and_shared(const Job& job, const LayerSpec& layer) {
  const bool shares = layer.is_moe && job.model.moe.shared_ffn > 0;
  HostCost cost;
  add(cost, job.model.is_mla() ? 1 : 0, kEngineLatent);
  add(cost, job.model.is_mla() && job.model.mla.q_lora_rank > 0 ? 1 : 0, kEngineLatentQuery);
  add(cost, shares ? 1 : 0, kEngineShared);
  add(cost, shares && job.profile.moe_shared_expert_overlap ? 1 : 0, kEngineSharedBeside);
  return cost;
}

std::int64_t separate_norms_of(const Job& job, const LayerSpec& layer) {
  const SeparateNorms norms = separate_norms(job, layer.is_moe);
  return (norms.attention ? 1 : 0) + (norms.ffn ? 1 : 0);
}

}  // namespace

// Newton-Schulz iterations on one matrix are about 27 operators and a look at the stack, which the
// package's log asks for: pairs of runs with AdamW and with Muon, 96 matrices in 16 layers and 148
// in 4 with experts, leave 0.4 to 0.5 ms for each on a host 1.22 times as slow
// (data/measured/muon_h100.jsonl, muon-host-...).
double host_orthogonalize_s(const Job& job) {
  constexpr double kMatrix = 350 * kMicro;
  return kMatrix * job.cluster.host_slowdown;
}

constinit const HostLaunches kHost = {.table = [](const FrameworkProfile&) { return &kEngine; },
                                      .layer = layer_launches,
                                      .launches_once = launches_once,
                                      .layer_hooks = layer_hooks,
                                      .end_hooks = end_hooks,
                                      .latent_and_shared = latent_and_shared,
                                      .checkpoint_s = kCheckpoint,
                                      .separate_norms = separate_norms_of,
                                      .chunk_pass = kChunkPass};

constinit const HostLaunches kLocalHost = {.table = [](const FrameworkProfile&) { return &kLocal; },
                                           .checkpoint_s = kCheckpoint,
                                           .chunk_pass = kChunkPass};

}  // namespace shardplan::megatron
