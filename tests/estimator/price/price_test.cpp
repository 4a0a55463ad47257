#include "estimator/price/price.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/plan/in_flight.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "estimator/answer/blocks.h"
#include "estimator/answer/outside_memory.h"
#include "estimator/answer/stage_memory.h"
#include "estimator/estimate.h"
#include "estimator/price/pieces.h"
#include "tests/allocation_count.h"
#include "tests/estimator/llama_job.h"
#include "tests/estimator/random_jobs.h"

namespace shardplan {
namespace {

TEST_CASE("3,000 prices equal the estimates of memory and time and bound the device's memory") {
  const Library library;
  RandomJobs random(library, 1);
  int failures = 0;  // of the bound on what the driver will report
  for (int i = 0; i < 3000; ++i) {
    RandomCase drawn = random.next();
    drawn.job = i % 2 == 0 ? drawn.job : with_measured_copies(drawn.job);
    PriceTable table = build_price_table(drawn.job);
    const Price priced = price(table, drawn.plan);
    const MemoryEstimate memory = estimate_memory(drawn.job, drawn.plan);
    const StepTime time = estimate_step_time(drawn.job, drawn.plan);
    const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
    const bool equal = priced.allocated_bytes == largest->allocated_bytes &&
                       priced.allocated_stage == largest->pp_rank &&
                       priced.step_time_s == time.total_s;
    const auto fullest =
        std::ranges::max_element(memory.stages, {}, &StageMemory::device_used_bytes);
    failures += priced.device_used_bytes >= fullest->device_used_bytes ? 0 : 1;
    INFO(drawn.job.profile.name << " case " << i);
    REQUIRE(equal);
  }
  CHECK(failures == 0);
}

TEST_CASE(
    "prices equal the estimates with every recipe of fp8, with fp8_param_gather and without") {
  const Library library;
  RandomJobs random(library, 4);
  int priced_plans = 0;
  for (int i = 0; i < 2000; ++i) {
    RandomCase drawn = random.next();
    if (drawn.job.profile.memory_model != MemoryModel::kMegatron) {
      continue;
    }
    drawn.plan.precision = Precision::kFp8;
    drawn.plan.zero = 1;
    drawn.job.profile.fp8_recipe = kFp8Recipes[static_cast<std::size_t>(i % 4)].value;
    drawn.job.profile.fp8_param_gather = i % 3 != 0;
    if (drawn.job.profile.fp8_recipe == Fp8Recipe::kMxfp8) {
      drawn.job.cluster.gpu.compute_capability = 100;
    }
    if (why_invalid(drawn.job, drawn.plan)) {
      continue;
    }
    ++priced_plans;
    PriceTable table = build_price_table(drawn.job);
    const Price priced = price(table, drawn.plan);
    const MemoryEstimate memory = estimate_memory(drawn.job, drawn.plan);
    const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
    const auto fullest =
        std::ranges::max_element(memory.stages, {}, &StageMemory::device_used_bytes);
    INFO("case " << i);
    REQUIRE(priced.allocated_bytes == largest->allocated_bytes);
    REQUIRE(priced.device_used_bytes >= fullest->device_used_bytes);
    REQUIRE(priced.step_time_s == estimate_step_time(drawn.job, drawn.plan).total_s);
  }
  CHECK(priced_plans > 50);
}

TEST_CASE("prices equal the estimates with adapters beside Megatron's layers") {
  const Library library;
  RandomJobs random(library, 5);
  int priced_plans = 0;
  for (int i = 0; i < 2000; ++i) {
    RandomCase drawn = random.next();
    if (drawn.job.profile.memory_model != MemoryModel::kMegatron) {
      continue;
    }
    drawn.job.adapters = {.rank = 8 << (i % 4), .dtype = DType::kBf16};
    drawn.job.adapters.targets.fill(true);
    drawn.job.adapters.dropout = i % 2 == 0 ? 0.05 : 0;
    if (why_invalid(drawn.job, drawn.plan)) {
      continue;
    }
    ++priced_plans;
    PriceTable table = build_price_table(drawn.job);
    const Price priced = price(table, drawn.plan);
    const MemoryEstimate memory = estimate_memory(drawn.job, drawn.plan);
    const auto largest = std::ranges::max_element(memory.stages, {}, &StageMemory::allocated_bytes);
    INFO("case " << i);
    REQUIRE(priced.allocated_bytes == largest->allocated_bytes);
    REQUIRE(priced.step_time_s == estimate_step_time(drawn.job, drawn.plan).total_s);
  }
  CHECK(priced_plans > 20);
}

TEST_CASE("prices of one table know how many microbatches defer gradients of the output layer") {
  const Library library;
  Job job = {.model = library.model("llama3-8b").model,
             .cluster = library.cluster("2x8-h100"),
             .profile = library.framework("megatron"),
             .sequence_length = 8192,
             .global_batch = 8};
  job.profile.deferred_embedding_wgrads = 4;
  PriceTable table = build_price_table(job);
  Plan plan{.tp = 4, .pp = 2, .schedule = Schedule::k1F1B, .layers_per_chunk = {1, 31}};
  price(table, plan);  // four microbatches: three before the last one
  plan.pp = 4;
  plan.layers_per_chunk = {1, 1, 1, 29};
  const MemoryEstimate memory = estimate_memory(job, plan);
  CHECK(price(table, plan).allocated_stage == 3);
  CHECK(price(table, plan).allocated_bytes == memory.stages.back().allocated_bytes);
}

TEST_CASE("the bound on the device's memory knows the microbatch that experts' buffers are for") {
  const Library library;
  Job job = {.model = library.model("mixtral-8x7b").model,
             .cluster = library.cluster("1x8-h100"),
             .profile = library.framework("megatron"),
             .sequence_length = 4096,
             .global_batch = 64};
  job.profile.moe_dispatcher = MoeDispatcher::kHybridEp;
  PriceTable table = build_price_table(job);
  Plan plan{.ep = 8};
  for (const std::int64_t micro_batch : {1, 2}) {
    plan.micro_batch = micro_batch;
    const MemoryEstimate memory = estimate_memory(job, plan);
    CHECK(price(table, plan).device_least_bytes ==
          memory.stages.front().allocated_bytes + memory.stages.front().outside_bytes);
  }
}

TEST_CASE("the bound on the device's memory knows which ranks between the ends have experts") {
  const Library library;
  Job job = {.model = library.model("llama3-8b").model,
             .cluster = library.cluster("1x8-h200"),
             .profile = library.framework("native"),
             .sequence_length = 1024,
             .global_batch = 2};
  job.model.moe = {.num_experts = 8, .topk = 2, .expert_ffn = 14336};
  job.model.layers.assign(10, {});
  job.model.layers.back().is_moe = true;
  job.model.layers[8].is_moe = true;
  Plan plan{.ep = 2, .pp = 4, .schedule = Schedule::k1F1B};
  PriceTable table = build_price_table(job);
  // The fullest rank has the expert of layer 8; the one before it has none, then is the fullest.
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{1, 1, 7, 1}, std::vector<std::int64_t>{1, 6, 2, 1},
        std::vector<std::int64_t>{1, 7, 1, 1}}) {
    plan.layers_per_chunk = layers;
    const MemoryEstimate memory = estimate_memory(job, plan);
    const auto fullest =
        std::ranges::max_element(memory.stages, {}, &StageMemory::device_used_bytes);
    CHECK(price(table, plan).device_used_bytes >= fullest->device_used_bytes);
  }
}

TEST_CASE("a price does not depend on what its table priced before") {
  const Library library;
  RandomJobs random(library, 2);
  int failures = 0;
  for (int i = 0; i < 150; ++i) {
    RandomCase drawn = random.next();
    if (drawn.job.profile.memory_model == MemoryModel::kFujii2024) {
      continue;
    }
    drawn.job = i % 2 == 0 ? drawn.job : with_measured_copies(drawn.job);
    PriceTable table = build_price_table(drawn.job);
    Plan plan = drawn.plan;
    for (int step = 0; step < 40; ++step) {
      plan = random.next_plan(drawn.job, plan);
      const Price walked = price(table, plan);
      PriceTable fresh = build_price_table(drawn.job);
      const Price alone = price(fresh, plan);
      INFO(drawn.job.profile.name << " job " << i << " step " << step);
      REQUIRE(walked.allocated_bytes == alone.allocated_bytes);
      REQUIRE(walked.allocated_stage == alone.allocated_stage);
      REQUIRE(walked.device_used_bytes == alone.device_used_bytes);
      REQUIRE(walked.step_time_s == alone.step_time_s);
      const std::int64_t before = allocation_count();
      const Price again = price(table, plan);
      failures += allocation_count() == before && again.step_time_s == walked.step_time_s ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

// ZeRO-3 gathers frozen weights too, the others what they have updated.
TEST_CASE("a price of ZeRO-2 with adapters does not depend on ZeRO-3's") {
  Job job =
      llama_job("deepspeed", {.hidden = 1024, .ffn = 4096, .heads = 16, .layers = 4}, 8, 512, 8);
  job.adapters = {.rank = 8, .targets = {true, true, true, true}};
  PriceTable table = build_price_table(job);
  price(table, deepspeed_plan(3));
  for (const std::int64_t zero : {0, 1, 2}) {
    CAPTURE(zero);
    PriceTable fresh = build_price_table(job);
    CHECK(price(table, deepspeed_plan(zero)).step_time_s ==
          price(fresh, deepspeed_plan(zero)).step_time_s);
  }
}

TEST_CASE("the order of ranks moves no byte that a step allocates") {
  const Library library;
  RandomJobs random(library, 5);
  int compared = 0;
  int moved = 0;
  for (int i = 0; i < 400; ++i) {
    const RandomCase drawn = random.next();
    Plan reversed = drawn.plan;
    std::ranges::reverse(reversed.rank_order);
    if (why_invalid(drawn.job, reversed)) {
      continue;
    }
    const MemoryEstimate one = estimate_memory(drawn.job, drawn.plan);
    const MemoryEstimate other = estimate_memory(drawn.job, reversed);
    moved += std::ranges::equal(one.stages, other.stages, {}, &StageMemory::allocated_bytes,
                                &StageMemory::allocated_bytes)
                 ? 0
                 : 1;
    ++compared;
  }
  CHECK(moved == 0);
  CHECK(compared > 120);
}

TEST_CASE("ranks that a price leaves out hold no more than those it looks at") {
  const Library library;
  RandomJobs random(library, 3);
  int left_out = 0;
  for (int i = 0; i < 880; ++i) {
    const RandomCase drawn = random.next();
    if (drawn.job.profile.memory_model == MemoryModel::kFujii2024) {
      continue;
    }
    const Plan plan = random.next_plan(drawn.job, drawn.plan);
    PriceTable table = build_price_table(drawn.job);
    const Price priced = price(table, plan);
    PricePieces& pieces = table.pieces();
    const auto& looked_at = pieces.activations(plan, schedule_shape(drawn.job, plan)).ranks;
    const PlanPieces whole = plan_pieces(drawn.job, plan);
    for (const StagePieces& stage : whole.stages) {
      const std::int64_t rank = stage.layout.pp_rank;
      left_out += std::ranges::find(looked_at, rank, &RankActivations::rank) == looked_at.end();
      const std::int64_t allocated = stage.peaks.allocated_bytes;
      INFO(drawn.job.profile.name << " case " << i << " rank " << rank);
      REQUIRE(allocated <= priced.allocated_bytes);
      REQUIRE(
          reserved_upper_bytes(drawn.job.profile.allocator, {stage.state.bytes, {}}, allocated) +
              outside_bytes(drawn.job, plan, rank) <=
          priced.device_used_bytes);
    }
  }
  CHECK(left_out > 100);
}

TEST_CASE(
    "rows of a block look at nothing of recomputation, experts and context parallelism but what "
    "they are said to see") {
  const Library library;
  RandomJobs random(library, 11);
  std::mt19937_64 bits(9);
  int same = 0;         // choices that a kind does not see
  int fewer_ranks = 0;  // that share experts
  for (int i = 0; i < 1000; ++i) {
    RandomCase drawn = random.next();
    for (bool RecomputeModules::*module :
         {&RecomputeModules::core_attn, &RecomputeModules::layernorm, &RecomputeModules::mlp,
          &RecomputeModules::moe_act, &RecomputeModules::mla_up_proj, &RecomputeModules::moe,
          &RecomputeModules::shared_experts}) {
      drawn.plan.recompute.modules.*module = bits() % 2 == 0;
    }
    if (!drawn.plan.recompute.policy.empty()) {
      continue;
    }
    drawn.plan.recompute.granularity = static_cast<RecomputeGranularity>(bits() % 3);
    for (std::int64_t at = 0; at < kNumBlockKinds; ++at) {
      const BlockKind kind = static_cast<BlockKind>(at);
      Plan seen = drawn.plan;
      const SeenByBlock by_block = seen_by_block(drawn.job, drawn.plan, kind);
      seen.recompute = by_block.recompute;
      same += seen.recompute == drawn.plan.recompute ? 0 : 1;
      const BlockMemory whole = block_memory(drawn.job, drawn.plan, kind);
      seen.ep = by_block.ep;
      fewer_ranks += by_block.experts && seen.ep < drawn.plan.ep ? 1 : 0;
      if (!by_block.cp_method) {
        seen.cp_method = CpMethod::kRing;
      }
      if (!by_block.experts) {
        seen.etp = 1;
        seen.moe_buffer_factor = 1;
      }
      const BlockMemory masked = block_memory(drawn.job, seen, kind);
      INFO(drawn.job.profile.name << " case " << i << " " << whole.name);
      REQUIRE(std::ranges::equal(
          whole.rows, masked.rows, [](const BlockRow& one, const BlockRow& other) {
            return one.name == other.name && one.bytes == other.bytes && one.born == other.born &&
                   one.last_forward_use == other.last_forward_use && one.dies == other.dies &&
                   one.place == other.place && one.pushed == other.pushed &&
                   one.popped == other.popped && one.buffers == other.buffers &&
                   one.outlives_recompute == other.outlives_recompute;
          }));
    }
  }
  CHECK(same > 1000);
  CHECK(fewer_ranks > 2);
}

TEST_CASE("later ranks hold no more in flight unless weight gradients are delayed") {
  int failures = 0;
  const auto covers = [](const InFlightState& one, const InFlightState& other) {
    const auto at_least = [](const auto& a, const auto& b) {
      return std::ranges::equal(a, b, std::ranges::greater_equal{});
    };
    return one.action == other.action && one.chunk == other.chunk &&
           at_least(one.saved, other.saved) && at_least(one.has_gradients, other.has_gradients);
  };
  for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B, Schedule::kInterleaved1F1B}) {
    {
      for (std::int64_t pp = 2; pp <= 8; ++pp) {
        for (std::int64_t vpp = 1; vpp <= (schedule == Schedule::k1F1B ? 1 : 3); ++vpp) {
          for (std::int64_t m = 1; m <= 3 * pp; ++m) {
            const ScheduleShape shape = {
                .schedule = schedule, .pp = pp, .vpp = vpp, .num_microbatches = m};
            auto earlier = peak_in_flight_states(shape, 0);
            for (std::int64_t rank = 1; rank < pp; ++rank) {
              const auto later = peak_in_flight_states(shape, rank);
              for (const InFlightState& state : later) {
                failures +=
                    std::ranges::any_of(
                        earlier, [&](const InFlightState& other) { return covers(other, state); })
                        ? 0
                        : 1;
              }
              earlier = later;
            }
          }
        }
      }
    }
  }
  CHECK(failures == 0);
}

}  // namespace
}  // namespace shardplan
