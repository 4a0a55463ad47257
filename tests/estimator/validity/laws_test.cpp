// What holds for every plan, valid or not.
#include <doctest/doctest.h>

#include <random>

#include "estimator/answer/why_invalid.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/layer_partition.h"
#include "tests/allocation_count.h"
#include "tests/estimator/broken_plans.h"

using namespace shardplan;

namespace {

struct RandomPlans {
  std::mt19937_64 random{20240917};

  std::int64_t pick(std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  }

  Job job() {
    const MemoryModel model = random() % 2 == 0 ? MemoryModel::kMegatron : MemoryModel::kNative;
    Job job = random() % 2 == 0 ? dense_job(model) : moe_job(model);
    job.model.layers.resize(static_cast<std::size_t>(pick({24, 30, 32, 126})));
    job.model.num_kv_heads = pick({1, 2, 8, 32});
    job.cluster.nodes = pick({1, 2, 3, 16});
    job.sequence_length = pick({4096, 6000, 8192});
    job.global_batch = pick({48, 64, 1024, 1536});
    return job;
  }

  Plan plan() {
    Plan plan;
    plan.tp = pick({1, 1, 2, 4, 8, 3});
    plan.cp = pick({1, 1, 1, 2, 4, 5});
    plan.pp = pick({1, 1, 2, 4, 8, 6});
    plan.vpp = pick({1, 1, 1, 2, 4});
    plan.ep = pick({1, 1, 2, 8});
    plan.etp = pick({1, 1, 1, 2});
    plan.zero = pick({0, 1, 1, 2});
    plan.dp_replicate = pick({1, 1, 1, 2});
    plan.micro_batch = pick({1, 1, 2, 3});
    plan.sequence_parallel = plan.tp > 1 && random() % 2 == 0;
    plan.schedule = plan.pp == 1    ? Schedule::kNone
                    : plan.vpp == 1 ? Schedule::k1F1B
                                    : Schedule::kInterleaved1F1B;
    plan.cp_method = random() % 2 == 0 ? CpMethod::kRing : CpMethod::kA2a;
    return plan;
  }
};

}  // namespace

TEST_CASE("every derived size of a valid plan divides exactly, and invalid plans have a message") {
  RandomPlans plans;
  std::int64_t valid = 0;
  std::int64_t without_message = 0;
  for (std::int64_t trial = 0; trial < 40'000; ++trial) {
    const Job job = plans.job();
    const Plan plan = plans.plan();
    if (const std::optional<InvalidReason> reason = why_invalid(job, plan)) {
      without_message += reason->message.empty() || reason->message.find('\n') != std::string::npos;
      continue;
    }
    ++valid;
    // job.h: each of these throws where a division leaves a remainder.
    const std::int64_t dp = data_parallel_size(job, plan);
    REQUIRE(num_microbatches(job, plan) * plan.micro_batch * dp == job.global_batch);
    REQUIRE(tokens_per_microbatch(job, plan) * plan.cp == job.sequence_length * plan.micro_batch);
    REQUIRE(dense_shard_size(job, plan) * plan.dp_replicate == dp * plan.cp);
    REQUIRE(expert_shard_size(job, plan) >= 1);
    REQUIRE(static_cast<std::int64_t>(partition_layers(job, plan).chunks.size()) ==
            plan.pp * plan.vpp);
  }
  CHECK(without_message == 0);
  CHECK(valid > 2'000);
}

TEST_CASE("asking for the first broken rule allocates nothing") {
  RandomPlans plans;
  std::vector<Job> jobs;
  std::vector<Plan> candidates;
  for (std::int64_t trial = 0; trial < 1000; ++trial) {
    jobs.push_back(plans.job());
    candidates.push_back(plans.plan());
  }
  const std::int64_t before = allocation_count();
  std::int64_t broken = 0;
  for (std::size_t trial = 0; trial < jobs.size(); ++trial) {
    broken += first_broken_rule(jobs[trial], candidates[trial]) != nullptr;
  }
  CHECK(allocation_count() == before);
  CHECK(broken > 0);
}
