// FSDP2's collectives.
#include "estimator/frameworks/torchtitan/update.h"
#include "estimator/frameworks/pieces/memory_model.h"

#include <doctest/doctest.h>

#include "tests/estimator/llama_job.h"
#include "tests/estimator/rank_updates.h"
#include "tests/measured_host.h"

namespace shardplan::torchtitan {
namespace {

TEST_CASE("FSDP2 pays the steps of its rings for every layer, ZeRO 1 once for all") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  const auto gather_s = [&](std::int64_t zero, double latency_s) {
    const Plan plan = {.zero = zero};
    job.cluster.intra_node_latency_s = latency_s;
    return rank_update(job, plan, {.held = {.dense = 1'000'000}}).gather.alone_s;
  };
  CHECK(gather_s(1, 1e-3) - gather_s(1, 0) == doctest::Approx(7e-3));
  CHECK(gather_s(3, 1e-3) - gather_s(3, 0) == doctest::Approx(34 * 7e-3));
}

// Every microbatch of DDP reduces all gradients, whole.
TEST_CASE("DDP reduces in every microbatch, beside the backward pass but for the embedding's") {
  Job job = job_on_h200();
  set_measured_framework(job.profile, MemoryModel::kTorchtitan);
  const std::int64_t gpus = job.cluster.world_size();
  const Plan plan = {.dp = gpus, .dp_replicate = gpus, .zero = 0};
  const RankParameters held = {.held = {.dense = 1'000'000'000}};
  const auto visible_s = [&](std::int64_t microbatches, double backward_s) {
    return exposed_data_parallel_s(job, plan, rank_update(job, plan, held), microbatches,
                                   {.backward_s = backward_s});
  };
  CHECK(visible_s(1, 1) > 0);
  CHECK(visible_s(1, 1) < visible_s(1, 0));
  CHECK(visible_s(4, 1) == doctest::Approx(4 * visible_s(1, 1)));
  job.cluster.nodes = 1;
  job.cluster.gpus_per_node = 1;
  CHECK(exposed_data_parallel_s(job, {.zero = 0}, rank_update(job, {.zero = 0}, held), 2, {}) == 0);
}

}  // namespace
}  // namespace shardplan::torchtitan
