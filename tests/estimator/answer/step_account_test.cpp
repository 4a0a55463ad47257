// The account of a step: nothing left over, nothing counted twice.
#include "estimator/answer/step_account.h"

#include <doctest/doctest.h>

#include <cmath>

#include "estimator/estimate.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

double visible_s(const StepAccount& account) {
  double sum = 0;
  for (const AccountRow& row : account.rows) { sum += row.visible_s; }
  return sum;
}

TEST_CASE("what the rows of a step show adds up to its time, for every profile and schedule") {
  RandomJobs random(Library(), 12);
  std::int64_t failures = 0;
  for (int i = 0; i < 2000; ++i) {
    const RandomCase drawn = random.next();
    const StepAccount account = step_account(drawn.job, drawn.plan);
    const double total_s = estimate_step_time(drawn.job, drawn.plan).total_s;
    failures += account.total_s == total_s ? 0 : 1;
    failures += std::abs(visible_s(account) - total_s) <= 1e-9 * total_s ? 0 : 1;
    for (const AccountRow& row : account.rows) {
      failures += row.visible_s >= 0 && row.hidden_s >= 0 && row.count > 0 ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

const AccountRow* find(const StepAccount& account, const std::string& block,
                       const std::string& direction, const std::string& operation) {
  for (const AccountRow& row : account.rows) {
    if (row.block == block && row.direction == direction && row.operation == operation) {
      return &row;
    }
  }
  return nullptr;
}

// Llama-3-8B, 8192 tokens, tp 2 and pp 2 of 8 GPUs: 16 layers a stage, 4 microbatches.
struct Example {
  explicit Example(const char* framework, const char* cluster) {
    const Library library;
    job = {.model = library.model("llama3-8b").model,
           .cluster = library.cluster(cluster),
           .profile = library.framework(framework),
           .sequence_length = 8192,
           .global_batch = 8};
    plan.tp = 2;
    plan.pp = 2;
    plan.schedule = Schedule::k1F1B;
    plan.sequence_parallel = true;
  }
  Job job;
  Plan plan;
};

TEST_CASE("products are named by their shapes and counted by layers and microbatches") {
  const Example example("native", "1x8-h200");
  const StepAccount account = step_account(example.job, example.plan);
  // Queries of 16 heads and keys and values of 4 each, 128 wide; 16 layers of 4 microbatches.
  const AccountRow* qkv =
      find(account, "dense layer", "forward", "projections: product 8192x3072x4096");
  REQUIRE(qkv != nullptr);
  CHECK(qkv->count == 16 * 4);
  CHECK(qkv->basis == TimeBasis::kMeasured);
  const double flops = 2.0 * 8192 * 3072 * 4096;
  CHECK(qkv->visible_s > 64 * flops / 989.4e12);
  CHECK(qkv->visible_s < 2 * 64 * flops / 989.4e12);
  CHECK(find(account, "dense layer", "weight gradient", "projections: product 8192x3072x4096"));
  CHECK(find(account, "dense layer", "backward", "attention: attention"));
  CHECK(find(account, "dense layer", "forward", "ffn: tp communication"));
  CHECK(find(account, "step", "", "optimizer"));
  CHECK(find(account, "step", "", "bubble of the pipeline"));
}

TEST_CASE("the kinds of a step add up to it, too") {
  const Example example("native", "1x8-h200");
  const StepAccount account = step_account(example.job, example.plan);
  double sum_s = 0;
  for (const AccountRow& row : by_kind(account)) { sum_s += row.visible_s; }
  CHECK(sum_s == doctest::Approx(account.total_s).epsilon(1e-9));
  CHECK(by_kind(account).size() < account.rows.size() / 2);
}

TEST_CASE("a GPU that nobody has measured is told from its datasheet") {
  const Example example("native", "1x8-b200");
  for (const AccountRow& row : step_account(example.job, example.plan).rows) {
    CHECK(row.basis != TimeBasis::kMeasured);
  }
}

}  // namespace
}  // namespace shardplan
