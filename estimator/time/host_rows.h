// What hosts took to launch layers, as measured: seconds, by framework, each with its source.
// host_time.cpp says how they add up.
#pragma once

#include <array>

#include "estimator/plan/framework_profile.h"
#include "estimator/time/host_time.h"

namespace shardplan {

inline constexpr double kMicro = 1e-6;

constexpr HostCost microseconds(double forward, double backward) {
  return {.forward_s = forward * kMicro, .backward_s = backward * kMicro};
}

// torchtitan's own layers take less than that measurement says, as models of 2 and 6 layers on one
// GPU leave (data/measured/host_steps_h200.jsonl, host_steps_h100.jsonl), and sharding them with
// NCCL takes more than with collectives that do nothing: the two together are what 24 whole runs
// bound by the host need (h200_frameworks.jsonl, frameworks_h200.jsonl). So with the ends, of which
// the same models leave 1.5 ms on one GPU and all of the measurement with sharding.
inline constexpr double kTitanLayerInRuns = 0.65;
inline constexpr HostCost kTitanSharded = microseconds(1500, 950);

constexpr HostCost titan_layer(double forward, double backward) {
  return microseconds(kTitanLayerInRuns * forward, kTitanLayerInRuns * backward);
}

// Of layers with experts of Megatron-core, one after the other, beside a dense layer's: 15.0 ms a
// layer with 8 (host-mix-tp1ep1L12 less ...L6), 41.5 with 32 (moe-tp1ep1), so 1.10 ms for each and
// 6.2 for none, 2.6 more than a dense layer (data/measured/frameworks_h200.jsonl); divided over the
// directions as a layer's time is.
inline constexpr HostCost kRouting = microseconds(1000, 1600);
inline constexpr HostCost kExpert = microseconds(420, 680);

// torchtitan's mixture beside the feed-forward that it stands for, some fifty operators forward and
// forty backward: 2.2 ms a layer and microbatch with sharding on two H100 (host_steps_h100.jsonl,
// host-two-titan-dp2-moe32-l6 less -dp2-l6, over the speed of that host), 2.6 and 3.0 on single
// GPUs; compiled in parts 2.5 (host_steps_h200.jsonl, host-titan-moe32-compiled-...). Divided as
// the operators.
inline constexpr HostCost kTitanRouting = microseconds(1400, 1100);
// Experts on several ranks: exchanges both ways, whose sizes are read on the host, and a group of
// shards of their own (host-two-titan-ep2-moe32-..., less the same without ep).
inline constexpr HostCost kTitanExperts = microseconds(2200, 1950);
inline constexpr HostCost kTitanCompiledExperts = microseconds(3500, 3200);

// The same of Megatron-core's all-to-all dispatcher, which sorts what it receives with operators of
// PyTorch, on the host of its first row: layers of 32 experts over two H100 take 10.6 ms each and
// microbatch over the speed of their host (host_steps_h100.jsonl, host-two-te-ep2-moe32-l6 less
// ...-l2), where two ranks of dense layers take 1.08 to 1.3 times what is said below and 16 experts
// of such a layer would 6.25; so 1.9 to 3.6 ms, and torchtitan's exchanges 2.6. Megatron-LM's tests
// with the all-gather dispatcher need none of it (data/published/megatron_ci.jsonl). With fused
// permutation such layers take 9.3 ms (data/measured/exchanges_two_gpus_h100.jsonl,
// a2a-host-base-l6 less ...-l2, over 16 layers and the speed of their host), which over 1.19,
// between the 1.08 and 1.3 above, is 1.27 more than the rest that is said for them.
inline constexpr HostCost kEngineExperts = microseconds(1450, 1250);
inline constexpr HostCost kEngineFusedExperts = microseconds(680, 590);
// --overlap-moe-expert-parallel-comm with --delay-wgrad-compute, which Megatron-Bridge sets
// together (scripts/performance/utils/overrides.py of v0.3.0): a layer is four nodes of a schedule,
// each with an autograd call and events of its own, and weight gradients are calls apart. As above,
// a2a-host-delay-... less -base-... 2.5 ms, -fp8-delay-... less -fp8-... 2.1; without delay 1.8.
inline constexpr HostCost kCombinedSchedule = microseconds(1050, 1250);
// Beside experts that run one after the other, on the host of that row: what five whole runs with
// ep 2 need that the host bounds (h200_frameworks.jsonl, frameworks_h200.jsonl).
inline constexpr HostCost kLocalExperts = microseconds(950, 800);

// DeepSeek's latent attention instead of grouped queries, and its shared experts: what six layers
// on two H100 take more than that, over the speed of that host (host_steps_h100.jsonl,
// host-ds-...).
inline constexpr HostCost kTitanLatent = microseconds(450, 350);
inline constexpr HostCost kTitanShared = microseconds(150, 130);

// The same under Transformer Engine, whose latent attention has two linear layers more, a norm that
// stands alone and two kernels in Triton, and with latent queries another linear layer and a norm:
// models 512 wide on two H200 over 1.75 times 1.31, the speed of that host and what dense layers of
// grouped queries take there over what is said below (data/measured/latent_two_gpus_h200.jsonl,
// mla-host-latent-..., -moe-latent-... and -moe-shared-...). Routing in groups, by a sigmoid or
// with a bias shows no cost of its own.
inline constexpr HostCost kEngineLatent = microseconds(270, 430);
inline constexpr HostCost kEngineLatentQuery = microseconds(240, 390);
inline constexpr HostCost kEngineShared = microseconds(70, 110);
// What a stream of their own adds to shared experts: 2.2 ms of a layer and microbatch, over the
// same (README.md there, --moe-shared-expert-overlap), over the directions as a layer's time is.
inline constexpr HostCost kEngineSharedBeside = microseconds(370, 590);

// What Megatron-FSDP's hooks of modules and parameters add under ZeRO-3: to a layer, for each
// weight of an expert, for each weight whose gradient is not fused and so copied, and to the ends
// of a microbatch. Models 512 wide on two pairs of H200, 12 dense layers and 6 of 16 experts a
// rank, less the same under ZeRO-1, over the speed of those hosts and what that was said too little
// (data/measured/overlaps_two_gpus_h200.jsonl, fsdp-host-...); copies from fsdp-q30-ep2-fp32 less
// -bf16. Directions and ends as the kernels of two of these steps follow each other.
inline constexpr HostCost kFsdpLayer = microseconds(900, 350);
inline constexpr HostCost kFsdpExpertWeight = microseconds(12, 7);
inline constexpr HostCost kFsdpCopiedGradient = microseconds(0, 22);
inline constexpr HostCost kFsdpEnds = microseconds(1500, 2500);

// What an interleaved schedule adds to one pass of a chunk, either way: messages, their buffers and
// its own bookkeeping. Of 8 chunks a rank instead of one, 512 wide (the same file, p2p-host-...).
inline constexpr HostCost kChunkPass = microseconds(330, 330);

// What DeepSpeed's hooks add to a layer, and to the ends of a microbatch: ZeRO-2's at gradients,
// ZeRO-3's at modules and gradients (data/measured/deepspeed_h200.jsonl, ds-host-..., less the
// gathers of the three weights of these layers that are large enough).
inline constexpr HostCost kZero2Hooks = microseconds(0, 1700);
inline constexpr HostCost kZero3Hooks = microseconds(2300, 3520);
// What ZeRO-3 adds for each weight that it gathers and lets go of, in either direction; with
// several ranks; and for each of those where several weights share a gather, whose parts
// AllGatherCoalescedHandle.wait puts together one by one (runtime/zero/partition_parameters.py of
// 0.19.6). Shares of the hooks above, from Python's time on a CPU with collectives that move
// nothing (Llama-3-8B's layers in torch's group "fake" of 1 to 256 ranks): 14 gathers instead of 4
// take a fifth more, with 2 ranks a third, with 64 two thirds.
inline constexpr HostCost kZero3Gather = microseconds(200, 160);
inline constexpr HostCost kZero3SharedGather = microseconds(60, 50);
inline constexpr HostCost kZero3GatheredRank = microseconds(4, 4);
inline constexpr HostCost kZero3Ends = microseconds(5000, 9000);
// A layer has 9 gradients and 13 modules; norms of q and of k add two of either.
inline constexpr double kZero2HeadNorms = 2.0 / 9;
inline constexpr double kZero3HeadNorms = 2.0 / 13;

// Launches of q's and k's norms, not measured: of Hugging Face's layer, 38 kernels forward and
// about 80 backward in the times below, each norm has 8 and 16; of Megatron-core's local ones each
// is one operator of 2 and 3 kernels, whose weight the hooks of gradients meet as well.
inline constexpr HostCost kEagerHeadNorms = microseconds(380, 640);
inline constexpr HostCost kLocalHeadNorms = microseconds(80, 200);
// Of eager torchtitan 0.6 ms, as models of 2 and 6 layers with and without them leave
// (data/measured/host_steps_h200.jsonl, host-titan-dense-... and -llama-...).
inline constexpr HostCost kTitanHeadNorms = microseconds(200, 400);

// The virtual H200 machine of data/measured: a dense layer of Transformer Engine takes 3.5 ms there
// (host_steps_h200.jsonl), on the DGX H100 of the times below 2.16.
inline constexpr double kMeasuringHost = 1.62;

// Transformer Engine's, and its mixtures: of the same file, divided by that and over the directions
// as a layer's time is. Norms of q and k take 0.9 (2 layers) to 1.6 ms (6). Grouped experts still
// have a weight, a product and hooks each: between 8, 32 and 128 of them 0.22 ms a microbatch, of
// which a quarter of 0.25 once a step (1 against 4 microbatches); routing 3.4 ms.
inline constexpr HostCost kEngineHeadNorms = microseconds(290, 470);
inline constexpr HostCost kEngineRouting = microseconds(810, 1290);
// Where graphs hold the router and what stands in front of the exchange, what is left of routing:
// 0.35 forward and 0.52 backward of what these take with dispatch, permutation and the way back, as
// MoELayer of core_v0.16.1 does on a CPU (PyTorch 2.6, one rank, 32 experts that only scale their
// rows, all-to-all, auxiliary loss, router in fp32; 0.31 to 0.37 and 0.47 to 0.54 in three runs; by
// operators a third of both).
inline constexpr HostCost kEngineRoutingBehind = microseconds(280, 670);
// What fused kernels of the router spare the host: 484 us forward with 128 and 256 experts, and
// backward nothing that its noise leaves, over the 2.35 of that host (mixture_kernels_h100.json,
// `router_host`; the fused kernels were called from Python there).
inline constexpr HostCost kFusedRouterSpares = microseconds(200, 0);
inline constexpr HostCost kGroupedExpert = microseconds(37, 60);
// Casts, largest values and scales of a layer's four linear modules in fp8: 1147 ms of 32
// microbatches with tp 2 and pp 2 are 5.0 ms a layer on H100, against 2.5 in bf16
// (gpt3_weekly_mcore_tp2_pp2_current_scaling_native_fp8_tp_pp_sp_tp_overlap, as above).
inline constexpr HostCost kEngineFp8 = microseconds(950, 1510);

// What scaling an expert's rows and weights adds in fp8: a2a-host-fp8-... less -base-..., as
// above, 3.2 ms of a layer with 16 experts, of which its dense part is kEngineFp8.
inline constexpr HostCost kGroupedExpertFp8 = microseconds(17, 27);

// data/measured/host_cost_h200.json: torchtitan v0.2.2 and Megatron-core v0.16.1 on
// PyTorch 2.11, tensors so small that the host decides; one layer is a quarter of the difference
// between models of 2 and 6. `sharded` is with FSDP2; tensor and context parallelism come on top
// of that, `both` where they meet. Further hops: 4 and 8 ranks against 2, models of 2 and 6 layers,
// ten pairs of 0.3 to 1.9 ms both ways; compiled, 4 ranks once.
struct HostRow {
  double host_slowdown;  // of the machine that it was measured on
  MemoryModel model;
  bool compiled;
  HostCost layer;
  HostCost sharded;
  HostCost tensor_parallel;
  HostCost context_parallel;  // with two ranks
  HostCost further_hop = {};  // of a ring, for each rank beyond two
  HostCost both;
  HostCost expert_parallel = {};        // exchanges whose sizes the host reads
  HostCost fused_expert_parallel = {};  // the same with fused permutation
  HostCost routing;                     // of a layer with experts: router, permutations, exchanges
  HostCost fused_router_spares = {};    // where fused kernels choose them
  HostCost expert;                      // of each expert, where they run one after the other
  HostCost grouped_expert = {};         // of each expert, where one call runs all
  HostCost head_norms = {};             // norms of q and of k
  HostCost fp8 = {};                    // what a layer's linear modules add in fp8
  HostCost grouped_expert_fp8 = {};     // and each expert
  HostCost combined_schedule = {};      // of experts' exchanges beside other microbatches
  HostCost ends;
  HostCost sharded_ends = {};
  double update_s = 0;         // clipping and optimizer, a layer
  double expert_update_s = 0;  // and each of its experts
};
inline constexpr std::array<HostRow, 6> kHostRows = {{
    {.host_slowdown = kMeasuringHost,
     .model = MemoryModel::kTorchtitan,
     .compiled = false,
     .layer = titan_layer(1880, 1520),
     .sharded = kTitanSharded,
     .tensor_parallel = microseconds(2840, 5160),
     .context_parallel = microseconds(1090, 2140),
     .further_hop = microseconds(450, 700),
     .both = microseconds(1280, 2120),
     .expert_parallel = kTitanExperts,
     .routing = kTitanRouting,
     .expert = {},
     .head_norms = kTitanHeadNorms,
     .ends = microseconds(700, 800),
     .sharded_ends = microseconds(3300, 3700),
     .update_s = 600 * kMicro},
    {.host_slowdown = kMeasuringHost,
     .model = MemoryModel::kTorchtitan,
     .compiled = true,
     .layer = titan_layer(900, 1890),
     .sharded = kTitanSharded,
     .tensor_parallel = microseconds(610, 1360),
     .context_parallel = microseconds(50, 540),
     .further_hop = microseconds(150, 250),
     .both = {},
     .expert_parallel = kTitanCompiledExperts,
     .routing = kTitanRouting,
     .expert = {},
     .ends = microseconds(700, 800),
     .sharded_ends = microseconds(2300, 1700),
     .update_s = 500 * kMicro},
    {.host_slowdown = kMeasuringHost,
     .model = MemoryModel::kMegatronLocal,
     .compiled = false,
     .layer = microseconds(1380, 2210),
     .sharded = {},
     .tensor_parallel = microseconds(640, 0),
     .context_parallel = {},
     .both = {},
     .expert_parallel = kLocalExperts,
     .routing = kRouting,
     .expert = kExpert,
     .grouped_expert = kExpert,
     .head_norms = kLocalHeadNorms,
     .ends = microseconds(2700, 3500),
     .update_s = 350 * kMicro},
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
    {.host_slowdown = 1,
     .model = MemoryModel::kMegatron,
     .compiled = false,
     .layer = microseconds(830, 1330),
     .sharded = {},
     .tensor_parallel = microseconds(420, 300),
     .context_parallel = microseconds(650, 1250),
     .both = {},
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
     .update_s = 0,
     .expert_update_s = 110 * kMicro},
    // Hugging Face's eager layer under ZeRO-1: a sixteenth of the difference between models of 2
    // and 6 layers and four microbatches (data/measured/deepspeed_h200.jsonl, ds-host-z1-...).
    {.host_slowdown = kMeasuringHost,
     .model = MemoryModel::kDeepspeed,
     .compiled = false,
     .layer = microseconds(900, 1600),
     .sharded = {},
     .tensor_parallel = {},
     .context_parallel = {},
     .both = {},
     .routing = {},
     .expert = {},
     .head_norms = kEagerHeadNorms,
     .ends = microseconds(1700, 2500),
     .update_s = 0},
    // An eager layer with norms and rotary embedding in Triton, and what the accumulator does with
    // its gradients: 5.0 ms from models of 2 and 6 layers (data/measured/nanotron_h200.jsonl,
    // nano-host-...), 3.3 on another machine; between them, divided as the local layers'.
    // Collectives 40 a call.
    {.host_slowdown = kMeasuringHost,
     .model = MemoryModel::kNanotron,
     .compiled = false,
     .layer = microseconds(1600, 2600),
     .sharded = {},
     .tensor_parallel = microseconds(160, 240),
     .context_parallel = {},
     .both = {},
     .routing = {},
     .expert = {},
     .ends = microseconds(1500, 2000),
     .update_s = 900 * kMicro},
}};

}  // namespace shardplan
