#include "search/space/space.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "search/space/default_space.h"
#include "tests/search/jobs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

namespace shardplan {

TEST_CASE("the plans of a space are its product, and dp alone may be left out") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20; ++round) {
    const Job job = random_small_job(random);
    SearchSpace values = random_small_space(job, random);
    values.uneven_layers = false;
    values.dp.clear();
    const PlanSpace space = plan_space(job, values);
    const std::size_t product =
        values.tp.size() * values.cp.size() * values.ep.size() * values.etp.size() *
        values.pp.size() * values.vpp.size() * values.dp_replicate.size() * values.zero.size() *
        values.micro_batch.size() * values.sequence_parallel.size() * values.schedule.size() *
        values.cp_method.size() * values.recompute.size() * values.precision.size() *
        values.grad_dtype.size() * values.rank_order.size() * values.moe_buffer_factor.size() *
        values.master_dtype.size() * values.exp_avg_dtype.size() * values.exp_avg_sq_dtype.size() *
        values.offload.size();
    CHECK(num_plans(space) == static_cast<std::int64_t>(product));
  }
}

TEST_CASE("a dp axis multiplies the space") {
  const Job job = llama_8b_job();
  SearchSpace values = default_space(job);
  const std::int64_t without = num_plans(plan_space(job, values));
  values.dp = {1, 2, 4};
  CHECK(num_plans(plan_space(job, values)) == 3 * without);
}

TEST_CASE("a space whose plans do not fit 64 bits is uncountable, and is not searched") {
  const Job job = llama_8b_job();
  SearchSpace values = wide_space(job);
  values.dp.assign(4096, 1);
  values.micro_batch.assign(4096, 1);
  values.tp.assign(4096, 1);
  values.cp.assign(4096, 1);
  values.ep.assign(4096, 1);
  CHECK(num_plans(plan_space(job, values)) == kUncountable);
  CHECK_THROWS_AS(search_plans(job, values, {}), std::logic_error);
}

TEST_CASE("126 layers on 16 stages: 128 slots, the first and the last stage one layer short") {
  const Job job = llama_405b_job(2048);
  SearchSpace values = default_space(job);
  values.pp = {16};
  values.vpp = {1, 2, 8};
  const PlanSpace space = plan_space(job, values);
  REQUIRE(space.splits.size() == 6);  // the even one, which the rules refuse, and one more, each
  CHECK(space.splits[0].layers_per_chunk.empty());
  const std::vector<std::int64_t>& stages = space.splits[1].layers_per_chunk;
  REQUIRE(stages.size() == 16);
  CHECK(stages.front() == 7);
  CHECK(stages[1] == 8);
  CHECK(stages.back() == 7);
  for (const StageSplit& split : space.splits) {
    const std::vector<std::int64_t>& layers = split.layers_per_chunk;
    CHECK((layers.empty() || std::reduce(layers.begin(), layers.end()) == 126));
  }
}

TEST_CASE("where the layers divide, or uneven splits are off, there are even splits only") {
  Job job = llama_405b_job(2048);
  SearchSpace values = default_space(job);
  values.pp = {2, 3, 6, 9};
  values.vpp = {1, 7};
  CHECK(plan_space(job, values).splits.size() == 8);
  values.pp = {16};
  values.uneven_layers = false;
  CHECK(plan_space(job, values).splits.size() == 2);
}

TEST_CASE("one layer more or less than the stages can share goes to one end of the model") {
  Job job = llama_8b_job();
  job.model.layers.resize(7);
  SearchSpace values = default_space(job);
  values.pp = {4};
  values.vpp = {1};
  const PlanSpace space = plan_space(job, values);
  REQUIRE(space.splits.size() == 3);
  CHECK(space.splits[1].layers_per_chunk == std::vector<std::int64_t>{1, 2, 2, 2});
  CHECK(space.splits[2].layers_per_chunk == std::vector<std::int64_t>{2, 2, 2, 1});
}

TEST_CASE("DeepSeek-V3's 61 layers find a place on 8 and 16 stages and on 32 chunks") {
  using Splits = std::vector<std::vector<std::int64_t>>;
  CHECK(uneven_splits(61, 8, 1) == Splits{{6, 8, 8, 8, 8, 8, 8, 7}, {7, 8, 8, 8, 8, 8, 8, 6}});
  CHECK(uneven_splits(61, 16, 1).size() == 2);
  CHECK(uneven_splits(61, 16, 2).size() == 2);
  CHECK(uneven_splits(61, 64, 1).empty());  // more stages than layers
  CHECK(uneven_splits(61, 61, 1).empty());  // divides
}

TEST_CASE("any number of stages up to the layers has a split, light where the work or memory is") {
  using Splits = std::vector<std::vector<std::int64_t>>;
  CHECK(uneven_splits(61, 12, 1) == Splits{{5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 5}});
  CHECK(uneven_splits(61, 6, 2).empty());  // chunks of interleaving
  for (std::int64_t layers = 1; layers <= 130; ++layers) {
    for (std::int64_t chunks = 2; chunks <= 130; ++chunks) {
      const Splits splits = uneven_splits(layers, chunks, 1);
      if (layers % chunks != 0 && chunks <= layers) {
        REQUIRE_FALSE(splits.empty());
      }
      for (const std::vector<std::int64_t>& split : splits) {
        const std::int64_t most = (layers + chunks - 1) / chunks;
        const bool holds = std::reduce(split.begin(), split.end()) == layers &&
                           std::ssize(split) == chunks && std::ranges::min(split) >= 0 &&
                           std::ranges::max(split) == most && layers % chunks != 0 &&
                           std::all_of(split.begin() + 1, split.end() - 1, [&](auto middle) {
                             return middle == most || middle == most - 1;
                           });
        REQUIRE(holds);
      }
    }
  }
}

TEST_CASE("the default space of a 405B model on 16,384 GPUs holds what was published for it") {
  // arXiv 2407.21783 table 4: tp 8, cp 1, pp 16, dp 128; and tp 8, cp 16, pp 16, dp 8 for 131,072
  // tokens.
  Job job = llama_405b_job(2048);
  SearchSpace space = default_space(job);
  CHECK(space.tp == std::vector<std::int64_t>{1, 2, 4, 8});
  CHECK(space.cp == std::vector<std::int64_t>{1, 2, 4, 8});
  CHECK(space.pp == std::vector<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 128});
  CHECK(std::ranges::count(space.vpp, 8) == 1);
  CHECK(space.ep == std::vector<std::int64_t>{1});
  job.sequence_length = 131072;
  job.global_batch = 128;
  space = default_space(job);
  CHECK(std::ranges::count(space.cp, 16) == 1);
  CHECK(space.micro_batch == std::vector<std::int64_t>{1});
}

TEST_CASE("a micro-batch has at most 32 sequences and 131,072 tokens, but always one sequence") {
  Job job = llama_8b_job();
  const auto largest = [&](std::int64_t sequence_length) {
    job.sequence_length = sequence_length;
    return default_space(job).micro_batch.back();
  };
  CHECK(largest(1024) == 32);
  CHECK(largest(8192) == 16);
  CHECK(largest(131072) == 1);
  CHECK(largest(262144) == 1);
}

TEST_CASE("experts, and only experts, open the axes of expert parallelism") {
  Job job = llama_8b_job();
  CHECK(default_space(job).etp == std::vector<std::int64_t>{1});
  job.model.moe = {.num_experts = 6,
                   .topk = 2,
                   .expert_ffn = 1024,
                   .shared_ffn = 0,
                   .shared_gate = false,
                   .router_bias = false};
  CHECK(default_space(job).ep == std::vector<std::int64_t>{1, 2});
  CHECK(default_space(job).etp == std::vector<std::int64_t>{1, 2, 4, 8});
}

TEST_CASE("recomputation of norms is a choice only where a norm is not part of a linear layer") {
  const auto recomputes_norms = [](const Recompute& choice) { return choice.modules.layernorm; };
  Job job = llama_8b_job();
  CHECK(std::ranges::none_of(default_space(job).recompute, recomputes_norms));
  CHECK(std::ranges::none_of(wide_space(job).recompute, recomputes_norms));
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 1024};
  job.model.layers.back().is_moe = true;
  CHECK(std::ranges::any_of(default_space(job).recompute, recomputes_norms));
  CHECK(std::ranges::any_of(wide_space(job).recompute, recomputes_norms));
}

TEST_CASE("each profile's default space has the values that it models, its own default first") {
  Job job = llama_8b_job();
  set_framework(job.profile, MemoryModel::kMegatron);
  const SearchSpace megatron = default_space(job);
  CHECK(megatron.zero == std::vector<std::int64_t>{1, 0});
  CHECK(megatron.schedule ==
        std::vector<Schedule>{Schedule::kNone, Schedule::k1F1B, Schedule::kInterleaved1F1B});
  CHECK(megatron.dp_replicate == std::vector<std::int64_t>{1});

  set_framework(job.profile, MemoryModel::kNative);
  job.profile.default_zero = 3;
  job.profile.default_cp_method = CpMethod::kA2a;
  job.cluster.nodes = 4;
  const SearchSpace native = default_space(job);
  CHECK(native.zero == std::vector<std::int64_t>{3, 0, 1, 2});
  CHECK(native.cp_method.front() == CpMethod::kA2a);
  CHECK(native.cp_method.size() == 3);
  CHECK(native.dp_replicate == std::vector<std::int64_t>{1, 4});
  CHECK(std::ranges::count(native.schedule, Schedule::kZbv) == 1);

  set_framework(job.profile, MemoryModel::kTorchtitan);
  CHECK(default_space(job).dp_replicate == std::vector<std::int64_t>{1, 2, 4, 32});

  // DDP, FSDP2 with and without gathering again, and replicas of nodes.
  set_framework(job.profile, MemoryModel::kTransformers);
  const SearchSpace trainer = default_space(job);
  CHECK(trainer.zero == std::vector<std::int64_t>{3, 0, 2});
  CHECK(trainer.dp_replicate == std::vector<std::int64_t>{1, 4});
  CHECK(wide_space(job).dp_replicate == std::vector<std::int64_t>{1, 2, 4});
  CHECK(trainer.recompute.size() == 2);
  CHECK(wide_space(job).offload ==
        std::vector<Offload>{{},
                             {.activations = true},
                             {.optimizer = 1, .parameters = true},
                             {.optimizer = 1, .activations = true, .parameters = true}});

  set_framework(job.profile, MemoryModel::kFujii2024);
  const SearchSpace fujii = default_space(job);
  CHECK(fujii.recompute == std::vector<Recompute>{Recompute{}});
}

TEST_CASE("a job that the profile cannot model keeps its space, so that the answer can say why") {
  Job job = llama_8b_job();
  const std::int64_t plans = num_plans(plan_space(job, default_space(job)));
  job.adapters = kDefaultAdapters;
  CHECK(num_plans(plan_space(job, default_space(job))) == plans);
}

}  // namespace shardplan
