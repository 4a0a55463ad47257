// Device memory outside PyTorch's allocator under transformers' Trainer.
#include "estimator/frameworks/transformers/outside.h"

#include <doctest/doctest.h>

#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

std::int64_t outside_bytes(std::int64_t gpus, OptimizerKind optimizer = OptimizerKind::kAdamW) {
  Job job = small_trainer_job(gpus);
  job.optimizer = optimizer;
  OutsideSum sum;
  add_outside(job, trainer_plan(0), 0, sum);
  return sum.bytes();
}

// 804 MB of one process of Trainer on an H200, 1687 MB of each of two under FSDP2, 1691 under DDP.
TEST_CASE("a process has a context, and with others one communicator") {
  CHECK(static_cast<double>(outside_bytes(1)) == doctest::Approx(804e6).epsilon(0.002));
  CHECK(static_cast<double>(outside_bytes(2)) == doctest::Approx(1689e6).epsilon(0.005));
}

// Norms are too small to be paged; the embedding's moments have 32 bits beside others of 8.
TEST_CASE("paged moments are managed memory") {
  const std::int64_t paged = kSmallModel - 5 * 512;
  const std::int64_t plain = outside_bytes(1);
  CHECK(outside_bytes(1, OptimizerKind::kAdamW8bit) == plain);
  CHECK(outside_bytes(1, OptimizerKind::kPagedAdamW) == plain + 8 * paged);
  CHECK(outside_bytes(1, OptimizerKind::kPagedAdamW8bit) == plain + 2 * paged + 6 * kSmallTable);
}

}  // namespace
}  // namespace shardplan::transformers
