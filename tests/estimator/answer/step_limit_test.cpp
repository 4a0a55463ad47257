// The limit of a step: a hand count, and the laws that nothing is estimated and nothing was
// measured below it.
#include "estimator/answer/step_limit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "data/read/case_line.h"
#include "estimator/answer/model_times.h"
#include "estimator/estimate.h"
#include "estimator/time/block_work.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

double limit_s(const Job& job, const Plan& plan) {
  return estimate_step_time(without_losses(job).value(), plan).total_s;
}

// Llama-3-8B with 16 layers on one GPU, two sequences of 8192.
Job job_of_one_gpu() {
  const Library library;
  Job job = {.model = library.model("llama3-8b").model,
             .cluster = library.cluster("1x1-h200"),
             .profile = library.framework("native"),
             .sequence_length = 8192,
             .global_batch = 2};
  job.model.layers.resize(16);
  return job;
}

Plan plan_of_one_gpu() {
  return {.zero = 0, .micro_batch = 2};
}

TEST_CASE("the limit on one GPU is FLOPs and bytes over the best rates") {
  Job job = job_of_one_gpu();
  MeasuredTimes& times = *job.cluster.gpu.times;
  times.copy_clock_over_products.reset();  // products keep their rate, whatever runs between them
  constexpr double kProducts = 700e12;
  const double tokens = 2 * 8192.0;
  const double layer = 2 * 4096.0 * 4096 + 2 * 4096.0 * 1024 + 3 * 4096.0 * 14336;  // weights
  const double table = 4096.0 * 128256;
  const double products_s = 6 * (16 * layer + table) * tokens / kProducts;
  // Two products forward and five backward over half a square of 32 heads; 8192 tokens and no
  // shorter sequence have the best rate, a little above that of the measured number of heads.
  const double pair_flops = 2 * 2 * 128.0;
  const double pairs = 2 * 32 * 8192.0 * 8192 / 2;
  const double attention_s = 16 * pair_flops * pairs * (1 / 532.8e12 + 2.5 / 439.9e12);
  // bf16: two norms with their additions, 4 passes each way; rotation of q and k; SwiGLU 3 and 5;
  // embedding and final norm; logits once in and twice out.
  const double of_layer = 2 * (2 * 8 * 4096.0 + 4 * (4096.0 + 1024) + 8 * 14336);
  const double of_ends = 2 * 2 * 4096.0 + (2 + 8) * 4096.0 + 2 * 8 * 4096.0 + 6 * 128256;
  const double parameters = 16 * (layer + 2 * 4096) + 2 * table + 4096;
  const double copied_s =
      ((16 * of_layer + of_ends) * tokens + 34 * parameters) / times.copy_bytes_per_s;
  const Job best = without_losses(job, kProducts).value();
  const StepTime step = estimate_step_time(best, plan_of_one_gpu());
  CHECK(step.host_s == 0);
  CHECK(step.bubble_s == 0);
  CHECK(step.total_s == doctest::Approx(products_s + attention_s + copied_s).epsilon(0.005));
  CHECK(step.total_s < products_s + attention_s + copied_s);
}

TEST_CASE("measured fp8 products have the best of their own rates in the limit") {
  Job job = job_of_one_gpu();
  Plan plan = plan_of_one_gpu();
  plan.precision = Precision::kFp8;
  MeasuredTimes& times = *job.cluster.gpu.times;
  times.gemm_fp8 = {.m = {1024, 16384},
                    .n = {1024},
                    .k = {1024},
                    .forward = {6e14, 1.2e15},
                    .input_gradient = {6e14, 1.1e15},
                    .weight_gradient = {6e14, 1e15},
                    .accumulated = {}};
  const Job without = without_losses(job).value();
  const MeasuredTimes& best = *without.cluster.gpu.times;
  CHECK(best.gemm_fp8.weight_gradient == std::vector<double>{1.2e15});
  CHECK(best.gemm.forward != best.gemm_fp8.forward);
  CHECK(limit_s(job, plan) < estimate_step_time(job, plan).total_s);
}

// Its pieces only hide communication: what rounding them would cost is not in the limit.
TEST_CASE("a linear layer in fp8 has one limit with and without tensor parallelism") {
  Job job = job_of_one_gpu();
  job.cluster = Library().cluster("1x8-h200");
  const Job best = without_losses(job).value();
  const auto backward_s = [&](std::int64_t tp) {
    const Plan plan = {.tp = tp, .precision = Precision::kFp8};
    return linear(block_context(best, plan), {.m = 8192, .n = 4096, .k = 4096}, plan.precision)
        .backward_total_s();
  };
  CHECK(backward_s(2) == backward_s(1));
}

TEST_CASE("without measured rates there is no limit") {
  Job job = job_of_one_gpu();
  job.cluster.gpu.times.reset();
  CHECK_FALSE(without_losses(job).has_value());
}

TEST_CASE("no plan is estimated below its limit, for every profile, schedule and kind of link") {
  RandomJobs random(Library(), 21);
  std::int64_t below = 0;
  for (int i = 0; i < 4000; ++i) {
    RandomCase drawn = random.next();
    drawn.job.cluster.nvlink_domain = i % 2 == 0 ? 8 : 2;
    drawn.job = i % 4 < 2 ? drawn.job : with_measured_copies(drawn.job);
    const double estimate_s = estimate_step_time(drawn.job, drawn.plan).total_s;
    below += limit_s(drawn.job, drawn.plan) <= (1 + 1e-9) * estimate_s ? 0 : 1;
  }
  CHECK(below == 0);
}

TEST_CASE("no measured step of our trainer is faster than its limit, and none is far from it") {
  const Library library;
  const std::string path =
      std::string(SHARDPLAN_SOURCE_DIR) + "/data/measured/native_steps_h200.jsonl";
  std::ifstream lines(path);
  std::int64_t rows = 0;
  for (std::string line; std::getline(lines, line); ++rows) {
    const Case row = read_case(line, path, library);
    CAPTURE(row.id);
    REQUIRE(row.measured.has_value());
    const double fastest_s = std::ranges::min(row.measured->step_times_s);
    const double share = limit_s(row.job, row.plan) / fastest_s;
    CHECK(share < 1);
    CHECK(share > 0.75);
  }
  CHECK(rows == 65);
}

}  // namespace
}  // namespace shardplan
