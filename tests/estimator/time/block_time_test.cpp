// Blocks: FLOP counts by hand, laws of every axis, agreement with the parameter counts.
#include "estimator/time/block_time.h"
#include "estimator/frameworks/pieces/memory_model.h"

#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/plan/expert_loads.h"
#include "estimator/time/block_work.h"
#include "estimator/time/collective_time.h"
#include "estimator/time/model_flops.h"
#include "tests/estimator/host_costs.h"
#include "tests/estimator/llama_job.h"
#include "tests/measured_host.h"

namespace shardplan {
namespace {

Job moe_job() {
  Job job = job_on_h200();
  job.model.moe = {.num_experts = 64, .topk = 8, .expert_ffn = 1792, .shared_ffn = 2048};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

Job mla_job() {
  Job job = job_on_h200();
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 1536,
                   .kv_lora_rank = 512,
                   .qk_nope_head_dim = 128,
                   .qk_rope_head_dim = 64,
                   .v_head_dim = 128};
  return job;
}

TEST_CASE("Llama-3-8B does 45.8 to 70.8 GFLOP per token from 1024 to 32768 tokens, causal") {
  Job job = job_on_h200();
  const std::pair<std::int64_t, double> rows[] = {
      {1024, 45.8}, {4096, 48.2}, {8192, 51.5}, {16384, 57.9}, {32768, 70.8}};
  for (const auto& [length, gflops] : rows) {
    job.sequence_length = length;
    CHECK(model_flops_per_token(job) / 1e9 == doctest::Approx(gflops).epsilon(0.002));
  }
}

TEST_CASE("the products of a layer are 6 x matmul parameters per token, once forward") {
  const Job job = job_on_h200();
  const BlockTime layer = layer_time(job, {}, {});
  const double products = 2.0 * 218'103'808 * 8192;           // 2 h (a+k) d + 3 h f
  const double attention = 2.0 * 2 * 4096 * 8192 * 8192 / 2;  // q k^T and p v, half the square
  CHECK(layer.forward_flops == doctest::Approx(products + attention));
}

TEST_CASE("a forward and backward of all blocks executes the model's FLOPs") {
  for (const Job& job : {job_on_h200(), mla_job()}) {
    const ModelTimes times = model_times(job, {});
    double forward = times.head.forward_flops;
    for (const std::size_t kind : layer_kinds(job.model).of_layer) {
      forward += times.layers[kind].time.forward_flops;
    }
    CHECK(3 * forward / 8192 == doctest::Approx(model_flops_per_token(job)));
  }
}

TEST_CASE("layers that compare equal share one time") {
  Job job = job_on_h200();
  job.model.layers[3].attention_window = 1024;
  job.model.layers[7].attention_window = 1024;
  const ModelTimes times = model_times(job, {});
  REQUIRE(times.layers.size() == 2);
  CHECK(times.layers[1].layer_kind == 3);
  CHECK(layer_kinds(job.model).of_layer[7] == 1);
  CHECK(layer_kinds(job.model).of_layer[8] == 0);
}

TEST_CASE("a window of w keys costs w s - w^2 / 2 pairs") {
  Job job = job_on_h200();
  CHECK(attention_pairs(job, {}) == 8192.0 * 8192 / 2);
  CHECK(attention_pairs(job, {.attention_window = 1024}) == 1024.0 * 8192 - 1024.0 * 1024 / 2);
  CHECK(attention_pairs(job, {.attention_window = 100'000}) == attention_pairs(job, {}));
  CHECK(layer_time(job, {}, {.attention_window = 1024}).forward_s <
        layer_time(job, {}, {}).forward_s);
}

// 3 passes of 2 products of 2 FLOPs: 12 for every pair and element of the heads.
TEST_CASE("the model's FLOPs of layers in chunks are those of chunks") {
  Job job = job_on_h200();
  const double full = model_flops_per_token(job);
  job.model.layers[3] = {.attention_window = 2048, .attends_in_chunks = true};
  const double fewer_pairs = (8192.0 * 8192 / 2 - 4 * 2048.0 * 2048 / 2) / 8192;
  CHECK(full - model_flops_per_token(job) ==
        doctest::Approx(12 * fewer_pairs * 32 * 128).epsilon(1e-9));
}

TEST_CASE("an 8B layer of 8192 tokens takes the 18 to 22 ms of the roofline on H200") {
  const BlockTime layer = layer_time(job_on_h200(), {}, {});
  const double seconds = layer.forward_s + layer.backward_input_s + layer.backward_weight_s;
  CHECK(seconds > 0.018);
  CHECK(seconds < 0.022);
}

TEST_CASE("doubling the microbatch doubles FLOPs and nearly doubles compute") {
  const Job job = job_on_h200();
  const BlockTime one = layer_time(job, {.micro_batch = 1}, {});
  const BlockTime two = layer_time(job, {.micro_batch = 2}, {});
  CHECK(two.forward_flops == doctest::Approx(2 * one.forward_flops));
  CHECK(two.forward_s > 1.9 * one.forward_s);
  CHECK(two.forward_s <= 2 * one.forward_s * (1 + 1e-12));
}

TEST_CASE("tensor parallelism divides FLOPs by tp, compute by less, and adds communication") {
  Job job = job_on_h200();
  const BlockTime one = layer_time(job, {}, {});
  double last_s = one.forward_s;
  double last_tp_s = 0;
  for (const std::int64_t tp : {2, 4, 8}) {
    const BlockTime divided = layer_time(job, {.tp = tp, .sequence_parallel = true}, {});
    CHECK(divided.forward_flops == doctest::Approx(one.forward_flops / static_cast<double>(tp)));
    CHECK(divided.forward_s < last_s);
    CHECK(divided.forward_s > one.forward_s / static_cast<double>(tp));
    CHECK(divided.forward_tp_s > last_tp_s);
    last_s = divided.forward_s;
    last_tp_s = divided.forward_tp_s;
  }
}

TEST_CASE("tp 8 pays four collectives forward and six backward, or two all-reduces each") {
  Job job = job_on_h200();
  const BlockTime layer = layer_time(job, {.tp = 8, .sequence_parallel = true}, {});
  const double one_s = 8192.0 * 4096 * 2 * 7 / 8 / (450e9 * 0.82) + 20e-6 + 7 * 3.4e-6;
  CHECK(layer.forward_tp_s == doctest::Approx(4 * one_s));
  CHECK(layer.backward_tp_s == doctest::Approx(6 * one_s));
  const BlockTime plain = layer_time(job, {.tp = 8}, {});
  // An all-reduce moves as much as two of the others and is launched once.
  CHECK(plain.forward_tp_s == doctest::Approx(4 * one_s - 2 * 20e-6));
  CHECK(plain.backward_tp_s == doctest::Approx(4 * one_s - 2 * 20e-6));
}

TEST_CASE("what is multiplied in fp8 is gathered in fp8 and reduced in bf16, but by our trainer") {
  Job job = job_on_h200();
  const auto collective_s = [](double width, double bytes) {
    return 8192.0 * width * bytes * 7 / 8 / (450e9 * 0.82) + 20e-6 + 7 * 3.4e-6;
  };
  const double gather_s = collective_s(4096, 1);
  const double whole_s = collective_s(4096, 2);
  const Plan plan = {.tp = 8, .sequence_parallel = true, .precision = Precision::kFp8};
  const BlockTime layer = layer_time(job, plan, {});
  CHECK(layer.forward_tp_s == doctest::Approx(2 * gather_s + 2 * whole_s));
  CHECK(layer.backward_tp_s == doctest::Approx(4 * gather_s + 2 * whole_s));
  // The latents of MLA are gathered before any is rounded: 1536 + 512 + 64 of them.
  job.model = mla_job().model;
  const BlockTime latent = layer_time(job, plan, {});
  const double latents_s = collective_s(2112, 2);
  CHECK(latent.forward_tp_s == doctest::Approx(gather_s + latents_s + 2 * whole_s));
  CHECK(latent.backward_tp_s == doctest::Approx(3 * gather_s + 2 * latents_s + whole_s));
  job.model = job_on_h200().model;
  set_measured_framework(job.profile, MemoryModel::kNative);
  CHECK(layer_time(job, plan, {}).forward_tp_s == doctest::Approx(4 * whole_s));
}

TEST_CASE("exposed shares scale the communication they name and nothing else") {
  Job job = moe_job();
  const Plan plan = {.tp = 2, .cp = 2, .ep = 4, .sequence_parallel = true};
  const BlockTime full = layer_time(job, plan, {.is_moe = true});
  job.profile.exposed_tp_share = 0.5;
  job.profile.exposed_cp_share = 0.25;
  job.profile.exposed_ep_share = 0;
  const BlockTime part = layer_time(job, plan, {.is_moe = true});
  CHECK(full.forward_ep_s > 0);
  CHECK(part.forward_tp_s == doctest::Approx(full.forward_tp_s / 2));
  CHECK(part.backward_cp_s == doctest::Approx(full.backward_cp_s / 4));
  CHECK(part.backward_ep_s == 0);
  CHECK(part.forward_s == full.forward_s);
  CHECK(part.backward_input_s == full.backward_input_s);
}

TEST_CASE("tensor-parallel communication hides behind products as far as the profile says") {
  Job job = job_on_h200();
  const Plan plan = {.tp = 8, .sequence_parallel = true};
  const auto visible = [&](TpOverlap overlap) {
    job.profile.tp_overlap = overlap;
    return layer_time(job, plan, {});
  };
  const BlockTime exposed = visible(TpOverlap::kExposed);
  const BlockTime backward = visible(TpOverlap::kBackward);
  const BlockTime pieces = visible(TpOverlap::kPieces);
  CHECK(backward.forward_tp_s == exposed.forward_tp_s);
  CHECK(backward.backward_tp_s < exposed.backward_tp_s);
  CHECK(pieces.forward_tp_s < exposed.forward_tp_s);
  CHECK(pieces.forward_tp_s > exposed.forward_tp_s / 4);  // one of four has nothing to hide behind
  CHECK(pieces.backward_tp_s < backward.backward_tp_s);
  CHECK(pieces.forward_s == exposed.forward_s);
}

TEST_CASE("hops of the ring hide behind attention, all but the gradients' way home") {
  Job job = job_on_h200();
  job.sequence_length = 65536;
  const Plan plan = {.cp = 4};
  const BlockTime exposed = layer_time(job, plan, {});
  job.profile.cp_overlap = CpOverlap::kAttention;
  const BlockTime hidden = layer_time(job, plan, {});
  // Where all is hidden: what attention loses meanwhile.
  const double lost = (1 - 0.92) / 0.28;
  CHECK(hidden.forward_cp_s == doctest::Approx(lost * exposed.forward_cp_s));
  // One of 2 (4 - 1) + 1 hops goes home.
  CHECK(hidden.backward_cp_s == doctest::Approx((1 + 6 * lost) / 7 * exposed.backward_cp_s));
}

TEST_CASE("gradients of the ring hide beside one sequence of the microbatch at once") {
  Job job = job_on_h200();
  job.cluster.intra_node_latency_s = 0;  // which one larger transfer pays once
  set_measured_framework(job.profile, MemoryModel::kNative);
  const auto visible_s = [&](CpOverlap overlap, std::int64_t micro_batch) {
    job.profile.cp_overlap = overlap;
    return layer_time(job, {.cp = 8, .micro_batch = micro_batch}, {}).backward_cp_s;
  };
  CHECK(visible_s(CpOverlap::kSequences, 1) == visible_s(CpOverlap::kAttention, 1));
  // Per token, 16 sequences leave a sixteenth of the attention to hide behind.
  CHECK(visible_s(CpOverlap::kAttention, 16) ==
        doctest::Approx(16 * visible_s(CpOverlap::kAttention, 1)));
  CHECK(visible_s(CpOverlap::kSequences, 16) > 1.2 * visible_s(CpOverlap::kAttention, 16));
  CHECK(visible_s(CpOverlap::kSequences, 16) < visible_s(CpOverlap::kExposed, 16));
}

TEST_CASE("our trainer gathers keys of one sequence beside attention of another") {
  Job job = job_on_h200();
  job.sequence_length = 65536;
  job.profile.cp_overlap = CpOverlap::kSequences;
  const auto gather_s = [&](MemoryModel framework, std::int64_t micro_batch) {
    set_measured_framework(job.profile, framework);
    const Plan plan = {.cp = 4, .micro_batch = micro_batch, .cp_method = CpMethod::kAllGather};
    return layer_time(job, plan, {}).forward_cp_s;
  };
  const double whole_s = gather_s(MemoryModel::kMegatron, 4);
  CHECK(gather_s(MemoryModel::kNative, 1) == gather_s(MemoryModel::kMegatron, 1));
  // The first of four has nothing beside it; the others cost what attention loses meanwhile.
  const double lost = (1 - 0.92) / 0.28;
  CHECK(gather_s(MemoryModel::kNative, 4) == doctest::Approx((1 + 3 * lost) / 4 * whole_s));
}

TEST_CASE("attention without fusion computes the square and moves 8 and 14 bytes a score") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  job.cluster.gpu.bf16_flops_per_s = 1e30;  // memory alone
  job.sequence_length = 2048;
  job.model.layers.resize(1);
  const auto seconds = [&](AttentionBackend backend) {
    job.profile.attention_backend = backend;
    return layer_time(job, {}, {});
  };
  const double scores = 32.0 * 2048 * 2048;
  const double operands = 2.0 * 32 * 2048 * 128 * 2;  // of one product besides its scores
  const double bytes_per_s = 0.85 * 4.8e12;
  const BlockTime fused = seconds(AttentionBackend::kFused);
  for (const auto& [dropout, bytes] : {std::pair{0.0, 0.0}, std::pair{0.1, 5.0}}) {
    job.attention_dropout = dropout;
    const BlockTime unfused = seconds(AttentionBackend::kUnfused);
    CHECK((unfused.forward_s - fused.forward_s) * bytes_per_s ==
          doctest::Approx((8 + bytes) * scores + 2 * operands).epsilon(1e-3));
    CHECK((unfused.backward_input_s - fused.backward_input_s) * bytes_per_s ==
          doctest::Approx((14 + bytes) * scores + 4 * operands).epsilon(1e-3));
  }
}

TEST_CASE("deterministic backward attention moves scores' gradients, or runs FlashAttention 2") {
  Job job = job_on_h200();
  const auto backward_s = [&] {
    return layer_time(job, {.zero = 1}, job.model.layers[0]).backward_input_s;
  };
  const double hopper_s = backward_s();
  job.profile.deterministic_attention = true;
  // 32 heads of 8192 x 8193 / 2 pairs in bf16, written and read.
  CHECK(backward_s() - hopper_s ==
        doctest::Approx(memory_bound_s(job.cluster.gpu, 2 * 2 * 32 * 8192.0 * 8193 / 2))
            .epsilon(0.001));
  job.cluster.gpu.compute_capability = 100;
  const double forward_s = layer_time(job, {.zero = 1}, job.model.layers[0]).forward_s;
  const double blackwell_s = backward_s();
  job.profile.deterministic_attention = false;
  CHECK(forward_s > layer_time(job, {.zero = 1}, job.model.layers[0]).forward_s);
  CHECK(blackwell_s > backward_s());
}

TEST_CASE("experts one after the other run as many small products; exchanges may hide") {
  Job job = moe_job();
  job.sequence_length = 4096;
  const Plan plan = {.ep = 8};
  const BlockTime grouped = layer_time(job, plan, job.model.layers[0]);
  job.profile.moe_grouped_gemm = false;
  const BlockTime single = layer_time(job, plan, job.model.layers[0]);
  CHECK(single.forward_flops == doctest::Approx(grouped.forward_flops));
  CHECK(single.forward_s > grouped.forward_s);
  CHECK(single.forward_ep_s == grouped.forward_ep_s);
  job.profile.overlap_moe_expert_parallel_comm = true;
  const BlockTime hidden = layer_time(job, plan, job.model.layers[0]);
  CHECK(hidden.forward_ep_s < single.forward_ep_s / 2);
  CHECK(hidden.forward_s == single.forward_s);
}

// Nothing that the other stream computes is lost, no more of an exchange is hidden than it runs
// beside, and exchanges among one rank hide nothing.
TEST_CASE("shared experts on a stream of their own hide exchanges, as long as they take") {
  Job job = moe_job();
  job.model.moe.shared_ffn = 2048;
  const Plan plan = {.ep = 8};
  const auto layer = [&] { return layer_time(job, plan, job.model.layers[0]); };
  const BlockTime behind = layer();
  job.profile.moe_shared_expert_overlap = true;
  const BlockTime beside = layer();
  CHECK(beside.forward_s == behind.forward_s);
  CHECK(beside.backward_input_s == behind.backward_input_s);
  CHECK(beside.forward_ep_s < behind.forward_ep_s);
  CHECK(beside.backward_ep_s < behind.backward_ep_s);
  CHECK(beside.backward_ep_s <= beside.forward_ep_s);
  const double hidden_s = behind.forward_ep_s - beside.forward_ep_s;
  job.model.moe.shared_ffn = 0;
  const BlockTime without = layer();
  CHECK(hidden_s <= behind.forward_total_s() - without.forward_total_s());
  CHECK(without.forward_ep_s == doctest::Approx(behind.forward_ep_s));
  // However long they take, an exchange still slows them down.
  job.model.moe.shared_ffn = 1 << 20;
  CHECK(layer().forward_ep_s > 0);
  CHECK(layer().forward_ep_s < behind.forward_ep_s / 2);
  const BlockTime alone = layer_time(job, {}, job.model.layers[0]);
  CHECK(alone.forward_ep_s == 0);
}

TEST_CASE("a loss in pieces multiplies the head in pieces: the same FLOPs, no less time") {
  Job job = job_on_h200();
  const ModelTimes whole = model_times(job, {});
  set_measured_framework(job.profile, MemoryModel::kNative);
  job.profile.cross_entropy_chunks = 1;
  const double once_s = model_times(job, {}).head.forward_s;
  job.profile.cross_entropy_chunks = 24;  // 8192 = 23 * 342 + 326
  const ModelTimes pieces = model_times(job, {});
  CHECK(pieces.head.forward_flops == doctest::Approx(whole.head.forward_flops));
  CHECK(pieces.head.forward_s > once_s);
}

TEST_CASE("context parallelism divides tokens and pairs; every method sends something else") {
  Job job = job_on_h200();
  const BlockTime one = layer_time(job, {}, {});
  Plan plan = {.cp = 4};
  const BlockTime ring = layer_time(job, plan, {});
  plan.cp_method = CpMethod::kAllGather;
  const BlockTime gather = layer_time(job, plan, {});
  plan.cp_method = CpMethod::kA2a;
  const BlockTime exchange = layer_time(job, plan, {});
  for (const BlockTime& time : {ring, gather, exchange}) {
    CHECK(time.forward_flops == doctest::Approx(one.forward_flops / 4));
    CHECK(time.forward_cp_s > 0);
    CHECK(time.backward_cp_s >= time.forward_cp_s);
  }
  // Three hops of k and v of 2048 tokens: 2 x 8 heads x 128 x 2 bytes.
  CHECK(ring.forward_cp_s == doctest::Approx(3 * 2048.0 * 2 * 8 * 128 * 2 / (450e9 * 0.82)));
  // q, k, v and output of all heads once, three quarters of it to others.
  CHECK(exchange.forward_cp_s ==
        doctest::Approx(2048.0 * (2 * 4096 + 2 * 1024) * 2 * 3 / 4 / (450e9 * 0.82) + 20e-6));
}

TEST_CASE("expert parallelism sends topk rows per token out and back, imbalance multiplies them") {
  Job job = moe_job();
  const Plan plan = {.ep = 8};
  const BlockTime balanced = layer_time(job, plan, {.is_moe = true});
  const double rows = 8192.0 * 8 * fullest_load(job, plan);
  const double one_way_s = rows * 4096 * 2 * 7 / 8 / (450e9 * 0.82) + 20e-6;
  CHECK(balanced.forward_ep_s == doctest::Approx(2 * one_way_s));
  job.profile.moe_imbalance_factor = 1.5;
  const BlockTime skewed = layer_time(job, plan, {.is_moe = true});
  CHECK(skewed.forward_ep_s == doctest::Approx(1.5 * balanced.forward_ep_s).epsilon(0.05));
  CHECK(skewed.forward_s > balanced.forward_s);
}

// Its activations are there before the product runs, and nobody reads the layer's output again.
TEST_CASE("the all-gather dispatcher moves all tokens of etp x ep, whatever topk is") {
  Job job = moe_job();
  job.profile.moe_dispatcher = MoeDispatcher::kAllGather;
  const Plan plan = {.ep = 8, .zero = 1};
  const auto exchange_s = [&](const Plan& of) {
    return layer_time(job, of, job.model.layers[0]).forward_ep_s;
  };
  // 8 x 8192 tokens of 4096 in bf16 gathered with 5 bytes for each of 64 experts, and summed.
  const GroupShape group = group_shape(job, plan, GroupKind::kExperts);
  CHECK(exchange_s(plan) ==
        doctest::Approx(all_gather_s(job.cluster, group, 65536.0 * (8192 + 320)) +
                        reduce_scatter_s(job.cluster, group, 65536.0 * 8192)));
  const double topk_8_s = exchange_s(plan);
  job.model.moe.topk = 1;
  CHECK(exchange_s(plan) == doctest::Approx(topk_8_s));
  CHECK(exchange_s({.etp = 2, .zero = 1}) > 0);
  CHECK(exchange_s({.zero = 1}) == 0);
}

TEST_CASE("the native trainer's replay leaves out the last product of every group") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kNative);
  Plan plan;
  plan.recompute = {.granularity = RecomputeGranularity::kFull};
  const auto left_out_s = [&] {
    const BlockTime layer = layer_time(job, plan, {});
    return layer.forward_total_s() - layer.recompute_s;
  };
  const ModelSpec& model = job.model;
  const double product_s = gemm_s(job.cluster.gpu, plan.precision,
                                  {.m = job.sequence_length, .n = model.hidden, .k = model.ffn});
  const double alone_s = left_out_s();
  CHECK(alone_s == doctest::Approx(product_s));
  plan.recompute.num_layers = 4;
  CHECK(left_out_s() == doctest::Approx(alone_s / 4));
  plan.recompute.method = RecomputeMethod::kBlock;
  CHECK(left_out_s() == doctest::Approx(alone_s));
}

// Two norms read and write once; SwiGLU's output is written once more, beside its gradient; experts
// come back up to their activations.
TEST_CASE("selective recomputation of the native trainer costs what it writes again") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kNative);
  Plan plan;
  plan.recompute.granularity = RecomputeGranularity::kSelective;
  const auto recompute_s = [&](bool RecomputeModules::*module) {
    plan.recompute.modules = {};
    plan.recompute.modules.*module = true;
    return layer_time(job, plan, job.model.layers.front()).recompute_s;
  };
  const auto moving_s = [&](std::int64_t passes, std::int64_t width) {
    return memory_bound_s(job.cluster.gpu,
                          static_cast<double>(2 * passes * job.sequence_length * width));
  };
  CHECK(recompute_s(&RecomputeModules::layernorm) ==
        doctest::Approx(2 * moving_s(2, job.model.hidden)));
  CHECK(recompute_s(&RecomputeModules::mlp) == doctest::Approx(moving_s(1, job.model.ffn)));
  job = moe_job();
  set_measured_framework(job.profile, MemoryModel::kNative);
  const MoeSpec& moe = job.model.moe;
  CHECK(recompute_s(&RecomputeModules::moe_act) ==
        doctest::Approx(moving_s(moe.topk, moe.expert_ffn)));
  const ProductShape shared_in = {
      .m = job.sequence_length, .n = 2 * moe.shared_ffn, .k = job.model.hidden};
  CHECK(recompute_s(&RecomputeModules::shared_experts) ==
        doctest::Approx(gemm_s(job.cluster.gpu, plan.precision, shared_in) +
                        moving_s(1, moe.shared_ffn)));
  CHECK(recompute_s(&RecomputeModules::moe) > recompute_s(&RecomputeModules::moe_act));
  CHECK(recompute_s(&RecomputeModules::moe) < layer_time(job, plan, {.is_moe = true}).forward_s);
}

TEST_CASE("torchtitan runs FlashAttention 2 where its version of PyTorch prefers that") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  const double cudnn_s = layer_time(job, {}, {}).forward_s;
  job.profile.attention_backend = AttentionBackend::kFlash;
  const double flash_s = layer_time(job, {}, {}).forward_s;
  const double pairs = 0.5 * static_cast<double>(job.sequence_length * job.sequence_length);
  const AttentionWork work = {.pairs = pairs,
                              .heads = job.model.num_heads,
                              .qk_dim = job.model.head_dim,
                              .v_dim = job.model.head_dim,
                              .length = job.sequence_length};
  CHECK(flash_s - cudnn_s == doctest::Approx(attention_forward_s(job.cluster.gpu, work)));
}

TEST_CASE("full recomputation replays the forward, selective choices replay their parts") {
  const Job job = job_on_h200();
  Plan plan = {.tp = 2, .sequence_parallel = true};
  CHECK(layer_time(job, plan, {}).recompute_s == 0);
  plan.recompute.granularity = RecomputeGranularity::kFull;
  const BlockTime full = layer_time(job, plan, {});
  CHECK(full.recompute_s == full.forward_total_s());
  plan.recompute.granularity = RecomputeGranularity::kSelective;
  plan.recompute.modules.layernorm = true;
  CHECK(layer_time(job, plan, {}).recompute_s == 0);  // both norms lie inside linear layers
  Job mla = job;
  mla.model.attention = AttentionKind::kMla;
  mla.model.mla = {
      .kv_lora_rank = 512, .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128};
  const double norm_s = layer_time(mla, plan, {}).recompute_s;
  CHECK(norm_s > 0);
  CHECK(norm_s < 0.05 * full.forward_s);
  plan.recompute.modules.mlp = true;
  const double norms_and_mlp_s = layer_time(job, plan, {}).recompute_s;
  CHECK(norms_and_mlp_s > 0.5 * full.forward_s);
  CHECK(norms_and_mlp_s < full.recompute_s);
  plan.recompute.policy = "every_second_layer";
  CHECK_THROWS_AS(layer_time(job, plan, {}), std::logic_error);
}

TEST_CASE("torchtitan's policy of every second layer replays half of them; others need a name") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  Plan plan = {.tp = 2, .sequence_parallel = true};
  plan.recompute.granularity = RecomputeGranularity::kSelective;
  plan.recompute.policy = "every_second_layer";
  const BlockTime half = layer_time(job, plan, {});
  CHECK(half.recompute_s == half.forward_total_s() / 2);
  plan.recompute.policy = "unheard of";
  CHECK_THROWS_AS(layer_time(job, plan, {}), std::logic_error);
}

TEST_CASE("launch costs show only where the GPU is faster than the host, each direction alone") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  CHECK(layer_time(job, {}, {}).host_s() == 0);
  job.sequence_length = 128;
  const BlockTime small = layer_time(job, {}, {});
  const HostCost host = host_cost(job, {}, {});
  CHECK(small.forward_host_s == doctest::Approx(host.forward_s - small.forward_total_s()));
  CHECK(small.backward_host_s == doctest::Approx(host.backward_s - small.backward_total_s()));
  set_measured_framework(job.profile, MemoryModel::kNative);
  CHECK(layer_time(job, {}, {}).host_s() == 0);
}

TEST_CASE("a host that waits for each kernel adds all its time, and nobody else's changes") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  Plan plan = {.tp = 2};
  plan.recompute.granularity = RecomputeGranularity::kFull;
  const BlockTime free = layer_time(job, plan, {});
  job.profile.launch_blocking = true;
  const BlockTime waiting = layer_time(job, plan, {});
  const HostCost host = host_cost(job, plan, {});
  CHECK(free.host_s() == 0);
  CHECK(waiting.forward_host_s == host.forward_s);
  CHECK(waiting.backward_host_s == host.backward_s);
  CHECK(waiting.recompute_host_s == doctest::Approx(host.forward_s));
  CHECK(waiting.forward_total_s() == free.forward_total_s());
  CHECK(waiting.backward_total_s() == free.backward_total_s());
  CHECK(waiting.recompute_s == free.recompute_s);
}

TEST_CASE("the host replays what the GPU replays, and only where a layer is replayed") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kMegatronLocal);
  job.sequence_length = 128;
  Plan plan;
  plan.recompute.granularity = RecomputeGranularity::kFull;
  const BlockTime layer = layer_time(job, plan, {});
  CHECK(layer.host_s() == layer_time(job, {}, {}).host_s());
  CHECK(layer.recompute_host_s ==
        doctest::Approx(host_cost(job, {}, {}).forward_s - layer.recompute_s));
}

TEST_CASE("fp8 halves less than the products: casts, attention and head stay") {
  const Job job = job_on_h200();
  const ModelTimes bf16 = model_times(job, {});
  const ModelTimes fp8 = model_times(job, {.precision = Precision::kFp8});
  const auto layer_s = [](const ModelTimes& times) {
    return times.layers.front().time.forward_s + times.layers.front().time.backward_total_s();
  };
  CHECK(layer_s(fp8) < layer_s(bf16) / 1.2);
  CHECK(layer_s(fp8) > layer_s(bf16) / 1.6);
  CHECK(fp8.head.forward_s == bf16.head.forward_s);
}

TEST_CASE("parameters of the blocks of one rank are those that are counted for it") {
  for (const Job& job : {job_on_h200(), moe_job(), mla_job()}) {
    for (const std::int64_t tp : {1, 4}) {
      const Plan plan = {.tp = tp, .ep = job.model.moe.num_experts > 0 ? 4 : 1};
      const ModelTimes times = model_times(job, plan);
      LocalParameters sum;
      for (const BlockTime* block : {&times.embedding, &times.head}) {
        sum.dense += block->parameters.dense;
        sum.linear += block->parameters.linear;
      }
      for (const std::size_t kind : layer_kinds(job.model).of_layer) {
        sum.dense += times.layers[kind].time.parameters.dense;
        sum.expert += times.layers[kind].time.parameters.expert;
        sum.linear += times.layers[kind].time.parameters.linear;
      }
      const LocalParameters counted = local_parameters(job, plan, 0);
      CHECK(sum.dense == counted.dense);
      CHECK(sum.expert == counted.expert);
      CHECK(sum.linear == counted.linear);
    }
  }
}

TEST_CASE("a multi-token-prediction module costs a layer, a projection and a head") {
  Job job = job_on_h200();
  job.model.num_mtp_layers = 1;
  const ModelTimes times = model_times(job, {});
  const BlockTime& layer = times.layers.front().time;
  CHECK(times.mtp.forward_flops == doctest::Approx(layer.forward_flops + times.head.forward_flops +
                                                   2.0 * 8192 * 4096 * 2 * 4096));
  CHECK(times.mtp.parameters.total() == count_mtp_parameters(job.model));
}

}  // namespace
}  // namespace shardplan
