// Which layers lie where.
#include "estimator/plan/layer_partition.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

Job job_with_layers(std::size_t layers) {
  Job job;
  set_framework(job.profile, MemoryModel::kMegatron);
  job.model.layers.resize(layers);
  return job;
}

using Counts = std::vector<std::int64_t>;

Plan plan_with_layers(std::int64_t pp, const Counts& layers) {
  Plan plan;
  plan.pp = pp;
  plan.schedule = Schedule::k1F1B;
  plan.layers_per_chunk = layers;
  return plan;
}

TEST_CASE("layers are split evenly or not at all") {
  CHECK(layers_per_chunk(job_with_layers(32), {.pp = 4, .schedule = Schedule::k1F1B}) ==
        Counts{8, 8, 8, 8});
  CHECK(layers_per_chunk(job_with_layers(30), {.pp = 4, .schedule = Schedule::k1F1B}).empty());
  CHECK_THROWS_AS(partition_layers(job_with_layers(30), {.pp = 4, .schedule = Schedule::k1F1B}),
                  std::logic_error);
}

TEST_CASE("Llama 3.1 405B runs its 126 layers on 8 stages of 8 chunks by counting both ends") {
  Job job = job_with_layers(126);
  const Plan plan = {.pp = 8, .vpp = 8, .schedule = Schedule::kInterleaved1F1B};
  CHECK(layers_per_chunk(job, plan).empty());
  job.profile.account_for_embedding_in_split = true;
  job.profile.account_for_loss_in_split = true;
  const Counts layers = layers_per_chunk(job, plan);
  REQUIRE(layers.size() == 64);
  CHECK(layers.front() == 1);
  CHECK(layers.back() == 1);
  CHECK(layers[1] == 2);
  CHECK(layers[62] == 2);
}

// distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part.
TEST_CASE("torchtitan's first chunks take what is left over, and its ends count as layers") {
  Job job = job_with_layers(10);
  set_framework(job.profile, MemoryModel::kTorchtitan);
  const Plan plan = {.pp = 4, .schedule = Schedule::k1F1B};
  CHECK(layers_per_chunk(job, plan) == Counts{3, 3, 2, 2});
  job.profile.account_for_embedding_in_split = true;
  job.profile.account_for_loss_in_split = true;
  CHECK(layers_per_chunk(job, plan) == Counts{2, 3, 3, 2});
  CHECK(layers_per_chunk(job, {}) == Counts{10});
}

TEST_CASE("an explicit list is taken as written if it holds every layer") {
  const Job job = job_with_layers(8);
  const LayerPartition partition = partition_layers(job, plan_with_layers(4, {1, 2, 3, 2}));
  CHECK(partition.chunks[2].first_layer == 3);
  CHECK(partition.chunks[2].num_layers == 3);
  CHECK(partition.chunks[0].has_embedding);
  CHECK_FALSE(partition.chunks[0].has_head);
  CHECK(partition.chunks[3].has_head);
  CHECK(layers_per_chunk(job, plan_with_layers(4, {1, 2, 3, 3})).empty());
  CHECK(layers_per_chunk(job, plan_with_layers(4, {4, 4})).empty());
  CHECK(layers_per_chunk(job, plan_with_layers(2, {9, -1})).empty());
}

TEST_CASE("interleaving loops over the ranks, the V goes up and down again") {
  const Plan looping = {.pp = 4, .vpp = 2, .schedule = Schedule::kInterleaved1F1B};
  const Plan v = {.pp = 4, .vpp = 2, .schedule = Schedule::kZbv};
  const Counts looping_ranks = {0, 1, 2, 3, 0, 1, 2, 3};
  const Counts v_ranks = {0, 1, 2, 3, 3, 2, 1, 0};
  for (std::int64_t position = 0; position < 8; ++position) {
    CHECK(pp_rank_of_chunk(looping, position) == looping_ranks[static_cast<std::size_t>(position)]);
    CHECK(pp_rank_of_chunk(v, position) == v_ranks[static_cast<std::size_t>(position)]);
    for (const Plan& plan : {looping, v}) {
      CHECK(position_of_chunk(plan, pp_rank_of_chunk(plan, position),
                              local_chunk_of(plan, position)) == position);
    }
  }
}

}  // namespace
}  // namespace shardplan
