// Optimizers of programs around the Trainer: states and temporaries by hand, as their steps made
// them on a CPU (peak bytes of live tensors under a dispatch mode), beside cuSOLVER's copy of a
// matrix.
#include "estimator/frameworks/transformers/program_optimizers.h"

#include <doctest/doctest.h>

#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kRank = 64;
// Elements of a layer's projected gradients, the rank by each matrix's larger side: q, k, v and o
// 512, gate, up and down 1024; and of their projections, by the smaller one: k and v 256.
constexpr std::int64_t kLowRank = kRank * (4 * 512 + 3 * 1024);
constexpr std::int64_t kProjections = kRank * (5 * 512 + 2 * 256);
constexpr std::int64_t kEnds = 2 * kSmallTable + 5 * 512;  // tables and norms
constexpr std::int64_t kFfnWeight = 512 * 1024;

Job job_of(OptimizerKind optimizer, DType dtype) {
  Job job = small_trainer_job(1);
  job.profile.weights_dtype = dtype;
  job.optimizer = optimizer;
  job.profile.projection_rank = kRank;
  return job;
}

std::int64_t temporaries(const Job& job) {
  return most_bytes(job, trainer_plan(0), MomentKind::kOptimizer, "optimizer.temporaries");
}

TEST_CASE("GaLore and APOLLO have moments of projected gradients, and their projections") {
  for (const OptimizerKind kind : {OptimizerKind::kGaLore, OptimizerKind::kApollo}) {
    const Job job = job_of(kind, DType::kBf16);
    const Plan plan = trainer_plan(0);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 2 * (2 * kLowRank + kEnds));
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") == 2 * (2 * kLowRank + kEnds));
    CHECK(idle_bytes(job, plan, "optimizer.projections") == 2 * 2 * kProjections);
  }
}

// A projection is a view of V of a matrix with as many rows as columns or more, else of U: of q, o,
// gate, up and down 512 * 512 numbers, of k and v 256 * 256.
TEST_CASE("GaLore's projections of fp32 keep all singular vectors of the smaller side") {
  const Job galore = job_of(OptimizerKind::kGaLore, DType::kFp32);
  CHECK(idle_bytes(galore, trainer_plan(0), "optimizer.projections") ==
        4 * 2 * (5 * 512 * 512 + 2 * 256 * 256));
  const Job apollo = job_of(OptimizerKind::kApollo, DType::kFp32);
  CHECK(idle_bytes(apollo, trainer_plan(0), "optimizer.projections") == 4 * 2 * kProjections);
}

// Of down, [512, 1024], behind up: in fp32 the matrix, U [512, 512], V and the copy that cuSOLVER
// overwrites, 512 singular values; of up in bf16 the root of the projected moment and the update.
TEST_CASE("GaLore's step is fullest at a singular value decomposition") {
  const Job job = job_of(OptimizerKind::kGaLore, DType::kBf16);
  CHECK(temporaries(job) ==
        4 * (3 * kFfnWeight + 512 * 512 + 512) + 2 * (kRank * 1024 + kFfnWeight));
  Job first = job;
  first.profile.optimizer_steps = OptimizerSteps::kMatricesFirst;
  CHECK(temporaries(first) == temporaries(job));
  Job alone = job;
  alone.profile.optimizer_steps = OptimizerSteps::kOneByOne;
  CHECK(temporaries(alone) == 4 * (3 * kFfnWeight + 512 * 512 + 512));
}

// Of down behind up: in fp32 the matrix, and random numbers before and behind their division; in
// bf16 the root of the projected moment, the scaled gradient and a factor of each channel.
TEST_CASE("APOLLO's step is fullest as random projections are drawn") {
  CHECK(temporaries(job_of(OptimizerKind::kApollo, DType::kBf16)) ==
        4 * (kFfnWeight + 2 * kRank * 512) + 2 * (kRank * 1024 + kFfnWeight + 1024));
}

TEST_CASE("an optimizer that steps in the backward pass never meets two gradients of layers") {
  for (const OptimizerKind kind : {OptimizerKind::kGaLore, OptimizerKind::kApollo}) {
    Job job = job_of(kind, DType::kBf16);
    const Plan plan = trainer_plan(0);
    const auto gradients = [&] {
      return most_bytes(job, plan, MomentKind::kLossBackward, "gradients.of_weights");
    };
    CHECK(gradients() == 2 * (kSmallModel - 5 * 512));  // norms have theirs in a row of their own
    job.profile.optimizer_steps = OptimizerSteps::kInBackward;
    CHECK(gradients() == 2 * kSmallTable);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 2 * (2 * kLowRank + kEnds));
    CHECK(temporaries(job) == 0);
  }
}

// A second moment for each of 8 heads of q and 4 of k, each row of other matrices (v 256, o 512,
// gate and up 1024, down 512) and of tables, and each norm.
TEST_CASE("Adam-mini has second moments of heads, rows and vectors") {
  const Job job = job_of(OptimizerKind::kAdamMini, DType::kFp32);
  const Plan plan = trainer_plan(0);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") ==
        4 * (2 * (8 + 4 + 256 + 512 + 2 * 1024 + 512 + 2) + 2 * 1024 + 1));
}

// Of up behind gate: squares and the update before; four numbers of each row.
TEST_CASE("Adam-mini's step squares a gradient beside the update before it") {
  CHECK(temporaries(job_of(OptimizerKind::kAdamMini, DType::kFp32)) ==
        4 * (2 * kFfnWeight + 4 * 1024));
}

TEST_CASE("Adam-mini keeps both moments of biases") {
  Job job = job_of(OptimizerKind::kAdamMini, DType::kFp32);
  const Plan plan = trainer_plan(0);
  const std::int64_t without = idle_bytes(job, plan, "optimizer.exp_avg_sq");
  job.model.family = "qwen2";
  job.model.qkv_bias = true;
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") == without + 4 * 2 * (512 + 256 + 256));
}

TEST_CASE("BAdam has one block in fp32 beside the weights, with its moments and gradients") {
  Job job = job_of(OptimizerKind::kBAdam, DType::kBf16);
  job.name_rules = {{.pattern = ""}, {.pattern = R"(\.layers\.0\.)", .trains = true}};
  const Plan plan = trainer_plan(0);
  CHECK(idle_bytes(job, plan, "parameters") == 2 * kSmallModel);
  CHECK(idle_bytes(job, plan, "parameters.master") == 4 * kSmallLayer);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallLayer);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") == 4 * kSmallLayer);
  CHECK(most_bytes(job, plan, MomentKind::kOptimizer, "gradients") == 4 * kSmallLayer);
}

// The moment becomes orthogonal: in bf16 two squares of 512 and four matrices, beside the one
// before and its update.
TEST_CASE("MuonClip has one moment, and orthogonalizes it by operators one after the other") {
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    const Job job = job_of(OptimizerKind::kMuonClip, dtype);
    const std::int64_t bytes = bytes_of(dtype);
    CHECK(idle_bytes(job, trainer_plan(0), "optimizer.exp_avg") == bytes * kSmallModel);
    CHECK(idle_bytes(job, trainer_plan(0), "optimizer.exp_avg_sq") == 0);
    CHECK(temporaries(job) == 2 * (2 * 512 * 512 + 4 * kFfnWeight) + 2 * bytes * kFfnWeight);
  }
}

TEST_CASE("optimizers of programs are refused where programs refuse them, or they were not read") {
  Job job = small_trainer_job(8);
  job.global_batch = 64;
  const auto galore = [](Job& changed) { changed.optimizer = OptimizerKind::kGaLore; };
  check_refused(job,
                {{"unsupported: optimizers of programs",
                  [&](Job& changed, Plan& plan) {
                    galore(changed);
                    plan.zero = 3;
                  },
                  {"galore with zero 3", "zero 0"}},
                 {"unsupported: optimizers of programs",
                  [&](Job& changed, Plan&) {
                    galore(changed);
                    changed.adapters = kDefaultAdapters;
                  },
                  {"galore with adapters"}},
                 {"unsupported: optimizers of programs",
                  [&](Job& changed, Plan&) {
                    galore(changed);
                    changed.model.family = "lfm2";
                    changed.model.layers.front().mixer = MixerKind::kShortConvolution;
                  },
                  {"galore with mixers"}},
                 {"steps_in_backward_see_one_microbatch",
                  [&](Job& changed, Plan&) {
                    galore(changed);
                    changed.profile.optimizer_steps = OptimizerSteps::kInBackward;
                  },
                  {"8 GPUs", "optimizer_steps together"}},
                 {"badam_runs_on_one_gpu",
                  [](Job& changed, Plan&) { changed.optimizer = OptimizerKind::kBAdam; },
                  {"8 GPUs", "one GPU"}},
                 {"adam_mini_divides_keys_by_heads",
                  [](Job& changed, Plan&) {
                    changed.optimizer = OptimizerKind::kAdamMini;
                    changed.model.num_heads = 6;
                  },
                  {"131072 elements", "43690"}}},
                trainer_plan(0));
}

}  // namespace
}  // namespace shardplan::transformers
