// Megatron-core's update, on the GPU and on the host, and what Megatron-FSDP leaves visible.
#include "estimator/frameworks/megatron/update.h"

#include <doctest/doctest.h>

#include "data/read/case_line.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/llama_job.h"
#include "tests/estimator/rank_updates.h"
#include "tests/measured_host.h"

namespace shardplan::megatron {
namespace {

// Kernels over lists of tensors: norm, scaling, FusedAdam; weights and zeros; gradients divided by
// the ranks. Two profiles on H200, of models of 2.80 and 3.81 billion parameters on one rank.
TEST_CASE("Megatron-core's update moves 50 bytes per parameter and took what was measured") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kMegatron);
  job.cluster.gpus_per_node = 1;
  job.cluster.gpu.times.emplace().copy_bytes_per_s = 4.225e12;
  const auto seconds = [&](const Plan& plan, std::int64_t parameters) {
    return optimizer_s(job, plan, {.held = {.dense = parameters, .expert = 0}});
  };
  const double billion = 1e9 / 4.225e12;
  CHECK(seconds({.zero = 1}, 1'000'000'000) == doctest::Approx(billion * (40 / 0.8 + 10 / 0.93)));
  CHECK(seconds({.zero = 1}, 2795573248) ==
        doctest::Approx(23.464e-3 + 6.16e-3 + 3.27e-3 + 3.9e-3 + 2.389e-3).epsilon(0.05));
  CHECK(seconds({.zero = 1}, 3812663296) ==
        doctest::Approx(32.084e-3 + 8.414e-3 + 4.474e-3 + 5.231e-3 + 3.257e-3).epsilon(0.05));
  // Gradients in bf16 become fp32 for an optimizer that takes no others.
  const Plan bf16 = {.zero = 1, .grad_dtype = DType::kBf16};
  CHECK(seconds(bf16, 1'000'000'000) ==
        doctest::Approx(billion * (40 / 0.8 + 8 / 0.93 + 6 / 0.57)));
  Plan aware = bf16;
  aware.exp_avg_dtype = DType::kBf16;
  aware.exp_avg_sq_dtype = DType::kBf16;
  CHECK(seconds(aware, 1'000'000'000) == doctest::Approx(billion * (24 / 0.8 + 8 / 0.93)));
  job.cluster.gpus_per_node = 8;
  const double shared = seconds({.zero = 1}, 8'000'000'000);
  CHECK(shared == doctest::Approx(billion * (40 / 0.8 + 6 / 0.93 + 8 * (4 / 0.93 + 8 / 0.73))));
}

TEST_CASE("an optimizer on the host crosses PCIe and runs at the GPU's share of host memory") {
  Job job = job_on_h200();
  job.cluster.host_memory_bytes_per_s = 76.8e9;
  const LocalParameters parameters = {.dense = 8'000'000'000, .expert = 0};
  const auto seconds = [&](double share) {
    const Plan plan = {.zero = 1, .offload = {.optimizer = share}};
    return optimizer_s(job, plan, {.held = parameters});
  };
  // A billion parameters a rank: 4 bytes to the host, 2 back, 180 bytes' time in its memory; the
  // gradients of all eight are zeroed and divided where they are.
  const double buffer_s = 8e9 * (4 / 0.93 + 8 / 0.73) * 0.93 / (4.8e12 * 0.85);
  CHECK(seconds(1) == doctest::Approx(6e9 / (64e9 * 0.8) + 180e9 / 76.8e9 + buffer_s));
  CHECK(seconds(0.5) == doctest::Approx((seconds(0) + seconds(1)) / 2));
}

// Six layers of Llama-3-8B's widths on two H200 (data/measured/overlaps_two_gpus_h200.jsonl,
// fsdp-dense-bf16): 218,112,000 parameters a layer, of which three are gathered ahead, embedding,
// head and final norm 262,148,096.
TEST_CASE("Megatron-FSDP's passes begin and end with what nothing hides") {
  const Case question =
      read_case(R"({"schema":1,"id":"case","framework":"megatron","cluster":"1x2-h200",
    "model":{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,
             "num_hidden_layers":6,"num_attention_heads":32,"num_key_value_heads":8,
             "vocab_size":32000,"tie_word_embeddings":false},
    "training":{"sequence_length":4096,"micro_batch":1,"num_microbatches":2,"precision":"bf16"},
    "plan":{"zero":3,"grad_dtype":"bf16"}})",
                "case", Library());
  const Job& job = question.job;
  constexpr double kLayer = 218'112'000;
  constexpr double kEnds = 262'148'096;
  constexpr double kAll = 6 * kLayer + kEnds;
  RankParameters held;
  held.held.dense = static_cast<std::int64_t>(kAll);
  const RankUpdate update = rank_update(job, question.plan, held);
  CHECK(update.shares.layers == doctest::Approx(6 * kLayer / kAll));
  CHECK(update.shares.first == doctest::Approx(kLayer / kAll));
  CHECK(update.shares.ahead == doctest::Approx(4 * kLayer / kAll));
  const auto exposed_s = [&](std::int64_t microbatches, double work_s) {
    return exposed_data_parallel_s(job, question.plan, update, microbatches,
                                   {.forward_s = work_s, .backward_s = work_s});
  };
  const double gather_s = update.gather.alone_s;
  const double reduce_s = update.reduce.alone_s;
  // Behind nothing all is seen: layers are gathered twice for each microbatch, the ends once.
  CHECK(exposed_s(2, 0) ==
        doctest::Approx((kEnds + 4 * 6 * kLayer) / kAll * gather_s + 2 * reduce_s));
  const double of_microbatch_s = exposed_s(2, 10) - exposed_s(1, 10);
  const double begins_s = 5 * kLayer / kAll * gather_s + (kEnds + kLayer) / kAll * reduce_s;
  const double hides_s = 7 * kLayer / kAll * gather_s + 5 * kLayer / kAll * reduce_s;
  CHECK(of_microbatch_s > begins_s);
  CHECK(of_microbatch_s < begins_s + hides_s / 2);
}

}  // namespace
}  // namespace shardplan::megatron
