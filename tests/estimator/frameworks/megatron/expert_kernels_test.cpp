// Kernels around experts and latent attention that older releases run, and experts with a capacity:
// laws, and every row of data/measured/mixture_kernels_h100.json.
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/units.h"
#include "estimator/time/block_experts.h"
#include "tests/estimator/layer_kernels.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::megatron {
namespace {

struct Sizes {
  std::int64_t tokens;
  std::int64_t experts;
  std::int64_t topk;
  std::int64_t hidden;
};

Job job_on_h100(const Sizes& sizes) {
  Job job;
  set_framework(job.profile, MemoryModel::kMegatron);
  job.profile.gradient_accumulation_fusion = true;
  job.profile.moe_permute_fusion = true;
  job.cluster.gpus_per_node = sizes.experts;  // one expert each, or several
  job.cluster.gpu = hopper_gpu(3.35e12);
  job.sequence_length = sizes.tokens;
  job.global_batch = sizes.experts;
  job.model.hidden = sizes.hidden;
  job.model.ffn = 2048;
  job.model.vocab = 1024;
  job.model.num_heads = 64;
  job.model.num_kv_heads = 64;
  job.model.head_dim = 128;
  job.model.layers.resize(1);
  job.model.layers[0].is_moe = true;
  job.model.moe = {.num_experts = sizes.experts, .topk = sizes.topk, .expert_ffn = 1024};
  return job;
}

BlockTime exchange(const Job& job, const Plan& plan) {
  return expert_exchange(block_context(job, plan),
                         static_cast<double>(job.sequence_length * job.model.moe.topk));
}

double forward_us(const Job& job, const Plan& plan) {
  return exchange(job, plan).forward_s * 1e6;
}

double backward_us(const Job& job, const Plan& plan) {
  return exchange(job, plan).backward_input_s * 1e6;
}

// Of a profile of Megatron-core v0.16.1 with Transformer Engine 2.11 on H200: 4 layers with 64
// experts of 1024, 8 a token, 2 microbatches of 2 x 4096 tokens of 2048: gathers, scatter_add and
// cats forward; gathers, index_add and cats backward.
TEST_CASE("experts' rows are permuted in what was measured") {
  Job job = job_on_h100({.tokens = 8192, .experts = 64, .topk = 8, .hidden = 2048});
  job.cluster.gpu = measured_h200();
  job.profile.moe_permute_fusion = false;
  const Plan plan = {.ep = 8};
  const BlockTime unfused = exchange(job, plan);
  const double gathers_or_cats = (1974 - 40) / 16. + 2 * 4008 / 32.;
  CHECK(unfused.forward_s * 1e6 == doctest::Approx(gathers_or_cats + 4068 / 8.).epsilon(0.15));
  CHECK(unfused.backward_input_s * 1e6 ==
        doctest::Approx(gathers_or_cats + 9259 / 8.).epsilon(0.15));
  job.profile.moe_permute_fusion = true;
  CHECK(exchange(job, plan).forward_s < unfused.forward_s);
  CHECK(exchange(job, plan).backward_input_s < unfused.backward_input_s);
}

TEST_CASE("a rank with one expert sorts no rows, which others do twice in either direction") {
  const Job job = job_on_h100({.tokens = 4096, .experts = 8, .topk = 2, .hidden = 6144});
  const double row_bytes = 2 * 6144.0;
  const double rows = 2 * 4096;
  const double sorts_us = memory_bound_s(job.cluster.gpu, 2 * 2 * rows * row_bytes) * 1e6;
  const double one = forward_us(job, {.ep = 8, .zero = 1});
  CHECK(forward_us(job, {.ep = 4, .zero = 1}) == doctest::Approx(one + sorts_us));
  CHECK(backward_us(job, {.ep = 4, .zero = 1}) ==
        doctest::Approx(backward_us(job, {.ep = 8, .zero = 1}) + sorts_us));
  Job unfused = job;
  unfused.profile.moe_permute_fusion = false;
  CHECK(forward_us(unfused, {.ep = 4, .zero = 1}) ==
        doctest::Approx(forward_us(unfused, {.ep = 8, .zero = 1}) + sorts_us));
  // Tokens that go once are not sorted by expert on their way.
  unfused.profile.moe_dispatcher = MoeDispatcher::kDeepEp;
  CHECK(forward_us(unfused, {.ep = 4, .zero = 1}) ==
        doctest::Approx(forward_us(unfused, {.ep = 8, .zero = 1})));
}

// Permutation and its reverse, of ranks with one expert; 1024 tokens do not fill the GPU.
TEST_CASE("permutation that scans experts takes what was measured, and no less than its bytes") {
  struct Row {
    Sizes sizes;
    double microseconds;
    double tolerance;
  };
  const Row rows[] = {
      {{2048, 256, 8, 7168}, 643.2 + 630.5, 0.12}, {{4096, 256, 8, 7168}, 1285.0 + 1243.2, 0.12},
      {{4096, 128, 8, 2048}, 210.8 + 201.1, 0.12}, {{16384, 128, 8, 2048}, 758.0 + 714.9, 0.12},
      {{2048, 128, 8, 4096}, 199.8 + 201.6, 0.12}, {{1024, 128, 8, 4096}, 133.2 + 145.8, 0.35}};
  for (const Row& row : rows) {
    CAPTURE(row.sizes.tokens);
    CAPTURE(row.sizes.experts);
    Job job = job_on_h100(row.sizes);
    const Plan one_each = {.ep = row.sizes.experts, .zero = 1};
    job.profile.moe_permute_scans_experts = true;
    CHECK(forward_us(job, one_each) == doctest::Approx(row.microseconds).epsilon(row.tolerance));
    CHECK(backward_us(job, one_each) == doctest::Approx(row.microseconds).epsilon(row.tolerance));
  }
  // Looks at eight experts hide behind the rows: 63.6 and 64.6 us, 59.0 without them.
  Job few = job_on_h100({.tokens = 4096, .experts = 8, .topk = 2, .hidden = 6144});
  const Plan plan = {.ep = 4, .zero = 1};
  const double without = forward_us(few, plan);
  few.profile.moe_permute_scans_experts = true;
  CHECK(forward_us(few, plan) == without);
  // Unfused permutation has none.
  Job unfused = job_on_h100({.tokens = 2048, .experts = 256, .topk = 8, .hidden = 7168});
  unfused.profile.moe_permute_fusion = false;
  const double gathers = forward_us(unfused, {.ep = 8, .zero = 1});
  unfused.profile.moe_permute_scans_experts = true;
  CHECK(forward_us(unfused, {.ep = 8, .zero = 1}) == gathers);
}

TEST_CASE("rows of experts with a capacity are sorted in what a copy of swapped chunks took") {
  struct Row {
    Sizes sizes;
    double swap_us;
    double copy_us;
  };
  const Row rows[] = {{{2048, 256, 8, 7168}, 304.1, 160.0}, {{4096, 256, 8, 7168}, 601.4, 314.9},
                      {{4096, 128, 8, 2048}, 177.4, 93.6},  {{16384, 128, 8, 2048}, 687.3, 361.5},
                      {{1024, 128, 8, 4096}, 92.3, 50.0},   {{2048, 128, 8, 4096}, 177.4, 94.1},
                      {{4096, 8, 2, 6144}, 134.6, 71.5}};
  for (const Row& row : rows) {
    CAPTURE(row.sizes.tokens);
    Job job = job_on_h100(row.sizes);
    const double bytes =
        static_cast<double>(2 * row.sizes.tokens * row.sizes.topk * row.sizes.hidden);
    job.cluster.gpu.times.emplace();
    job.cluster.gpu.times->copy_bytes_per_s = 2 * bytes / (row.copy_us * 1e-6);
    job.profile.moe_capacity_factor = 1;
    const double one = backward_us(job, {.ep = row.sizes.experts, .zero = 1});
    CHECK(backward_us(job, {.ep = row.sizes.experts / 4, .zero = 1}) - one ==
          doctest::Approx(2 * row.swap_us).epsilon(0.05));
  }
}

TEST_CASE("experts with a capacity choose their tokens in what was measured, in forward") {
  struct Row {
    Sizes sizes;
    double more_us;
  };
  const Row rows[] = {{{2048, 256, 8, 7168}, 248.2 - 167.3}, {{4096, 256, 8, 7168}, 355.8 - 246.9},
                      {{4096, 128, 8, 2048}, 161.2 - 81.8},  {{16384, 128, 8, 2048}, 349.0 - 189.4},
                      {{2048, 128, 8, 4096}, 115.0 - 66.4},  {{2048, 8, 2, 6144}, 83.8 - 48.5}};
  for (const Row& row : rows) {
    CAPTURE(row.sizes.tokens);
    CAPTURE(row.sizes.experts);
    Job job = job_on_h100(row.sizes);
    const Plan one_each = {.ep = row.sizes.experts, .zero = 1};
    const double forward = forward_us(job, one_each);
    const double backward = backward_us(job, one_each);
    job.profile.moe_capacity_factor = 1;
    CHECK(forward_us(job, one_each) - forward == doctest::Approx(row.more_us).epsilon(0.17));
    CHECK(backward_us(job, one_each) == doctest::Approx(backward));
  }
}

TEST_CASE("a router that casts to fp32 takes what was measured beside one in bf16") {
  struct Row {
    Sizes sizes;
    double forward_us;
    double backward_us;
  };
  const Row rows[] = {{{2048, 256, 8, 7168}, 216.3 - 27.6, 391.3 - 46.8},
                      {{4096, 256, 8, 7168}, 404.1 - 39.6, 758.9 - 74.3},
                      {{16384, 128, 8, 2048}, 290.7 - 38.2, 474.0 - 75.5}};
  for (const Row& row : rows) {
    CAPTURE(row.sizes.tokens);
    Job job = job_on_h100(row.sizes);
    const Plan plan = {.ep = 8, .zero = 1};
    const BlockTime bf16 = layer_time(job, plan, job.model.layers[0]);
    job.profile.moe_router_casts = true;
    const BlockTime fp32 = layer_time(job, plan, job.model.layers[0]);
    CHECK((fp32.forward_s - bf16.forward_s) * 1e6 == doctest::Approx(row.forward_us).epsilon(0.12));
    CHECK((fp32.backward_input_s + fp32.backward_weight_s - bf16.backward_input_s -
           bf16.backward_weight_s) *
              1e6 ==
          doctest::Approx(row.backward_us).epsilon(0.12));
  }
}

// routing() of Megatron-core core_v0.16.1 with its auxiliary loss, of mixture_kernels_h100.json,
// `routers`: forward and backward, by operators and by fused kernels. A sigmoid of one of 128
// experts without groups takes 61 us backward, a softmax of as many scores about 40.
TEST_CASE("a router's choice takes what was measured, fused or not") {
  struct Row {
    std::int64_t tokens;
    std::int64_t experts;
    std::int64_t groups;
    double operators_us[2];
    double fused_us[2];
  };
  const Row rows[] = {
      {1024, 256, 8, {216.5, 57.8}, {97.5, 27.7}},   {2048, 256, 8, {270.4, 64.5}, {106.8, 31.1}},
      {4096, 256, 8, {385.7, 78.4}, {136.4, 40.3}},  {1024, 128, 1, {110.1, 29.4}, {55.3, 18.7}},
      {2048, 128, 1, {124.6, 29.4}, {60.7, 19.2}},   {4096, 128, 1, {156.4, 32.3}, {72.8, 22.9}},
      {16384, 128, 1, {363.3, 46.4}, {180.2, 44.2}}, {8192, 128, 1, {213.7, 60.9}, {65.5, 26.7}},
      {4096, 64, 1, {124.4, 29.2}, {51.1, 17.6}},    {2048, 8, 1, {89.2, 26.5}, {32.2, 14.1}},
      {8192, 8, 1, {125.2, 29.0}, {47.5, 18.4}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.tokens);
    CAPTURE(row.experts);
    Job job =
        job_on_h100({.tokens = row.tokens, .experts = row.experts, .topk = 2, .hidden = 2048});
    job.model.moe.num_groups = row.groups;
    for (const bool fused : {false, true}) {
      CAPTURE(fused);
      job.profile.moe_router_fusion = fused;
      const BlockTime choice = expert_choice(block_context(job, Plan{.zero = 1}));
      const double* measured_us = fused ? row.fused_us : row.operators_us;
      const double tolerance = fused ? 0.33 : 0.19;
      CHECK(choice.forward_s * 1e6 == doctest::Approx(measured_us[0]).epsilon(tolerance));
      CHECK(choice.backward_input_s * 1e6 ==
            doctest::Approx(measured_us[1])
                .epsilon(row.experts == 128 && row.tokens == 8192 ? 0.36 : tolerance));
    }
  }
}

TEST_CASE("the choice of experts is Megatron's, of its rank's tokens, once a layer of experts") {
  Job job = job_on_h100({.tokens = 4096, .experts = 128, .topk = 8, .hidden = 2048});
  const auto choice_s = [&](const Plan& plan) {
    return expert_choice(block_context(job, plan)).forward_s;
  };
  const double whole = choice_s({.zero = 1});
  CHECK(choice_s({.tp = 2, .zero = 1, .sequence_parallel = true}) < whole);
  // Layers with and without it differ by it, in either direction.
  const Plan plan = {.ep = 8, .zero = 1};
  const BlockTime unfused = layer_time(job, plan, job.model.layers[0]);
  const BlockTime choice = expert_choice(block_context(job, plan));
  job.profile.moe_router_fusion = true;
  const BlockTime fused = layer_time(job, plan, job.model.layers[0]);
  const BlockTime less = expert_choice(block_context(job, plan));
  CHECK(unfused.forward_s - fused.forward_s == doctest::Approx(choice.forward_s - less.forward_s));
  CHECK(unfused.backward_input_s - fused.backward_input_s ==
        doctest::Approx(choice.backward_input_s - less.backward_input_s));
  set_framework(job.profile, MemoryModel::kTorchtitan);
  CHECK(choice_s(plan) == 0);
  set_framework(job.profile, MemoryModel::kNative);
  CHECK(choice_s(plan) == 0);
}

// A copy of 470 MB took 160.0 us on that GPU.
TEST_CASE("latent attention that PyTorch's operators turn takes what was measured") {
  Job job = job_on_h100({.tokens = 4096, .experts = 8, .topk = 2, .hidden = 7168});
  job.model.attention = AttentionKind::kMla;
  job.model.mla = {.q_lora_rank = 1536,
                   .kv_lora_rank = 512,
                   .qk_nope_head_dim = 128,
                   .qk_rope_head_dim = 64,
                   .v_head_dim = 128};
  job.cluster.gpu.times.emplace();
  job.cluster.gpu.times->copy_bytes_per_s = 2 * 2048 * 8 * 7168 * 2. / 160.0e-6;
  const double elements = 4096 * 64 * (192.0 + 256);
  const Passes fused = layer_kernels(job).rotary;
  job.profile.rope_fusion = false;
  const Passes apart = layer_kernels(job).rotary;
  CHECK(elementwise_s(job.cluster.gpu, elements * apart.forward) * 1e6 ==
        doctest::Approx(886.7).epsilon(0.05));
  CHECK(elementwise_s(job.cluster.gpu, elements * apart.backward) * 1e6 ==
        doctest::Approx(981.5).epsilon(0.1));
  CHECK(elementwise_s(job.cluster.gpu, apart.forward) >
        elementwise_s(job.cluster.gpu, fused.forward));
  CHECK(elementwise_s(job.cluster.gpu, apart.backward) >
        elementwise_s(job.cluster.gpu, fused.backward));
}

TEST_CASE("without a fused rotary embedding queries and keys are turned as local layers do") {
  Job job = job_on_h100({.tokens = 4096, .experts = 8, .topk = 2, .hidden = 4096});
  job.profile.rope_fusion = false;
  Job local = job;
  set_framework(local.profile, MemoryModel::kMegatronLocal);
  const Passes engine_turned = layer_kernels(job).rotary;
  const Passes local_turned = layer_kernels(local).rotary;
  CHECK(engine_turned.forward.rearranged == local_turned.forward.rearranged);
  CHECK(engine_turned.backward.streamed == local_turned.backward.streamed);
  // Norms of heads cost what they cost with it.
  job.model.qk_norm = true;
  const double norms = layer_kernels(job).rotary.forward.fused - engine_turned.forward.fused;
  Job fused = job;
  fused.profile.rope_fusion = true;
  CHECK(2 * norms == doctest::Approx(layer_kernels(fused).rotary.forward.fused));
  job.model.learned_positions = 2048;
  job.model.qk_norm = false;
  CHECK(layer_kernels(job).rotary.forward.rearranged == 0);
}

// One product of all rows, and as many as experts on four streams: forward, input gradient.
TEST_CASE("experts' products take what was measured on four streams beside one product") {
  struct Row {
    ProductShape shape;
    double forward_us[2];
    double input_gradient_us[2];
  };
  const Row rows[] = {{{.m = 1024, .n = 3072, .k = 4096, .count = 16}, {631, 645}, {609, 687}},
                      {{.m = 1024, .n = 4096, .k = 1536, .count = 16}, {319, 360}, {309, 401}},
                      {{.m = 512, .n = 3072, .k = 4096, .count = 16}, {306, 411}, {308, 383}},
                      {{.m = 512, .n = 4096, .k = 1536, .count = 16}, {160, 209}, {155, 264}},
                      {{.m = 4096, .n = 4096, .k = 7168, .count = 4}, {1437, 1453}, {1446, 1447}},
                      {{.m = 4096, .n = 7168, .k = 2048, .count = 4}, {733, 736}, {702, 719}},
                      {{.m = 1024, .n = 4096, .k = 7168, .count = 16}, {1416, 1489}, {1468, 1537}},
                      {{.m = 4096, .n = 3072, .k = 4096, .count = 4}, {624, 642}, {641, 628}}};
  for (const Row& row : rows) {
    CAPTURE(row.shape.m);
    CAPTURE(row.shape.n);
    Job job = job_on_h100({.tokens = 4096, .experts = 8, .topk = 2, .hidden = 4096});
    const auto rate = [&](double microseconds) { return row.shape.flops() / microseconds * 1e6; };
    job.cluster.gpu.times.emplace();
    job.cluster.gpu.times->copy_bytes_per_s = 2.94e12;
    job.cluster.gpu.times->gemm = {.m = {1},
                                   .n = {1},
                                   .k = {1},
                                   .forward = {rate(row.forward_us[0])},
                                   .input_gradient = {rate(row.input_gradient_us[0])},
                                   .weight_gradient = {rate(row.forward_us[0])},
                                   .accumulated = {}};
    const Plan plan = {.ep = 8, .zero = 1};
    const BlockTime time = linear(block_context(job, plan), row.shape, Precision::kBf16);
    CHECK(time.forward_s * 1e6 == doctest::Approx(row.forward_us[1]).epsilon(0.15));
    CHECK(time.backward_input_s * 1e6 == doctest::Approx(row.input_gradient_us[1]).epsilon(0.15));
    // Other frameworks run one kernel for all.
    set_framework(job.profile, MemoryModel::kTorchtitan);
    CHECK(linear(block_context(job, plan), row.shape, Precision::kBf16).forward_s * 1e6 ==
          doctest::Approx(row.forward_us[0]));
  }
}

}  // namespace
}  // namespace shardplan::megatron
