// Searches under frameworks whose runs are those of a trainer: transformers on 1 to 64 GPUs, whole
// models and adapters, and torchtitan's replicas.
#include <doctest/doctest.h>

#include <algorithm>

#include "data/read/library.h"
#include "estimator/answer/why_invalid.h"
#include "search/space/default_space.h"
#include "search/walk/search.h"
#include "tests/search/jobs.h"
#include "tests/search/results.h"

namespace shardplan {
namespace {

// Llama 3 8B in bf16 under mixed precision, on nodes of eight H200 or on fewer.
Job trainer_job(std::int64_t gpus, std::string_view framework = "transformers") {
  static const Library library;
  Job job = llama_8b_job();
  job.profile = library.profile(std::string(framework)).profile;
  job.cluster.gpus_per_node = std::min<std::int64_t>(8, gpus);
  job.cluster.nodes = gpus / job.cluster.gpus_per_node;
  job.cluster.nvlink_domain = job.cluster.gpus_per_node;
  job.global_batch = 64;
  job.sequence_length = 4096;
  return job;
}

Job with_adapters(Job job) {
  job.adapters.rank = 16;
  job.adapters.targets.fill(true);
  return job;
}

bool is_searched(const Job& job, const Plan& plan) {
  SearchSpace space = default_space(job);
  space.tp = {plan.tp};
  space.cp = {plan.cp};
  space.pp = {plan.pp};
  space.micro_batch = {plan.micro_batch};
  if (std::ranges::find(space.zero, plan.zero) == space.zero.end() ||
      std::ranges::find(space.dp_replicate, plan.dp_replicate) == space.dp_replicate.end()) {
    return false;
  }
  space.zero = {plan.zero};
  space.dp_replicate = {plan.dp_replicate};
  return search_plans(job, space, {.top = 1}).plans_distinct > 0;
}

}  // namespace

TEST_CASE("a search over a trainer's plans counts all of them, on 1 to 64 GPUs") {
  for (const std::int64_t gpus : {1, 2, 4, 8, 16, 32, 64}) {
    CAPTURE(gpus);
    const Job whole = trainer_job(gpus);
    const Job adapted = with_adapters(whole);
    const SearchSpace space = default_space(whole);
    const SearchOptions options = {.top = 3, .cuts = Cuts::kNone};
    const SearchResult of_whole = search_plans(whole, space, options);
    const SearchResult of_adapted = search_plans(adapted, space, options);
    CHECK(total(of_whole) == of_whole.plans_in_space);
    CHECK(total(of_adapted) == of_adapted.plans_in_space);
    CHECK_FALSE(of_adapted.top.empty());
    for (const RankedPlan& ranked : of_adapted.top) {
      CHECK_FALSE(why_invalid(adapted, ranked.plan));
      const std::int64_t sequences = data_parallel_size(adapted, ranked.plan) *
                                     ranked.plan.micro_batch *
                                     num_microbatches(adapted, ranked.plan);
      CHECK(sequences == adapted.global_batch);
    }
    CHECK(of_whole.plans_fitting <= of_adapted.plans_fitting);
  }
}

// 6 bytes a parameter, and two more for gradients and for buckets, beside activations.
TEST_CASE("whole models are sharded where one GPU holds no more than adapters") {
  Job job = trainer_job(8);
  job.profile.weights_dtype = DType::kFp32;
  const SearchOptions options = {.top = 1};
  const SearchSpace space = default_space(job);
  const auto fitting_by_ddp = [&](const Job& of) {
    SearchSpace ddp = space;
    ddp.zero = {0};
    ddp.tp = {1};
    return search_plans(of, ddp, options).plans_fitting;
  };
  CHECK(fitting_by_ddp(job) == 0);
  CHECK(fitting_by_ddp(with_adapters(job)) > 0);
  const SearchResult found = search_plans(job, space, options);
  REQUIRE_FALSE(found.top.empty());
  CHECK(found.top.front().plan.zero >= 2);
}

TEST_CASE("sequences that no rank holds alone are divided") {
  Job job = trainer_job(8);
  job.model.num_kv_heads = 8;
  job.sequence_length = 262144;
  job.global_batch = 8;
  const SearchOptions options = {.top = 1};
  SearchSpace space = default_space(job);
  const SearchResult divided = search_plans(job, space, options);
  space.cp = {1};
  CHECK(search_plans(job, space, options).plans_fitting == 0);
  REQUIRE_FALSE(divided.top.empty());
  CHECK(divided.top.front().plan.cp > 1);
  CHECK(divided.top.front().plan.cp_method == CpMethod::kA2a);
}

TEST_CASE("the host holds what GPUs do not, where offload is asked for") {
  Job job = trainer_job(2);
  job.cluster.memory_limit_bytes = 48 * kGiB;
  SearchSpace space = default_space(job);
  const SearchOptions options = {.top = 1};
  CHECK(search_plans(job, space, options).plans_fitting == 0);
  space.offload = wide_space(job).offload;
  const SearchResult found = search_plans(job, space, options);
  REQUIRE_FALSE(found.top.empty());
  const Offload& offload = found.top.front().plan.offload;
  CHECK(offload.optimizer == 1);
  CHECK(offload.parameters);
}

// Between nodes shards of a quarter are summed, in place of whole layers that are gathered.
TEST_CASE("replicas of sharded nodes are faster where the network between nodes is slow") {
  Job job = trainer_job(32);
  job.cluster.inter_node_bytes_per_s = 1e9;
  const SearchResult found = search_plans(job, default_space(job), {.top = 1});
  REQUIRE_FALSE(found.top.empty());
  CHECK(found.top.front().plan.zero >= 2);
  CHECK(found.top.front().plan.dp_replicate == 4);
}

TEST_CASE("torchtitan's DDP is among the plans of one node and of several") {
  for (const std::int64_t gpus : {8, 32}) {
    const Job job = trainer_job(gpus, "torchtitan");
    CHECK(is_searched(job, {.dp_replicate = gpus, .zero = 0}));
    CHECK(is_searched(job, {.zero = 3}));
    CHECK_FALSE(is_searched(job, {.zero = 0}));
    CHECK_FALSE(is_searched(job, {.dp_replicate = gpus, .zero = 3}));
  }
}

}  // namespace shardplan
