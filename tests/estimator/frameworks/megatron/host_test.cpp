// Hosts that launch Megatron-core: steps of Megatron-LM's tests, and models so small that the host
// decides.
#include "estimator/frameworks/megatron/host.h"

#include <doctest/doctest.h>

#include <utility>

#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/host_costs.h"
#include "tests/measured_host.h"

namespace shardplan::megatron {
namespace {

TEST_CASE("experts that run one after the other cost the host for each; ep divides them") {
  Job job;
  set_measured_framework(job.profile, MemoryModel::kMegatronLocal);
  job.model.moe = {.num_experts = 32, .topk = 4, .expert_ffn = 1024};
  const double dense = both(host_cost(job, {}, {}));
  const double all = both(host_cost(job, {}, {.is_moe = true}));
  const double half = both(host_cost(job, {.ep = 2}, {.is_moe = true}));
  // 41.5 ms a layer with 32 experts, 15.0 with 8 (data/measured/frameworks_h200.jsonl).
  job.model.moe.num_experts = 8;
  const double eight = both(host_cost(job, {}, {.is_moe = true}));
  CHECK(all == doctest::Approx(41.5e-3).epsilon(0.02));
  CHECK(eight == doctest::Approx(15.0e-3).epsilon(0.02));
  // 16 experts on each of two ranks, and the exchange between them.
  job.model.moe.num_experts = 16;
  const double sixteen = both(host_cost(job, {}, {.is_moe = true}));
  const HostTable& table = *host_table(job.profile);
  const double exchange = host_factor(job, table) * both(table.expert_parallel);
  CHECK(sixteen - eight == doctest::Approx((all - eight) / 3));
  CHECK(half == doctest::Approx(sixteen + exchange));
  CHECK(exchange > 0);
  CHECK(dense < eight / 2);
}

// Steps of data/published/megatron_ci.jsonl, none deterministic: 12 layers on two stages.
TEST_CASE("layers of Transformer Engine cost the host what tests of Megatron-LM took, ends apart") {
  const auto microbatch_ms = [](const Job& job, const Plan& plan) {
    return 1e3 * (6 * both(host_cost(job, plan, {})) + both(host_cost_of_ends(job, {})));
  };
  Job job = transformer_engine();
  const double once_ms = 22;
  CHECK(9 * microbatch_ms(job, {.tp = 4}) + once_ms == doctest::Approx(195).epsilon(0.02));
  CHECK(5 * microbatch_ms(job, {.tp = 2}) + once_ms == doctest::Approx(118).epsilon(0.02));
  CHECK(9 * microbatch_ms(job, {.tp = 2, .cp = 2}) + once_ms == doctest::Approx(292).epsilon(0.03));
  CHECK(33 * microbatch_ms(job, {.tp = 2, .precision = Precision::kFp8}) + once_ms ==
        doctest::Approx(1147).epsilon(0.03));
  job.cluster.host_slowdown = 1.4;  // A100
  CHECK(5 * microbatch_ms(job, {.tp = 2}) + once_ms == doctest::Approx(171).epsilon(0.1));
}

TEST_CASE("a checkpoint around attention costs the host what it took on the measuring machine") {
  Job job = transformer_engine();
  job.cluster.host_slowdown = kMachine;
  Recompute modules;
  modules.granularity = RecomputeGranularity::kSelective;
  modules.modules.core_attn = true;
  const LayerHost host = layer_host(job, {}, {});
  CHECK(both(host_replay_cost(modules, host)) == doctest::Approx(0.7e-3).epsilon(0.02));
}

TEST_CASE("every module of a layer that is replayed is a checkpoint of its own") {
  Job job = transformer_engine();
  job.model.moe = {.num_experts = 32, .topk = 4, .expert_ffn = 1024};
  Recompute some;
  some.granularity = RecomputeGranularity::kSelective;
  const auto replay_s = [&](const RecomputeModules& modules, bool is_moe) {
    some.modules = modules;
    return both(host_replay_cost(some, layer_host(job, {.ep = 2}, {.is_moe = is_moe})));
  };
  const double one_s = replay_s({.core_attn = true}, true);
  CHECK(one_s > 0);
  CHECK(replay_s({.layernorm = true, .moe_act = true}, true) == doctest::Approx(2 * one_s));
  CHECK(replay_s({.mlp = true, .moe_act = true}, true) == doctest::Approx(one_s));
  CHECK(replay_s({.mlp = true, .moe_act = true}, false) == doctest::Approx(one_s));
  // Products take the norms in front of attention and of a dense FFN along.
  CHECK(replay_s({.layernorm = true}, false) == 0);
}

// Two ranks of 16 experts each take 10.6 ms a layer and microbatch, over the speed of their host
// (data/measured/host_steps_h100.jsonl, host-two-te-ep2-moe32-l6 less ...-l2).
TEST_CASE("exchanges of experts cost Transformer Engine's host where operators order their rows") {
  Job job = transformer_engine();
  job.model.moe = {.num_experts = 32, .topk = 4, .expert_ffn = 1024};
  const auto layer_s = [&](std::int64_t ep) {
    return both(host_cost(job, {.ep = ep}, {.is_moe = true}));
  };
  job.model.moe.num_experts = 16;
  const double alone = layer_s(1);
  job.model.moe.num_experts = 32;
  CHECK(layer_s(2) == doctest::Approx(10.6e-3).epsilon(0.25));
  CHECK(layer_s(2) > 1.2 * alone);
  const double by_operators = layer_s(2);
  job.profile.moe_permute_fusion = true;
  CHECK(layer_s(2) > alone);
  CHECK(layer_s(2) < by_operators);
  job.profile.moe_permute_fusion = false;
  job.profile.moe_dispatcher = MoeDispatcher::kAllGather;
  CHECK(layer_s(2) == doctest::Approx(alone));
}

// The same with fused permutation on another day, and norms of queries and keys: milliseconds of
// the steps of six layers less those of two, over 4 layers, 4 microbatches and a host_slowdown
// of 2.14 (data/measured/exchanges_two_gpus_h100.jsonl, a2a-host-...).
TEST_CASE("a fused exchange, fp8 and two layers side by side cost the host what was measured") {
  Job job = transformer_engine();
  job.model.qk_norm = true;
  job.model.moe = {.num_experts = 32, .topk = 2, .expert_ffn = 256};
  job.profile.moe_permute_fusion = true;
  const auto layer_ms = [&](Precision precision, bool side_by_side) {
    job.profile.overlap_moe_expert_parallel_comm = side_by_side;
    const Plan plan = {.ep = 2, .precision = precision};
    return 1e3 * both(host_cost(job, plan, {.is_moe = true}));
  };
  CHECK(layer_ms(Precision::kBf16, false) == doctest::Approx(19.96 / 2.14).epsilon(0.2));
  CHECK(layer_ms(Precision::kBf16, true) == doctest::Approx(26.44 / 2.14).epsilon(0.2));
  CHECK(layer_ms(Precision::kFp8, false) == doctest::Approx(28.03 / 2.14).epsilon(0.2));
  CHECK(layer_ms(Precision::kFp8, true) == doctest::Approx(33.49 / 2.14).epsilon(0.2));
}

// 12 dense layers and 8 mixtures 512 wide, 4 microbatches, over a host_slowdown of 1.75 and
// the 1.31 that dense layers of grouped queries take more than is said for them: what 48 or 32
// layers take more, milliseconds (data/measured/latent_two_gpus_h200.jsonl, mla-host-...).
TEST_CASE("latent attention and shared experts cost Transformer Engine's host what was measured") {
  constexpr double kHost = 1.75 * 1.31;
  Job job = transformer_engine();
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 256};
  const auto layer_ms = [&](bool is_moe) {
    return 1e3 * both(host_cost(job, {.ep = 2}, {.is_moe = is_moe}));
  };
  const double grouped = layer_ms(false);
  const double mixture = layer_ms(true);
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 0, .kv_lora_rank = 128};
  CHECK(layer_ms(false) - grouped == doctest::Approx((343 - 257) / 48.0 / kHost).epsilon(0.15));
  job.model.mla.q_lora_rank = 192;
  CHECK(layer_ms(false) - grouped == doctest::Approx((412 - 257) / 48.0 / kHost).epsilon(0.15));
  const double latent = layer_ms(true);
  CHECK(latent - mixture == doctest::Approx((557 - 467) / 32.0 / kHost).epsilon(0.15));
  job.model.moe.shared_ffn = 256;
  CHECK(layer_ms(true) - latent == doctest::Approx((10 + 16) / 2 / 32.0 / kHost).epsilon(0.2));
  CHECK(layer_ms(false) == doctest::Approx(grouped + latent - mixture));
}

// As above: one module recomputed takes 47 ms more in 48 layers, three take 131.
TEST_CASE("every module that is recomputed costs the host its own checkpoint") {
  constexpr double kHost = 1.75 * 1.31;
  Job job = transformer_engine();
  job.model.attention = AttentionKind::kMla;
  Recompute chosen = {.granularity = RecomputeGranularity::kSelective};
  const auto replay_ms = [&](bool is_moe) {
    return 1e3 * both(host_replay_cost(chosen, layer_host(job, {}, {.is_moe = is_moe})));
  };
  chosen.modules = {.mla_up_proj = true};
  const double one = replay_ms(false);
  CHECK(one == doctest::Approx(47 / 48.0 / kHost).epsilon(0.1));
  chosen.modules = {.layernorm = true, .mlp = true, .mla_up_proj = true};
  CHECK(replay_ms(false) == doctest::Approx(131 / 48.0 / kHost).epsilon(0.1));
  // A mixture has no dense feed-forward, and a second norm that no product takes along.
  CHECK(replay_ms(true) == doctest::Approx(3 * one));
  chosen.modules = {.mlp = true, .moe_act = true, .shared_experts = true};
  CHECK(replay_ms(false) == doctest::Approx(one));
  CHECK(replay_ms(true) == doctest::Approx(one));
  job.model.moe.shared_ffn = 256;
  CHECK(replay_ms(true) == doctest::Approx(2 * one));
  job.model.attention = AttentionKind::kGqa;
  chosen.modules = {.layernorm = true, .mla_up_proj = true};
  CHECK(replay_ms(false) == 0);
  CHECK(replay_ms(true) == doctest::Approx(one));
}

TEST_CASE("grouped experts cost the host more the more there are") {
  Job job = transformer_engine();
  job.model.moe = {.num_experts = 8, .topk = 4, .expert_ffn = 1024};
  const double eight = both(host_cost(job, {}, {.is_moe = true}));
  CHECK(eight > both(host_cost(job, {}, {})));
  job.model.moe.num_experts = 128;
  CHECK(both(host_cost(job, {}, {.is_moe = true})) > eight);
  job.profile.moe_grouped_gemm = false;
  CHECK(both(host_cost(job, {}, {.is_moe = true})) > 10 * eight);
}

TEST_CASE("experts cost the host once a step as well, those of this rank") {
  Job job = transformer_engine();
  job.model.layers.assign(6, {.is_moe = true});
  job.model.moe = {.num_experts = 32, .topk = 2, .expert_ffn = 256};
  const double all = host_update_s(job, {});
  CHECK(host_update_s(job, {.ep = 2}) == doctest::Approx(all / 2));
  // Steps of one and of four microbatches leave 51 ms once a step for six layers
  // (host_steps_h200.jsonl, host-te-moe32-l6), and 34 on a slower host (host_steps_h100.jsonl).
  job.cluster.host_slowdown = kMachine;
  CHECK(6e3 * host_update_s(job, {}) > 34 * kMachine / 2.31);
  CHECK(6e3 * host_update_s(job, {}) < 51);
  job.model.layers.resize(12, {});
  CHECK(host_update_s(job, {}) == doctest::Approx(kMachine * all / 2));
}

TEST_CASE("the more of a step is CUDA graphs, the less the host has to launch") {
  Job job = transformer_engine();
  job.model.moe = {.num_experts = 8, .topk = 4, .expert_ffn = 1024};
  const auto costs = [&](CudaGraphs graphs) {
    job.profile.cuda_graphs = graphs;
    return std::pair{both(host_cost(job, {}, {})), both(host_cost(job, {}, {.is_moe = true}))};
  };
  const auto eager = costs(CudaGraphs::kNone);
  const auto attention = costs(CudaGraphs::kAttention);
  const auto layers = costs(CudaGraphs::kLayers);
  const auto router = costs(CudaGraphs::kRouter);
  CHECK(router.first == eager.first);
  CHECK(router.second < eager.second);
  CHECK(attention.first < router.first);
  CHECK(attention.second < router.second);
  CHECK(layers.first < attention.first);
  CHECK(layers.second == layers.first);
  // Two of four products and the activation stay outside: a third of a dense layer.
  CHECK(attention.first == doctest::Approx(layers.first + eager.first / 3));
  CHECK(both(host_cost_of_ends(job, {})) > 0);
  CHECK(costs(CudaGraphs::kIteration).second == 0);
  CHECK(both(host_cost_of_ends(job, {})) == 0);
}

// Megatron-LM core_v0.16.1 core/transformer/moe/moe_layer.py: router and dispatch_preprocess are
// within (maybe_skip_or_early_return_by_cudagraph), dispatch, experts and combine are not.
TEST_CASE("graphs of the router spare the host part of routing, and no expert") {
  Job job = transformer_engine();
  const auto saved = [&](std::int64_t experts) {
    job.model.moe = {.num_experts = experts, .topk = 4, .expert_ffn = 1024};
    job.profile.cuda_graphs = CudaGraphs::kNone;
    const double eager = both(host_cost(job, {}, {.is_moe = true}));
    job.profile.cuda_graphs = CudaGraphs::kRouter;
    return eager - both(host_cost(job, {}, {.is_moe = true}));
  };
  CHECK(saved(8) == doctest::Approx(saved(64)));
  CHECK(saved(8) > 0.4 * 2.1e-3);
  CHECK(saved(8) < 0.6 * 2.1e-3);
}

// data/measured/mixture_kernels_h100.json, `router_host`: 491, 484 and 258 us forward, on a host
// of 2.35.
TEST_CASE("a fused router spares the host its operators, unless graphs launch them") {
  Job job = transformer_engine();
  job.model.moe = {.num_experts = 128, .topk = 8, .expert_ffn = 1024};
  const auto spared_us = [&](CudaGraphs graphs) {
    job.profile.cuda_graphs = graphs;
    job.profile.moe_router_fusion = false;
    const double operators = both(host_cost(job, {}, {.is_moe = true}));
    job.profile.moe_router_fusion = true;
    return 1e6 * (operators - both(host_cost(job, {}, {.is_moe = true})));
  };
  CHECK(spared_us(CudaGraphs::kNone) == doctest::Approx(484 / 2.35).epsilon(0.05));
  CHECK(spared_us(CudaGraphs::kRouter) == 0);
  CHECK(spared_us(CudaGraphs::kLayers) == 0);
}

// data/measured/README.md, latent_two_gpus_h200: 2.2 ms of a layer and microbatch over 1.75 * 1.31.
TEST_CASE("a stream of their own costs the host of shared experts what was measured") {
  Job job = transformer_engine();
  job.model.moe = {.num_experts = 8, .topk = 4, .expert_ffn = 1024};
  const auto added_ms = [&] {
    job.profile.moe_shared_expert_overlap = false;
    const double in_turn = both(host_cost(job, {}, {.is_moe = true}));
    job.profile.moe_shared_expert_overlap = true;
    return 1e3 * (both(host_cost(job, {}, {.is_moe = true})) - in_turn);
  };
  CHECK(added_ms() == 0);
  job.model.moe.shared_ffn = 1024;
  CHECK(added_ms() == doctest::Approx(2.2 / (1.75 * 1.31)).epsilon(0.05));
}

TEST_CASE("graphs of attention hold its norms of heads and its latents") {
  Job job = transformer_engine();
  job.profile.cuda_graphs = CudaGraphs::kAttention;
  const double plain = both(host_cost(job, {}, {}));
  job.model.qk_norm = true;
  CHECK(both(host_cost(job, {}, {})) == plain);
}

// data/measured/host_steps_h200.jsonl: 3.5 ms a layer of Transformer Engine where a DGX H100's
// tests took 2.16.
TEST_CASE("a layer of Transformer Engine takes as long as on the machine that was measured") {
  Job job = transformer_engine();
  job.cluster.host_slowdown = kMachine;
  CHECK(both(host_cost(job, {}, {})) == doctest::Approx(3.5e-3).epsilon(0.01));
}

// Models 512 wide, 4 microbatches, on two pairs of H200, whose hosts took 2.08 and 1.8:
// milliseconds of ZeRO-3, in the mean, less those of ZeRO-1, all over the speed of the host and
// the 1.2 and 1.24 that ZeRO-1 takes more than is said for it
// (data/measured/overlaps_two_gpus_h200.jsonl, fsdp-host-...).
TEST_CASE("hooks of Megatron-FSDP cost the host what small models took under ZeRO-3") {
  Job job = transformer_engine();
  job.model.qk_norm = true;
  job.profile.moe_permute_fusion = true;
  job.model.moe = {.num_experts = 32, .topk = 2, .expert_ffn = 256};
  const auto step_ms = [&](Plan plan, std::int64_t layers, bool is_moe) {
    return 4e3 * (static_cast<double>(layers) * both(host_cost(job, plan, {.is_moe = is_moe})) +
                  both(host_cost_of_ends(job, plan)));
  };
  const Plan sharded = {.ep = 2, .zero = 3, .grad_dtype = DType::kBf16};
  const auto more_ms = [&](std::int64_t layers, bool is_moe) {
    return step_ms(sharded, layers, is_moe) - step_ms({.ep = 2, .zero = 1}, layers, is_moe);
  };
  const auto mean = [](double first_ms, double second_ms) {
    return (first_ms / 2.08 + second_ms / 1.8) / 2;
  };
  CHECK(more_ms(12, false) ==
        doctest::Approx((mean(496.6, 382.0) - 280.5 / 2.08) / 1.2).epsilon(0.1));
  CHECK(more_ms(6, true) ==
        doctest::Approx((mean(727.5, 566.9) - 534.5 / 2.08) / 1.24).epsilon(0.1));
  Plan copied = sharded;
  copied.grad_dtype = DType::kFp32;
  // Copied one by one: weights of two norms and four products, two of each of 16 experts.
  const auto copies_ms = [&](bool is_moe) {
    return step_ms(copied, 6, is_moe) - step_ms(sharded, 6, is_moe);
  };
  CHECK(copies_ms(false) > 0);
  CHECK(copies_ms(true) == doctest::Approx(copies_ms(false) * (6 + 2 * 16) / 6));
  CHECK(step_ms({.ep = 2, .zero = 2}, 6, true) == step_ms({.ep = 2, .zero = 1}, 6, true));
}

// 16 layers 512 wide on two of the H200 of before, 8 microbatches: 8 chunks a rank take 453.0 ms,
// one 401.1, of which the lines between them and the 1.3 that one chunk takes more than is said
// leave 66 for 112 passes of a chunk.
TEST_CASE("a pass of a chunk costs the host of an interleaved schedule what was measured") {
  Job job = transformer_engine();
  job.cluster.host_slowdown = 1.8;
  const Plan looping = {.pp = 2, .vpp = 8, .schedule = Schedule::kInterleaved1F1B};
  const HostCost pass = host_cost_of_pass(job, looping);
  CHECK(both(pass) / 2 == doctest::Approx(66e-3 / 112).epsilon(0.05));
  CHECK(both(host_cost_of_pass(job, {.pp = 2, .schedule = Schedule::k1F1B})) == 0);
  job.profile.cuda_graphs = CudaGraphs::kIteration;
  CHECK(both(host_cost_of_pass(job, looping)) == 0);
  CHECK(both(host_cost_of_pass(titan(), looping)) == 0);
}

}  // namespace
}  // namespace shardplan::megatron
