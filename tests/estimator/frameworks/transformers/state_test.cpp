// What a rank of transformers' Trainer holds, counted by hand.
#include "estimator/frameworks/transformers/state.h"

#include <doctest/doctest.h>

#include <string_view>

#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

// Bytes that a row has at the fullest instant of a phase.
std::int64_t held_bytes(const Job& job, const Plan& plan, Phase phase, std::string_view name) {
  std::int64_t bytes = 0;
  for (const StateRow& row : state_of_stage(job, plan).rows) {
    bytes += row.name == name && row.is_alive(phase) ? row.total_bytes() : 0;
  }
  return bytes;
}

std::int64_t idle_bytes(const Job& job, const Plan& plan, std::string_view name) {
  return held_bytes(job, plan, Phase::kIdle, name);
}

TEST_CASE("one GPU holds weights, and two moments in their type") {
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    Job job = small_trainer_job(1);
    job.profile.weights_dtype = dtype;
    const Plan plan = trainer_plan(0);
    const std::int64_t bytes = bytes_of(dtype) * kSmallModel;
    CHECK(idle_bytes(job, plan, "parameters") == bytes);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == bytes);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg_sq") == bytes);
    CHECK(idle_bytes(job, plan, "ddp.buckets") == 0);
  }
}

// Per layer: q and v of rank 16, A 16 * 512 and B 512 * 16, and A 16 * 512 and B 256 * 16.
TEST_CASE("adapters are held in fp32 beside frozen weights, and have the only moments") {
  Job job = small_trainer_job(1);
  job.adapters = {.rank = 16, .targets = {true, false, true}};
  const Plan plan = trainer_plan(0);
  const std::int64_t adapters = 2 * 16 * (512 + 512 + 512 + 256);
  CHECK(idle_bytes(job, plan, "adapters") == 4 * adapters);
  CHECK(idle_bytes(job, plan, "parameters") == 2 * kSmallModel);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * adapters);
  CHECK(idle_bytes(job, plan, "optimizer.step") == 2 * 4 * 4);  // a number for each A and B
}

// Of n elements in nf4: n / 2 packed, a byte for each of n / 64 blocks, an fp32 scale for each 256
// of these, their code of 256 fp32 values, an fp32 offset, and the code of 16 fp32 values.
std::int64_t nf4_bytes(std::int64_t elements, bool is_double) {
  const std::int64_t blocks = elements / 64;
  return elements / 2 + 16 * 4 + (is_double ? blocks + blocks / 256 * 4 + 256 * 4 + 4 : 4 * blocks);
}

TEST_CASE("linear weights in nf4 are packed, with scales of blocks that may be quantized as well") {
  Job job = small_trainer_job(1);
  job.adapters = adapters_on_all(8);
  const Plan plan = trainer_plan(0);
  for (const bool is_double : {false, true}) {
    job.quantized = {.kind = Quantization::kNf4, .is_double = is_double};
    const std::int64_t layer = 2 * nf4_bytes(512 * 512, is_double) +
                               2 * nf4_bytes(512 * 256, is_double) +
                               3 * nf4_bytes(512 * 1024, is_double);
    CHECK(idle_bytes(job, plan, "parameters.quantized") == 2 * layer);
    CHECK(idle_bytes(job, plan, "parameters") == 2 * (2 * kSmallTable + 512 + 2 * 2 * 512));
  }
}

TEST_CASE("DDP has buckets of all trained parameters, in their type") {
  Job job = small_trainer_job(2);
  job.profile.weights_dtype = DType::kFp32;
  CHECK(idle_bytes(job, trainer_plan(0), "ddp.buckets") == 4 * kSmallModel);
  job.adapters = adapters_on_all(8);
  const std::int64_t layer = 8 * (2 * (512 + 512) + 2 * (512 + 256) + 3 * (512 + 1024));
  CHECK(idle_bytes(job, trainer_plan(0), "ddp.buckets") == 4 * 2 * layer);
}

// At the loss the last group, final norm and head, is whole; without resharding every group is.
TEST_CASE("FSDP2 shards fp32 parameters, and gathers groups in bf16") {
  const Job job = small_trainer_job(2);
  for (const std::int64_t zero : {2, 3}) {
    CAPTURE(zero);
    const Plan plan = trainer_plan(zero);
    CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * kSmallModel / 2);
    CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel / 2);
    CHECK(idle_bytes(job, plan, "parameters.gathered") == 0);
  }
  CHECK(held_bytes(job, trainer_plan(2), Phase::kForward, "parameters.gathered") ==
        2 * kSmallModel);
}

std::int64_t peak_of(const Job& job, const Plan& plan, MomentKind moment) {
  return state_of_stage(job, plan).played->moments[static_cast<std::size_t>(moment)];
}

// Behind the first microbatch every gradient is there in bf16, whole, however many ranks there are.
TEST_CASE("under FSDP2 microbatches before the last leave their gradients whole") {
  for (const std::int64_t gpus : {2, 8}) {
    CAPTURE(gpus);
    const Job once = small_trainer_job(gpus);
    Job twice = once;
    twice.global_batch *= 2;
    CHECK(peak_of(twice, trainer_plan(3), MomentKind::kLossForward) -
              peak_of(once, trainer_plan(3), MomentKind::kLossForward) ==
          2 * kSmallModel);
  }
}

// Old buckets stay beside new ones through the second step's forward pass, unless the first step
// of the optimizer takes longer than NCCL's watchdog sleeps.
TEST_CASE("DDP makes its buckets anew where it looks for no unused parameters") {
  Plan plan = trainer_plan(0);
  plan.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 1};
  const auto at_loss = [&](OptimizerKind optimizer) {
    Job job = small_trainer_job(2);
    job.optimizer = optimizer;
    return peak_of(job, plan, MomentKind::kLossForward);
  };
  // Two moments in fp32 of five norms, which are too small for managed memory.
  const std::int64_t moments = 5 * 2 * 4 * 512;
  CHECK(at_loss(OptimizerKind::kSgd) - at_loss(OptimizerKind::kPagedAdamW) ==
        2 * kSmallModel - moments);
}

}  // namespace
}  // namespace shardplan::transformers
