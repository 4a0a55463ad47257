// Weights in fp8, counted by hand: by recipe and GPU, beside bf16 ones and alone.
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/blocks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>

#include "data/read/library.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/ledger/block_rows.h"
#include "tests/estimator/broken_plans.h"
#include "tests/estimator/rank_updates.h"

namespace shardplan::megatron {
namespace {

// Two layers of width 512 with 8 heads of 64 and a gated FFN of 1024.
Job small_job(const char* cluster, Fp8Recipe recipe) {
  const Library library;
  Job job;
  job.model.name = "small";
  job.model.hidden = 512;
  job.model.ffn = 1024;
  job.model.vocab = 1024;
  job.model.num_heads = 8;
  job.model.num_kv_heads = 8;
  job.model.head_dim = 64;
  job.model.layers.resize(2);
  job.cluster = library.cluster(cluster);
  job.profile = library.framework("megatron");
  job.profile.fp8_recipe = recipe;
  job.sequence_length = 1024;
  job.global_batch = 8;
  return job;
}
constexpr const char* kHopper = "1x8-h100";
constexpr const char* kBlackwell = "1x8-b200";

// qkv 3h^2, projection h^2, FFN 3hf.
constexpr std::int64_t kLinear = 2 * (4 * 512 * 512 + 3 * 512 * 1024);
// Embedding and head, four norms of layers and one behind them.
constexpr std::int64_t kOthers = 2 * 1024 * 512 + 5 * 512;

Plan fp8_plan() {
  return {.zero = 1, .precision = Precision::kFp8};
}

Job param_gather(Job job) {
  job.profile.fp8_param_gather = true;
  return job;
}

std::vector<StateRow> rows_of(const Job& job, const Plan& plan) {
  const PlanPieces pieces = plan_pieces(job, plan);
  return pieces.stages.front().state.rows;
}

std::int64_t bytes_of_row(const Job& job, const Plan& plan, std::string_view name) {
  const std::vector<StateRow> rows = rows_of(job, plan);
  const auto row = std::ranges::find(rows, name, &StateRow::name);
  return row == rows.end() ? 0 : row->total_bytes();
}

std::int64_t alive_bytes(const Job& job, const Plan& plan, Component component, Phase phase) {
  std::int64_t bytes = 0;
  for (const StateRow& row : rows_of(job, plan)) {
    bytes += row.component == component && row.is_alive(phase) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t parameter_bytes(const Job& job, const Plan& plan) {
  return alive_bytes(job, plan, Component::kParameters, Phase::kBackward);
}

TEST_CASE("a weight has one fp8 copy where products take both layouts and a tensor has one scale") {
  for (const Fp8Recipe recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise}) {
    CHECK(fp8_copies(small_job(kHopper, recipe)) == 2);
    CHECK(fp8_copies(small_job(kBlackwell, recipe)) == 1);
  }
  CHECK(fp8_copies(small_job(kHopper, Fp8Recipe::kBlockwise)) == 2);
  CHECK(fp8_copies(small_job(kBlackwell, Fp8Recipe::kMxfp8)) == 2);
  Job job = small_job(kBlackwell, Fp8Recipe::kTensorwise);
  job.cluster.gpu.compute_capability = 120;  // GeForce
  CHECK(fp8_copies(job) == 2);
}

TEST_CASE("scales of a weight are padded as its products want them") {
  const Job mxfp8 = small_job(kBlackwell, Fp8Recipe::kMxfp8);
  // [512, 1024]: [512, 32] and [16, 1024].
  CHECK(fp8_scale_bytes(mxfp8, {.rows = 512, .columns = 1024}) == 512 * 32 + 16 * 1024);
  CHECK(fp8_scale_bytes(mxfp8, {.rows = 512, .columns = 1024, .count = 3}) == 3 * 2 * 16384);
  // [96, 64]: [128, 4] and [4, 128].
  CHECK(fp8_scale_bytes(mxfp8, {.rows = 96, .columns = 64}) == 128 * 4 + 4 * 128);
  const Job blockwise = small_job(kHopper, Fp8Recipe::kBlockwise);
  // [512, 1280]: [4, 12] and [10, 4], in fp32.
  CHECK(fp8_scale_bytes(blockwise, {.rows = 512, .columns = 1280}) == 4 * (4 * 12 + 10 * 4));
  CHECK(fp8_scale_bytes(small_job(kHopper, Fp8Recipe::kDelayed), {.rows = 512, .columns = 512}) ==
        0);
}

TEST_CASE("without fp8_param_gather fp8 copies of linear weights lie beside all weights in bf16") {
  const Plan plan = fp8_plan();
  const Job hopper = small_job(kHopper, Fp8Recipe::kTensorwise);
  CHECK(bytes_of_row(hopper, plan, "parameters.dense") == 2 * (kLinear + kOthers));
  CHECK(bytes_of_row(hopper, plan, "parameters.fp8_copies") == 2 * kLinear);
  const Job blackwell = small_job(kBlackwell, Fp8Recipe::kTensorwise);
  CHECK(bytes_of_row(blackwell, plan, "parameters.dense") == 2 * (kLinear + kOthers));
  CHECK(bytes_of_row(blackwell, plan, "parameters.fp8_copies") == kLinear);
}

TEST_CASE("with fp8_param_gather linear weights are fp8 alone and all others bf16") {
  const Plan plan = fp8_plan();
  for (const Fp8Recipe recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise}) {
    const Job hopper = param_gather(small_job(kHopper, recipe));
    CHECK(bytes_of_row(hopper, plan, "parameters.dense") == 2 * kOthers);
    CHECK(bytes_of_row(hopper, plan, "parameters.fp8_weights") == 2 * kLinear);
    CHECK(bytes_of_row(hopper, plan, "parameters.fp8_copies") == 0);
    const Job blackwell = param_gather(small_job(kBlackwell, recipe));
    CHECK(bytes_of_row(blackwell, plan, "parameters.dense") == 2 * kOthers);
    CHECK(bytes_of_row(blackwell, plan, "parameters.fp8_weights") == kLinear);
  }
}

TEST_CASE("fp8_param_gather saves two bytes a linear weight and changes no gradient or moment") {
  const Plan plan = fp8_plan();
  struct Case {
    const char* cluster;
    Fp8Recipe recipe;
  };
  for (const auto& [cluster, recipe] :
       {Case{kHopper, Fp8Recipe::kDelayed}, Case{kHopper, Fp8Recipe::kTensorwise},
        Case{kHopper, Fp8Recipe::kBlockwise}, Case{kBlackwell, Fp8Recipe::kTensorwise}}) {
    const Job beside = small_job(cluster, recipe);
    const Job alone = param_gather(beside);
    const std::int64_t padding = bytes_of_row(beside, plan, "parameters.dense.padding") -
                                 bytes_of_row(alone, plan, "parameters.dense.padding") -
                                 bytes_of_row(alone, plan, "parameters.fp8_weights.padding");
    CHECK(parameter_bytes(beside, plan) - parameter_bytes(alone, plan) == 2 * kLinear + padding);
    CHECK(std::abs(padding) < 4096);
    for (const char* const same :
         {"gradients.dense", "optimizer.dense.master", "optimizer.dense.exp_avg"}) {
      CHECK(bytes_of_row(beside, plan, same) == bytes_of_row(alone, plan, same));
    }
  }
}

// What stays in bf16 does not move into the buffer that it is gathered in, and has both.
TEST_CASE("mxfp8 weights are gathered through their gradients' buffer, the others beside theirs") {
  const Plan plan = fp8_plan();
  const Job job = param_gather(small_job(kBlackwell, Fp8Recipe::kMxfp8));
  CHECK(bytes_of_row(job, plan, "parameters.dense") == 2 * kOthers);
  CHECK(bytes_of_row(job, plan, "parameters.fp8_weights") == 2 * kLinear);
  CHECK(bytes_of_row(job, plan, "parameters.fp8_scales") == 2 * kLinear / 32);
  CHECK(bytes_of_row(job, plan, "parameters.fp8_weights.padding") == 0);
  CHECK(bytes_of_row(job, plan, "parameters.dense.padding") == 0);
  const std::int64_t gathered = bytes_of_row(job, plan, "parameters.gather_buffer");
  CHECK(gathered >= 2 * kOthers);
  CHECK(gathered < 2 * kOthers + 4096);
  // Nothing moves, so that nothing is there twice when the model is built.
  CHECK(alive_bytes(job, plan, Component::kParameters, Phase::kStartUp) ==
        parameter_bytes(job, plan));
}

TEST_CASE("both buffers of a chunk are padded, each to a multiple of its shards") {
  const Plan plan = fp8_plan();  // dp 8
  const Job job = param_gather(small_job(kHopper, Fp8Recipe::kDelayed));
  const std::int64_t fp8 = bytes_of_row(job, plan, "parameters.fp8_weights.padding") + kLinear;
  const std::int64_t bf16 = bytes_of_row(job, plan, "parameters.dense.padding") / 2 + kOthers;
  CHECK(fp8 % 128 == 0);
  CHECK(bf16 % 128 == 0);
  CHECK(bytes_of_row(job, plan, "gradients.dense") +
            bytes_of_row(job, plan, "gradients.dense.padding") ==
        4 * (fp8 + bf16));
}

TEST_CASE("the update casts main parameters to bf16 before they are rounded to fp8") {
  Plan plan = fp8_plan();
  const char* const row = "optimizer.cast_main_parameters";
  const Job current = param_gather(small_job(kHopper, Fp8Recipe::kTensorwise));
  CHECK(bytes_of_row(current, plan, row) == 2 * kLinear / 8);
  CHECK(bytes_of_row(small_job(kHopper, Fp8Recipe::kTensorwise), plan, row) == 0);
  CHECK(bytes_of_row(param_gather(small_job(kBlackwell, Fp8Recipe::kMxfp8)), plan, row) == 0);
  // FusedAdam writes fp8 itself.
  plan.master_dtype = DType::kFp16;
  CHECK(bytes_of_row(param_gather(small_job(kHopper, Fp8Recipe::kDelayed)), plan, row) == 0);
}

// A chunk's fp8 weights, row-wise, and its bf16 tensors are there twice until they have moved.
TEST_CASE("a chunk's tensors are there twice when its buffers are made") {
  const Plan plan = fp8_plan();
  const Job job = param_gather(small_job(kHopper, Fp8Recipe::kTensorwise));
  CHECK(alive_bytes(job, plan, Component::kParameters, Phase::kStartUp) -
            parameter_bytes(job, plan) ==
        kLinear + 2 * kOthers);
}

// Moments in fewer bits leave the fp32 main parameters to Megatron-LM with every recipe but delayed
// scaling, and with them gradients in fp32.
TEST_CASE("with current scaling the optimizer takes fp32 gradients whatever its moments are") {
  Plan plan = fp8_plan();
  plan.grad_dtype = DType::kBf16;
  plan.exp_avg_dtype = DType::kBf16;
  const std::int64_t share = (kLinear + kOthers) / 8;
  CHECK(bytes_of_row(small_job(kHopper, Fp8Recipe::kTensorwise), plan,
                     "optimizer.fp32_gradients") == 4 * share);
  CHECK(bytes_of_row(small_job(kHopper, Fp8Recipe::kDelayed), plan, "optimizer.fp32_gradients") ==
        0);
}

// Bytes a linear weight and step.
TEST_CASE("kernels that write fp8 weights move what the recipe reads and writes") {
  const Plan plan = fp8_plan();
  CHECK(fp8_weight_kernel_bytes(small_job(kHopper, Fp8Recipe::kDelayed), plan) == 2 + 2);
  CHECK(fp8_weight_kernel_bytes(small_job(kHopper, Fp8Recipe::kTensorwise), plan) == 2 + 2 + 2);
  CHECK(fp8_weight_kernel_bytes(small_job(kBlackwell, Fp8Recipe::kTensorwise), plan) == 2 + 2 + 1);
  CHECK(fp8_weight_kernel_bytes(small_job(kBlackwell, Fp8Recipe::kMxfp8), plan) == 2 + 2);
  // A transpose; nothing; read, written twice and zeroed.
  CHECK(fp8_weight_kernel_bytes(param_gather(small_job(kHopper, Fp8Recipe::kTensorwise)), plan) ==
        1 + 1);
  CHECK(fp8_weight_kernel_bytes(param_gather(small_job(kBlackwell, Fp8Recipe::kDelayed)), plan) ==
        0);
  CHECK(fp8_weight_kernel_bytes(param_gather(small_job(kBlackwell, Fp8Recipe::kMxfp8)), plan) ==
        2 + 2 + 2);
  CHECK(fp8_cast_kernel_bytes(small_job(kHopper, Fp8Recipe::kTensorwise), plan) == 0);
  CHECK(fp8_cast_kernel_bytes(param_gather(small_job(kHopper, Fp8Recipe::kTensorwise)), plan) ==
        2 + 2 + 1);
  const Plan bf16 = {.zero = 1};
  CHECK(fp8_weight_kernel_bytes(small_job(kHopper, Fp8Recipe::kTensorwise), bf16) == 0);
}

TEST_CASE("fp8_param_gather gathers linear weights in one byte, with mxfp8 all in two") {
  const Plan plan = fp8_plan();
  const auto gather_s = [&](const Job& job, const LocalParameters& held) {
    return rank_update(job, plan, {.held = held}).gather.alone_s;
  };
  const LocalParameters linear = {.dense = 1'000'000'000, .linear = 1'000'000'000};
  const LocalParameters half = {.dense = 500'000'000, .linear = 500'000'000};
  const LocalParameters others = {.dense = 1'000'000'000};
  const Job beside = small_job(kHopper, Fp8Recipe::kTensorwise);
  const Job alone = param_gather(beside);
  CHECK(gather_s(alone, linear) == gather_s(beside, half));
  CHECK(gather_s(alone, others) == gather_s(beside, others));
  const Job mxfp8 = param_gather(small_job(kBlackwell, Fp8Recipe::kMxfp8));
  CHECK(gather_s(mxfp8, linear) == gather_s(small_job(kBlackwell, Fp8Recipe::kMxfp8), linear));
  // One value a tensor: a latency.
  CHECK(rank_update(beside, plan, {.held = linear}).largest_values_s == 0);
  const RankUpdate update = rank_update(alone, plan, {.held = linear});
  CHECK(update.largest_values_s > 0);
  CHECK(update.largest_values_s < 1e-3);
}

TEST_CASE("a step with fp8_param_gather takes no longer than one without") {
  const Plan plan = fp8_plan();
  for (const Fp8Recipe recipe : {Fp8Recipe::kDelayed, Fp8Recipe::kTensorwise}) {
    for (const char* const cluster : {kHopper, kBlackwell}) {
      const Job job = small_job(cluster, recipe);
      Job large = job;
      large.model.hidden = 4096;
      large.model.head_dim = 512;
      large.model.ffn = 14336;
      CHECK(estimate_step_time(param_gather(large), plan).total_s <
            estimate_step_time(large, plan).total_s);
    }
  }
}

std::int64_t layer_row(const Job& job, const Plan& plan, std::string_view name) {
  std::int64_t bytes = 0;
  for (const BlockRow& row : block_rows(job, plan, BlockKind::kDenseLayer)) {
    bytes += row.name == name ? row.bytes : 0;
  }
  return bytes;
}

// One sequence of 1024 tokens.
TEST_CASE("activations in fp8 have the scales and layouts of their recipe") {
  const Plan plan = fp8_plan();
  constexpr std::int64_t kHidden = 1024 * 512;
  const Job hopper = small_job(kHopper, Fp8Recipe::kTensorwise);
  const Job blackwell = small_job(kBlackwell, Fp8Recipe::kTensorwise);
  const Job mxfp8 = small_job(kBlackwell, Fp8Recipe::kMxfp8);
  const Job blockwise = small_job(kHopper, Fp8Recipe::kBlockwise);
  CHECK(layer_row(hopper, plan, "attention.norm_output") == kHidden);
  CHECK(layer_row(blackwell, plan, "attention.norm_output") == kHidden);
  CHECK(layer_row(mxfp8, plan, "attention.norm_output") == kHidden + kHidden / 32);
  CHECK(layer_row(blockwise, plan, "attention.norm_output") == kHidden + 4 * kHidden / 128);
  const char* const gradient = "attention.projection_gradient_fp8";
  CHECK(layer_row(hopper, plan, gradient) == 2 * kHidden);
  CHECK(layer_row(blackwell, plan, gradient) == kHidden);
  CHECK(layer_row(mxfp8, plan, gradient) == 2 * (kHidden + kHidden / 32));
}

TEST_CASE("what is gathered in fp8 is transposed behind it where products take one layout") {
  Plan plan = fp8_plan();
  plan.tp = 4;
  plan.sequence_parallel = true;
  constexpr std::int64_t kHidden = 1024 * 512;
  const Job hopper = small_job(kHopper, Fp8Recipe::kTensorwise);
  const Job blackwell = small_job(kBlackwell, Fp8Recipe::kTensorwise);
  const Job mxfp8 = small_job(kBlackwell, Fp8Recipe::kMxfp8);
  const char* const again = "attention.gathered_norm_output_again";
  CHECK(layer_row(hopper, plan, again) == 2 * kHidden);
  CHECK(layer_row(blackwell, plan, again) == kHidden);
  CHECK(layer_row(mxfp8, plan, again) == kHidden + kHidden / 32);
  CHECK(layer_row(hopper, plan, "attention.gathered_norm_output") == kHidden);
  const char* const gathered = "attention.gathered_projection_gradient";
  CHECK(layer_row(hopper, plan, gathered) == 2 * kHidden);
  CHECK(layer_row(blackwell, plan, gathered) == kHidden);
  CHECK(layer_row(mxfp8, plan, gathered) == 2 * (kHidden + kHidden / 32));
  const char* const part = "attention.projection_gradient_fp8";
  CHECK(layer_row(hopper, plan, part) == kHidden / 4);
  CHECK(layer_row(mxfp8, plan, part) == 2 * (kHidden + kHidden / 32) / 4);
}

TEST_CASE("experts' weights are all linear") {
  Job job = param_gather(small_job(kHopper, Fp8Recipe::kTensorwise));
  job.model.moe.num_experts = 8;
  job.model.moe.topk = 2;
  job.model.moe.expert_ffn = 256;
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  Plan plan = fp8_plan();
  plan.ep = 8;
  constexpr std::int64_t kAttention = 2 * 4 * 512 * 512;
  constexpr std::int64_t kExpert = 2 * 3 * 512 * 256;
  constexpr std::int64_t kRouter = 2 * 512 * 8;
  CHECK(bytes_of_row(job, plan, "parameters.expert") == 0);
  CHECK(bytes_of_row(job, plan, "parameters.fp8_weights") == 2 * (kAttention + kExpert));
  CHECK(bytes_of_row(job, plan, "parameters.dense") == 2 * (kOthers + kRouter));
}

TEST_CASE("what Megatron-LM and Transformer Engine refuse of fp8 is refused by name") {
  const auto with_gather = [](Job& job, Plan& plan) {
    job.profile.fp8_param_gather = true;
    plan = fp8_plan();
  };
  const Job hopper = small_job(kHopper, Fp8Recipe::kTensorwise);
  CHECK(!why_invalid(param_gather(hopper), fp8_plan()));
  check_refused(hopper, {{"fp8_param_gather_needs_fp8",
                          [](Job& job, Plan& plan) {
                            job.profile.fp8_param_gather = true;
                            plan.zero = 1;
                          },
                          {"precision bf16", "precision fp8"}}});
  const Job delayed = small_job(kHopper, Fp8Recipe::kDelayed);
  const auto recompute = [](Job&, Plan& plan) {
    plan = fp8_plan();
    plan.recompute.granularity = RecomputeGranularity::kSelective;
    plan.recompute.modules = {};
    plan.recompute.modules.layernorm = true;
  };
  check_refused(delayed, {{"delayed_scaling_recomputes_neither_moe_act_nor_layernorm",
                           recompute,
                           {"fp8_recipe delayed", "tensorwise"}}});
  Job tensorwise = hopper;
  Plan recomputing;
  recompute(tensorwise, recomputing);
  CHECK(!why_invalid(tensorwise, recomputing));
  for (const std::int64_t zero : {0, 2, 3}) {
    Plan plan = fp8_plan();
    plan.zero = zero;
    const auto reason = why_invalid(param_gather(hopper), plan);
    REQUIRE(reason);
    CHECK(reason->rule ==
          (zero == 0 ? "fp8_param_gather_needs_zero_1" : "unsupported: fp8_param_gather"));
  }
  for (const DType master : {DType::kFp16, DType::kBf16}) {
    Plan plan = fp8_plan();
    plan.master_dtype = master;
    const auto reason = why_invalid(param_gather(hopper), plan);
    REQUIRE(reason);
    CHECK(reason->rule == "fp8_param_gather_main_parameters");
    CHECK(why_invalid(param_gather(delayed), plan).has_value() == (master == DType::kBf16));
  }
  Plan offloaded;
  Job spoiled = hopper;
  with_gather(spoiled, offloaded);
  offloaded.offload.optimizer = 0.5;
  CHECK(why_invalid(spoiled, offloaded)->rule == "fp8_param_gather_needs_the_optimizer_on_the_gpu");
}

TEST_CASE("block scales need the GPUs that have them, and mxfp8 sizes in multiples of 32") {
  const Plan plan = fp8_plan();
  CHECK(why_invalid(small_job(kHopper, Fp8Recipe::kMxfp8), plan)->rule ==
        "mxfp8_needs_compute_capability_100");
  CHECK(!why_invalid(small_job(kHopper, Fp8Recipe::kBlockwise), plan));
  CHECK(why_invalid(small_job(kBlackwell, Fp8Recipe::kBlockwise), plan)->rule ==
        "unsupported: fp8_recipe");
  Job job = small_job(kBlackwell, Fp8Recipe::kMxfp8);
  CHECK(!why_invalid(job, plan));
  job.sequence_length = 1040;  // 32 * 32.5
  CHECK(why_invalid(job, plan)->rule == "fp8_tokens_divisible");
  job.sequence_length = 1024;
  job.model.ffn = 1040;
  CHECK(why_invalid(job, plan)->rule == "fp8_widths_divisible");
  job.profile.fp8_recipe = Fp8Recipe::kTensorwise;
  CHECK(!why_invalid(job, plan));
}

}  // namespace
}  // namespace shardplan::megatron
