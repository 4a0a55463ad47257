// What transformers' Trainer reduces, gathers and updates.
#include "estimator/frameworks/transformers/update.h"

#include <doctest/doctest.h>

#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/parameters.h"
#include "tests/estimator/frameworks/transformers/small_job.h"
#include "tests/estimator/rank_updates.h"

namespace shardplan::transformers {
namespace {

using huggingface::adapter_elements;

RankParameters all_of(const Job& job) {
  return {.held = {.dense = count_parameters(job.model)}};
}

// Gradient read for the norm, scaled and read: 1 + 2 + 1; moments and weights read and written: 6.
TEST_CASE("fused AdamW moves ten elements a parameter, in the weights' type") {
  Job job = small_trainer_job(1);
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    job.profile.weights_dtype = dtype;
    CHECK(kUpdate.step_kernels(job, trainer_plan(0)).streamed ==
          10 * static_cast<double>(bytes_of(dtype)));
  }
}

TEST_CASE("of a model with adapters only these are reduced and updated") {
  Job job = small_trainer_job(2);
  job.adapters = adapters_on_all(8);
  const double elements = static_cast<double>(kSmallModel);
  CHECK(kUpdate.reduced_bytes(job, trainer_plan(0), {.elements = kSmallModel}) ==
        doctest::Approx(4.0 * static_cast<double>(adapter_elements(job))));
  CHECK(elements * kUpdate.step_kernels(job, trainer_plan(0)).streamed ==
        doctest::Approx(40.0 * static_cast<double>(adapter_elements(job))));
}

TEST_CASE("one GPU sums no gradients, DDP does once a step, beside the backward pass") {
  const Job alone = small_trainer_job(1);
  const Plan plan = trainer_plan(0);
  const MicrobatchWork work = {.forward_s = 0.1, .backward_s = 0.2};
  const auto visible_s = [&](const Job& job, std::int64_t microbatches, double backward_s) {
    return exposed_data_parallel_s(job, plan, rank_update(job, plan, all_of(job)), microbatches,
                                   {.forward_s = work.forward_s, .backward_s = backward_s});
  };
  CHECK(visible_s(alone, 1, work.backward_s) == 0);
  const Job two = small_trainer_job(2);
  CHECK(visible_s(two, 1, work.backward_s) > 0);  // the embedding's, and copies
  CHECK(visible_s(two, 1, work.backward_s) < visible_s(two, 1, 0));
  CHECK(visible_s(two, 4, work.backward_s) == visible_s(two, 1, work.backward_s));
}

TEST_CASE("FSDP2 gathers in every microbatch and reduces in the last; without resharding once") {
  const Job job = small_trainer_job(2);
  const auto visible_s = [&](std::int64_t zero, std::int64_t microbatches) {
    const Plan plan = trainer_plan(zero);
    return exposed_data_parallel_s(job, plan, rank_update(job, plan, all_of(job)), microbatches,
                                   {});
  };
  const double again = visible_s(3, 1) - visible_s(2, 1);
  CHECK(again > 0);
  CHECK(visible_s(3, 2) > visible_s(3, 1));
  CHECK(visible_s(3, 2) < 2 * visible_s(3, 1));
}

// Two layers' linear weights, 4,718,592 elements in 4 bits, beside tables and norms in bf16.
TEST_CASE("FSDP2 gathers 4-bit weights packed where they lie in bf16, and not at all in bytes") {
  Job job = small_trainer_job(2);
  job.adapters = adapters_on_all(8);
  job.quantized.kind = Quantization::kNf4;
  constexpr std::int64_t kLinear = 2 * (kSmallLayer - 2 * 512);
  const GroupParameters part = {.elements = kSmallModel, .linear = kLinear};
  const auto gathered = [&] { return kUpdate.gathered_bytes(job, trainer_plan(3), part); };
  CHECK(gathered() == 2.0 * (kSmallModel - kLinear));
  job.profile.float_quant_storage = true;
  CHECK(gathered() == 2.0 * (kSmallModel - kLinear) + 0.5 * kLinear);
  job.quantized = {};
  CHECK(gathered() == 2.0 * kSmallModel);
}

// The host's step is its alone, over a half of the parameters; the GPU's is the other case's.
TEST_CASE("FSDP2 with offload steps on the host, and copies shards there and back") {
  const Job job = small_trainer_job(2);
  Plan plan = trainer_plan(3);
  const RankUpdate without = rank_update(job, plan, all_of(job));
  plan.offload = {.optimizer = 1, .parameters = true};
  const RankUpdate with = rank_update(job, plan, all_of(job));
  CHECK(without.part_to_host_s == 0);
  const double link = job.cluster.gpu.pcie_bytes_per_s * job.cluster.gpu.constants->pcie_share;
  CHECK(with.part_to_host_s == doctest::Approx(4.0 * kSmallModel / 2 / link));
  CHECK(with.optimizer_s > without.optimizer_s);
  CHECK(exposed_data_parallel_s(job, plan, with, 1, {}) >
        exposed_data_parallel_s(job, trainer_plan(3), without, 1, {}));
}

TEST_CASE("FSDP1 waits for its collectives unless it gathers ahead, and copies no outputs") {
  Job job = small_trainer_job(2);
  const Plan plan = trainer_plan(3);
  const double copies_s = rank_update(job, plan, all_of(job)).gather_copies_s;
  job.profile.fsdp_version = 1;
  const RankUpdate update = rank_update(job, plan, all_of(job));
  CHECK(update.gather_copies_s < copies_s);
  const auto visible_s = [&](FsdpPrefetch prefetch) {
    job.profile.fsdp_prefetch = prefetch;
    return exposed_data_parallel_s(job, plan, update, 1, {.forward_s = 1, .backward_s = 1});
  };
  CHECK(visible_s(FsdpPrefetch::kNone) > visible_s(FsdpPrefetch::kBackwardPost));
  CHECK(visible_s(FsdpPrefetch::kBackwardPost) > visible_s(FsdpPrefetch::kBackwardPre));
}

}  // namespace
}  // namespace shardplan::transformers
