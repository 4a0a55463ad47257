// Tensor parallelism by pieces of tokens: what stays visible of a layer's collectives.
#include <doctest/doctest.h>

#include "data/read/library.h"
#include "estimator/answer/model_times.h"
#include "estimator/answer/step_limit.h"
#include "estimator/estimate.h"
#include "estimator/frameworks/native/token_pieces.h"
#include "estimator/time/block_work.h"

namespace shardplan::native {
namespace {

Job native_job() {
  const Library library;
  return {.model = library.model("llama3-8b").model,
          .cluster = library.cluster("1x8-h200"),
          .profile = library.framework("native"),
          .sequence_length = 8192,
          .global_batch = 32};
}

const Plan kPlan = {.tp = 8, .micro_batch = 4, .sequence_parallel = true};

BlockTime linear_of(double forward_s, double input_s, double weight_s) {
  BlockTime time;
  time.forward_s = forward_s;
  time.backward_input_s = input_s;
  time.backward_weight_s = weight_s;
  return time;
}

// Of so many seconds alone, all of them bytes.
BesideCost cost_of(const BlockContext& context, double alone_s) {
  return beside_cost(beside_rates(context.job.cluster, context.tp, Collective::kAllGather,
                                  carrier_of(context.framework.moves_by_copies, context.tp)),
                     {.bytes_s = alone_s});
}

TEST_CASE("sums of one region and gathers of the next hide behind the products of both") {
  Job job = native_job();
  job.cluster.gpu.times->copies.beside = BesideRates{.products = 1, .collectives = 1};
  const BlockContext context = block_context(job, kPlan);
  const auto cost = [&](double alone_s) { return cost_of(context, alone_s); };
  LayerRegions regions = {.attention = {.gather = cost(3),
                                        .scatter = cost(2),
                                        .gather_gradient = cost(2),
                                        .gather_again = cost(3),
                                        .scatter_gradient = cost(4),
                                        .column = linear_of(1, 1, 1),
                                        .row = linear_of(1, 1, 1)},
                          .ffn = {.gather = cost(1),
                                  .scatter = cost(3),
                                  .gather_gradient = cost(4),
                                  .gather_again = cost(1),
                                  .scatter_gradient = cost(1),
                                  .column = linear_of(5, 5, 5),
                                  .row = linear_of(2, 1, 1)}};
  // Into attention: 3 + 3 beside 2 + 1, half of both stays. Into the FFN: 2 + 1 beside 1 + 5.
  // Backward, out of attention: 4 + 4 beside 2 + 2, half stays. Out of the FFN, with the input that
  // is gathered again: 1 + 2 + 1 beside 10 + 2. Attention's own input: 3 beside 2 of attention.
  const VisibleRegions visible = visible_regions(regions, 2);
  CHECK(visible.attention.forward_s == doctest::Approx(1.5));
  CHECK(visible.ffn.forward_s == doctest::Approx(1.5));
  CHECK(visible.attention.backward_s == doctest::Approx(2 + 1));
  CHECK(visible.ffn.backward_s == doctest::Approx(2));
}

TEST_CASE("products beside communication lose what the GPU's copies take from them") {
  Job job = native_job();
  job.cluster.gpu.times->copies.beside = BesideRates{.products = 0.9, .collectives = 1};
  const BlockContext context = block_context(job, kPlan);
  const auto cost = [&](double alone_s) { return cost_of(context, alone_s); };
  LayerRegions regions = {.attention = {.gather = cost(1), .column = linear_of(4, 0, 0)},
                          .ffn = {.scatter = cost(1), .row = linear_of(4, 0, 0)}};
  const VisibleRegions visible = visible_regions(regions, 0);
  CHECK(visible.attention.forward_s + visible.ffn.forward_s == doctest::Approx(0.1 * 2));
}

TEST_CASE("pieces are equal, four at most, and of whole fp8 products") {
  Job job = native_job();
  const auto pieces = [&](const Plan& plan) { return token_pieces(job, plan); };
  CHECK(pieces({.tp = 8, .micro_batch = 4, .sequence_parallel = true}) == 4);
  CHECK(pieces({.tp = 2, .micro_batch = 1, .sequence_parallel = true}) == 2);
  CHECK(pieces({.tp = 1, .micro_batch = 4}) == 1);
  job.sequence_length = 3 * 4096;
  CHECK(pieces({.tp = 8, .micro_batch = 1, .sequence_parallel = true}) == 3);
  job.sequence_length = 8 * 4099;  // a prime of rows for every rank
  CHECK(pieces({.tp = 8, .micro_batch = 1, .sequence_parallel = true}) == 1);
  job.sequence_length = 8 * 2004;  // in four pieces 4008 tokens each, in three 5344
  Plan plan = {.tp = 8, .micro_batch = 1, .sequence_parallel = true};
  CHECK(pieces(plan) == 4);
  plan.precision = Precision::kFp8;
  CHECK(pieces(plan) == 3);
}

TEST_CASE("no step in pieces is predicted below its limit") {
  const Job job = native_job();
  for (const std::int64_t tp : {2, 4, 8}) {
    for (const std::int64_t micro_batch : {1, 2, 4}) {
      const Plan plan = {.tp = tp, .micro_batch = micro_batch, .sequence_parallel = true};
      INFO("tp " << tp << " micro_batch " << micro_batch);
      CHECK(estimate_step_time(*without_losses(job), plan).total_s <
            estimate_step_time(job, plan).total_s);
    }
  }
}

}  // namespace
}  // namespace shardplan::native
