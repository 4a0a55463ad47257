// Orders and sizes of allocations in traces of torchtitan v0.2.2 with PyTorch 2.11 on an H200
// (torch.cuda.memory._record_memory_history), the other ranks of the process group faked.
#include "estimator/frameworks/torchtitan/timeline.h"
#include "estimator/answer/stage_memory.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "estimator/allocator/replay.h"
#include "estimator/frameworks/pieces/data_parallel.h"
#include "estimator/frameworks/torchtitan/compiled_layer.h"
#include "tests/estimator/allocation_changes.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::torchtitan {
namespace {

Job job_of(std::int64_t hidden, std::int64_t heads, std::int64_t layers, std::int64_t gpus,
           std::int64_t sequence, std::int64_t batch) {
  return llama_job("torchtitan", {.hidden = hidden, .ffn = 8192, .heads = heads, .layers = layers},
                   gpus, sequence, batch);
}

Plan sharded(std::int64_t dp) {
  Plan plan;
  plan.dp = dp;
  plan.zero = dp > 1 ? 3 : 0;
  return plan;
}

// Bytes allocated (positive) and freed; frees in a row, which no allocation tells apart, sorted.
std::vector<std::int64_t> changes_of(const std::vector<AllocationEvent>& events) {
  std::unordered_map<std::int64_t, std::int64_t> bytes;
  std::vector<std::int64_t> changes;
  std::size_t frees = 0;
  for (const AllocationEvent& event : events) {
    frees = event.bytes > 0 ? 0 : frees + 1;
    changes.push_back(event.bytes > 0 ? event.bytes : -bytes.at(event.id));
    bytes[event.id] = event.bytes;
    std::sort(changes.end() - static_cast<std::ptrdiff_t>(frees), changes.end());
  }
  return changes;
}

// foreach_reduce: the variable of a loop names the last parameter's gradient until it returns.
TEST_CASE("a table's gradient is freed after its reduction has an output, a layer's before") {
  const Job job = job_of(3072, 24, 4, 4, 2048, 4);
  const Plan plan = sharded(4);  // shares in fp32 are half a gradient in bf16
  const PlanPieces whole = plan_pieces(job, plan);
  const std::vector<AllocationEvent> events = timeline(job, plan, whole.stages.at(0));
  std::unordered_map<std::int64_t, std::int64_t> live;
  const auto alive = [&](std::int64_t bytes) {
    return std::ranges::count_if(live,
                                 [bytes](const auto& entry) { return entry.second == bytes; });
  };
  const std::int64_t table = std::int64_t{128256} * 3072;
  const std::int64_t up = std::int64_t{8192} * 3072;
  int tables = 0;
  int layers = 0;
  for (const AllocationEvent& event : events) {
    if (event.stream == AllocationStream::kReduce && event.bytes > 0) {
      const bool is_table = event.bytes >= table;
      tables += is_table && alive(2 * table) > 0 ? 1 : 0;
      layers += !is_table && alive(2 * up) == 0 ? 1 : 0;
    }
    if (event.bytes > 0) {
      live[event.id] = event.bytes;
    } else {
      live.erase(event.id);
    }
  }
  const auto reductions = std::ranges::count_if(events, [](const AllocationEvent& event) {
    return event.stream == AllocationStream::kReduce && event.bytes > 0;
  });
  CHECK(tables > 0);
  CHECK(tables + layers == reductions);
}

TEST_CASE("a bucket of DDP ends with the gradient that fills it") {
  const std::vector<std::int64_t> gradients = {60, 50, 10, 200, 100, 5};
  CHECK(rebuilt_buckets(gradients, 100) == std::vector<std::int64_t>{110, 210, 100, 5});
  CHECK(rebuilt_buckets(gradients, 1000) == std::vector<std::int64_t>{425});
}

// One bucket for all gradients until the second forward begins.
TEST_CASE("DDP makes one bucket, and several in its place in the second step") {
  const Job job = job_of(3072, 24, 4, 2, 2048, 2);
  Plan plan = sharded(2);
  plan.dp_replicate = 2;
  plan.zero = 0;
  const PlanPieces whole = plan_pieces(job, plan);
  const std::vector<AllocationEvent> events = timeline(job, plan, whole.stages.at(0));
  const std::int64_t model = whole.stages.at(0).state.parameters;
  const auto count = [&](std::int64_t bytes) {
    return std::ranges::count(events, bytes, &AllocationEvent::bytes);
  };
  CHECK(count(4 * model) == 1);
  const double played = static_cast<double>(largest_sum(events));
  const double rows = static_cast<double>(whole.stages.at(0).peaks.peak_bytes);
  CHECK(played / rows == doctest::Approx(1).epsilon(0.01));
}

TEST_CASE("a recomputed eager layer's forward allocates and frees as traced") {
  const Job job = job_of(3072, 24, 28, 2, 2048, 2);
  const Plan plan = sharded(2);
  const TitanSizes sizes(job, plan, false);
  TitanTape tape(0);
  EagerLayer layer(tape, sizes);
  LayerTensors tensors;
  layer.forward(tensors, LayerPass::kSavesNothing);
  const std::int64_t h = 12'582'912;  // also of queries
  const std::int64_t k = 4'194'304;
  const std::int64_t f = 33'554'432;
  const std::int64_t statistics = 8192;
  const std::int64_t lse = 196'608;
  const std::vector<std::int64_t> traced = {
      h,      statistics, -statistics,                          // norm
      h,      k,          k,                                    // wq, wk, wv
      2 * h,  2 * k,      2 * h,       2 * k,  h,      k,       // rotation in fp32, then bf16
      -2 * h, -2 * h,     -h,          -2 * k, -2 * k, -k,      //
      h,      lse,        -lse,                                 // attention
      h,      -h,         -h,          -h,     -k,     -k,      // wo; attention returns
      h,      -h,                                               // residual
      h,      statistics, -statistics,                          // norm
      f,      f,          -f,          f,      f,      -f, -f,  // w1, silu, w3, product
      h,      -f,         -h,                                   // w2
      h,      -h,         -h};                                  // residual
  CHECK(changes_of(tape.take_events()) == traced);
}

TEST_CASE("a compiled layer's forward that saves allocates and frees as traced") {
  Job job = job_of(4096, 32, 32, 8, 8192, 8);
  job.model.ffn = 14336;
  job.profile.compile = true;
  const Plan plan = sharded(8);
  const TitanSizes sizes(job, plan, false);
  TitanTape tape(0);
  CompiledLayer layer(tape, sizes);
  LayerTensors tensors;
  layer.forward(tensors, LayerPass::kSaves);
  const std::int64_t h = 67'108'864;
  const std::int64_t k = 16'777'216;
  const std::int64_t f = 234'881'024;
  const std::int64_t statistics = 32'768;
  const std::int64_t lse = 1'048'576;
  const std::vector<std::int64_t> traced = {
      statistics, h,      h, k,   k, 2 * h,      2 * k, 2 * h, -2 * h, 2 * k, -2 * h,
      -2 * k,     -2 * k, h, lse, h, statistics, h,     f,     f,      f,     h};
  CHECK(changes_of(tape.take_events()) == traced);
}

// With as many microbatches as stages a chunk's backward is over before another's begins: its
// parameters are dropped and its gradients reduced.
TEST_CASE("an interleaved rank holds the gradients of one chunk where microbatches are few") {
  for (const std::int64_t vpp : {2, 4}) {
    const Job job = job_of(8192, 64, 4 * vpp - 2, 4, 1024, 4);
    Plan plan = sharded(2);
    plan.pp = 2;
    plan.vpp = vpp;
    plan.schedule = Schedule::kInterleaved1F1B;
    REQUIRE(num_microbatches(job, plan) == 2);
    const PlanPieces pieces = plan_pieces(job, plan);
    for (const StagePieces& stage : pieces.stages) {
      const std::int64_t played = largest_sum(timeline(job, plan, stage));
      CAPTURE(vpp);
      CAPTURE(stage.layout.pp_rank);
      CHECK(std::abs(static_cast<double>(played) / static_cast<double>(stage.peaks.peak_bytes) -
                     1) < 0.01);
    }
  }
}

// Each backward leaves its parameters gathered, each forward drops them. GPipe's first stage is
// played 1.6 % above its rows, the others are within 1 %.
TEST_CASE("a pipeline that reshards after forward gathers block by block") {
  Job job = job_of(4096, 32, 14, 4, 8192, 16);
  job.profile.reshard_after_forward = ReshardAfterForward::kAlways;
  for (const Schedule schedule : {Schedule::k1F1B, Schedule::kGpipe, Schedule::kInterleaved1F1B}) {
    for (const std::string_view policy : {"", "every_second_layer"}) {
      Plan plan = sharded(2);
      plan.pp = 2;
      plan.vpp = schedule == Schedule::kInterleaved1F1B ? 2 : 1;
      plan.schedule = schedule;
      if (!policy.empty()) {
        plan.recompute.granularity = RecomputeGranularity::kSelective;
        plan.recompute.policy = policy;
      }
      const PlanPieces pieces = plan_pieces(job, plan);
      for (const StagePieces& stage : pieces.stages) {
        const std::int64_t played = largest_sum(timeline(job, plan, stage));
        CAPTURE(static_cast<int>(schedule));
        CAPTURE(policy);
        CAPTURE(stage.layout.pp_rank);
        CHECK(std::abs(static_cast<double>(played) / static_cast<double>(stage.peaks.peak_bytes) -
                       1) < 0.02);
      }
    }
  }
}

struct Traced {
  Job job;
  Plan plan;
  std::int64_t reserved_bytes = 0;  // most that PyTorch reserved, rank 0, third step
};

double largest_error(const std::vector<Traced>& runs) {
  double largest = 0;
  for (const Traced& run : runs) {
    const PlanPieces pieces = plan_pieces(run.job, run.plan);
    const AllocatorPeaks peaks =
        replay_allocator(timeline(run.job, run.plan, pieces.stages.at(0)), AllocatorKind::kCaching);
    const double error = static_cast<double>(peaks.reserved_bytes - run.reserved_bytes) /
                         static_cast<double>(run.reserved_bytes);
    INFO(run.reserved_bytes << " traced, error " << 100 * error << " %");
    CHECK(std::abs(error) < 0.03);
    largest = std::max(largest, std::abs(error));
  }
  return largest;
}

Job job_1b(std::int64_t gpus, std::int64_t sequence, std::int64_t batch) {
  return job_of(2048, 32, 16, gpus, sequence, batch);
}

Plan recomputed(Plan plan, std::string policy) {
  plan.recompute.granularity = RecomputeGranularity::kSelective;
  plan.recompute.policy = std::move(policy);
  return plan;
}

Plan with_ring(Plan plan, std::int64_t cp) {
  plan.cp = cp;
  plan.cp_method = CpMethod::kRing;
  plan.zero = 3;
  return plan;
}

Plan with_batch(Plan plan, std::int64_t micro_batch) {
  plan.micro_batch = micro_batch;
  return plan;
}

TEST_CASE("eager runs reserve what their traces did, within 0.1 %") {
  Plan replicated = sharded(4);
  replicated.dp_replicate = 2;
  Job resharding = job_1b(4, 4096, 16);  // one segment more than with addresses in rising order
  resharding.profile.reshard_after_forward = ReshardAfterForward::kAlways;
  Plan pipeline = recomputed(with_batch(sharded(2), 2), "every_second_matmul");
  pipeline.pp = 2;
  pipeline.schedule = Schedule::k1F1B;
  const std::vector<Traced> runs = {
      {job_1b(1, 4096, 2), recomputed(with_batch(sharded(1), 2), "every_second_layer"),
       44'373'639'168},
      {job_1b(1, 8192, 1), recomputed(sharded(1), "every_second_matmul"), 41'360'031'744},
      {job_1b(1, 16384, 1), sharded(1), 76'237'766'656},
      {job_1b(2, 4096, 2),
       recomputed(with_ring(with_batch(sharded(1), 2), 2), "every_second_layer"), 25'404'899'328},
      {job_1b(2, 8192, 4), with_ring(with_batch(sharded(1), 2), 2), 40'353'398'784},
      {job_1b(4, 8192, 4), replicated, 39'223'033'856},
      {resharding, pipeline, 17'377'001'472}};
  CHECK(largest_error(runs) < 0.001);
}

TEST_CASE("compiled runs reserve what their traces did, within 3 %") {
  const auto compiled = [](Job job) {
    job.profile.compile = true;
    return job;
  };
  Plan full = with_ring(with_batch(sharded(1), 2), 2);
  full.recompute.granularity = RecomputeGranularity::kFull;
  Plan pipeline = with_ring(sharded(1), 2);
  pipeline.pp = 2;
  pipeline.schedule = Schedule::k1F1B;
  const std::vector<Traced> runs = {
      {compiled(job_1b(1, 4096, 2)), recomputed(with_batch(sharded(1), 2), "every_second_matmul"),
       28'282'191'872},
      {compiled(job_1b(1, 2048, 4)), with_batch(sharded(1), 2), 35'011'952'640},
      {compiled(job_1b(2, 8192, 1)), with_ring(sharded(1), 2), 22'793'945'088},
      {compiled(job_1b(2, 8192, 2)), full, 19'249'758'208},
      {compiled(job_1b(4, 4096, 4)), pipeline, 15'823'011'840}};
  CHECK(largest_error(runs) < 0.03);
}

}  // namespace
}  // namespace shardplan::torchtitan
