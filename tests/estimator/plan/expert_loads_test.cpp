// Uneven loads: the spread by counting, the draws by their moments, what they change by laws.
#include "estimator/plan/expert_loads.h"
#include "estimator/allocator/replay.h"
#include "estimator/answer/stage_memory.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "estimator/answer/stage_timeline.h"
#include "estimator/ledger/timeline_writer.h"
#include "tests/estimator/llama_job.h"

namespace shardplan {
namespace {

Job mixture_job(std::int64_t experts, std::int64_t topk) {
  Job job =
      llama_job("megatron", {.hidden = 2048, .ffn = 6144, .heads = 16, .layers = 4}, 4, 4096, 16);
  job.model.moe = {.num_experts = experts, .topk = topk, .expert_ffn = 1024};
  for (LayerSpec& layer : job.model.layers) { layer.is_moe = true; }
  return job;
}

Plan spread_plan(std::int64_t ep) {
  Plan plan;
  plan.dp = 4;
  plan.ep = ep;
  plan.micro_batch = 1;
  plan.zero = 1;
  return plan;
}

}  // namespace

TEST_CASE("loads drawn have the mean and the spread asked for, and stay as they are") {
  constexpr double kSpread = 0.02;
  constexpr int kPasses = 400;
  constexpr std::size_t kBlocks = 50;
  double sum = 0;
  double square = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const ExpertLoads loads(kSpread, 3, pass);
    for (std::size_t block = 0; block < kBlocks; ++block) {
      const double load = loads.load(block);
      CHECK(load == ExpertLoads(kSpread, 3, pass).load(block));
      sum += load - 1;
      square += (load - 1) * (load - 1);
    }
  }
  const double draws = kPasses * static_cast<double>(kBlocks);
  CHECK(std::abs(sum / draws) < 4 * kSpread / std::sqrt(draws));
  CHECK(std::sqrt(square / draws) == doctest::Approx(kSpread).epsilon(0.03));
  CHECK(ExpertLoads(kSpread, 0, 0).load(0) != ExpertLoads(kSpread, 1, 0).load(0));
  CHECK(ExpertLoads().load(7) == 1);
}

TEST_CASE("loads are even where one rank has all experts or all have their capacity") {
  Job job = mixture_job(8, 2);
  const double spread = load_spread(job, spread_plan(4));
  CHECK(spread > 0);
  CHECK(load_spread(job, spread_plan(1)) == 0);
  Plan longer = spread_plan(4);
  longer.micro_batch = 4;
  CHECK(load_spread(job, longer) == doctest::Approx(spread / 2));
  job.profile.moe_load_spread = 0.2;
  CHECK(load_spread(job, spread_plan(4)) == 0.2);
  CHECK(load_spread(job, spread_plan(1)) == 0);
  job.profile.moe_load_spread = spread / 2;  // chance is more
  CHECK(load_spread(job, spread_plan(4)) == spread);
  job.profile.moe_capacity_factor = 1;
  CHECK(load_spread(job, spread_plan(4)) == 0);
}

// By hand: a token chooses two of eight experts, of which a rank has two: 28 pairs, of which 1 has
// both and 12 have one. Mean 1/2, variance 16/28 - 1/4 = 9/28; four ranks' tokens choose.
TEST_CASE("two of eight experts on each of four ranks: the spread of 16,384 tokens' choices") {
  CHECK(load_spread(mixture_job(8, 2), spread_plan(4)) ==
        doctest::Approx(std::sqrt(9.0 / 28 / 16384) / 0.5));
}

// Of two 1/sqrt(pi), of three one and a half times that; of 8 and 100 by Harter's table (Expected
// values of normal order statistics, Biometrika 48, 1961).
TEST_CASE("the largest of several normal numbers is expected where tables have it") {
  CHECK(expected_largest_normal(1) == doctest::Approx(0));
  CHECK(expected_largest_normal(2) == doctest::Approx(0.56419));
  CHECK(expected_largest_normal(3) == doctest::Approx(0.84628));
  CHECK(expected_largest_normal(8) == doctest::Approx(1.42360));
  CHECK(expected_largest_normal(100) == doctest::Approx(2.50759));
}

TEST_CASE("the fullest of four ranks has what chance gives, and more if the router has a taste") {
  Job job = mixture_job(8, 2);
  const Plan plan = spread_plan(4);
  CHECK(fullest_load(job, plan) == doctest::Approx(1 + 1.02938 * load_spread(job, plan)));
  CHECK(fullest_load(job, spread_plan(1)) == 1);
  job.profile.moe_load_spread = 0.2;
  CHECK(fullest_load(job, plan) == doctest::Approx(1 + 1.02938 * 0.2));
  job.profile.moe_imbalance_factor = 1.5;
  CHECK(fullest_load(job, plan) == doctest::Approx(1.5 * (1 + 1.02938 * 0.2)));
}

// With experts padded to a capacity of one, loads are even and tensors as large as in the mean.
// Measured of such ranks: 20.5 to 21.7 GB (data/measured/loads_h100.jsonl, loads-q235-ep4).
TEST_CASE("loads of their own make ranks reserve differently, and allocate what even ones do") {
  Job job = mixture_job(32, 8);
  Plan plan = spread_plan(4);
  plan.zero = 0;  // all ranks have the same state
  const auto peaks = [&](std::int64_t rank) {
    const PlanPieces pieces = plan_pieces(job, plan);
    return replay_allocator(stage_timeline(job, plan, pieces.blocks, pieces.stages.front(), rank),
                            AllocatorKind::kCaching);
  };
  std::vector<AllocatorPeaks> uneven;
  for (const std::int64_t rank : {0, 1, 2, 3}) { uneven.push_back(peaks(rank)); }
  job.profile.moe_capacity_factor = 1;
  const AllocatorPeaks even = peaks(0);
  CHECK(peaks(3).reserved_bytes == even.reserved_bytes);
  for (const AllocatorPeaks& rank : uneven) {
    CHECK(std::abs(static_cast<double>(rank.allocated_bytes) /
                       static_cast<double>(even.allocated_bytes) -
                   1) < 0.01);
  }
  const auto [least, most] = std::ranges::minmax(uneven, {}, &AllocatorPeaks::reserved_bytes);
  CHECK(most.reserved_bytes > least.reserved_bytes);
}

TEST_CASE("a tensor of no bytes is no tensor: nothing is allocated for it, and nothing freed") {
  TimelineWriter writer{BlockSet{}};
  std::int64_t tensor = writer.allocate(0);
  CHECK(tensor == 0);
  writer.free(tensor);
  CHECK(writer.events.empty());
  tensor = writer.allocate(1);
  writer.free(tensor);
  CHECK(writer.events.size() == 2);
}

TEST_CASE("ranks of few tokens, some of which no token chooses, are played to their end") {
  Job job = mixture_job(8, 2);
  for (const std::int64_t sequence : {1, 2, 3}) {
    job.sequence_length = sequence;
    const Plan plan = spread_plan(4);
    const PlanPieces pieces = plan_pieces(job, plan);
    for (const std::int64_t rank : {0, 1, 2, 3}) {
      const std::vector<AllocationEvent> events =
          stage_timeline(job, plan, pieces.blocks, pieces.stages.front(), rank);
      CHECK(replay_allocator(events, AllocatorKind::kCaching).allocated_bytes > 0);
    }
  }
}

}  // namespace shardplan
