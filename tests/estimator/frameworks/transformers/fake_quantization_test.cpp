// Linear layers that are trained to be quantized, counted by hand. What autograd saves of torchao
// 0.18's FakeQuantizedLinear was read with torch.autograd.graph.saved_tensors_hooks on the CPU: of
// a weight of 512 * 256 in groups of 32 four tensors in fp32 and four numbers a group, its rounded
// copy in bf16; of 128 rows of 256 one tensor in fp32, one in bf16, and two numbers a row.
#include <doctest/doctest.h>

#include <string_view>

#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kProducts = 2 * 512 * 512 + 2 * 512 * 256 + 3 * 512 * 1024;  // of a layer

Job rounding_job(std::int64_t gpus = 1) {
  Job job = small_trainer_job(gpus);
  job.profile.head_loss = HeadLoss::kCutCrossEntropy;
  job.profile.fake_quantization = FakeQuantization::kInt8Int4;
  job.profile.fake_quantization_group = 32;
  return job;
}

TEST_CASE("weights that are rounded are kept in fp32 four times, and once as they are read") {
  constexpr std::int64_t kOfGroups = 4 * 4;
  Job job = rounding_job();
  CHECK(saved_bytes(job, "weights_fake_quantized") ==
        2 * kProducts * (4 * 4 + 2) + 2 * kProducts / 32 * kOfGroups);
  job.profile.fake_quantization_group = 128;
  CHECK(saved_bytes(job, "weights_fake_quantized") ==
        2 * kProducts * (4 * 4 + 2) + 2 * kProducts / 128 * kOfGroups);
}

// q, k and v read the norm's output, which none of them keeps; o reads the kernel's, which the
// kernel keeps.
TEST_CASE("inputs that are rounded are kept in fp32 and in bf16 by each linear layer") {
  Job plain = rounding_job();
  plain.profile.fake_quantization = FakeQuantization::kNone;
  const Job job = rounding_job();
  constexpr std::int64_t kOfRow = (4 + 2) * 512 + 3 * 4;  // of a row: inverse, scale, zero point
  CHECK(saved_bytes(job, "layer.attention") - saved_bytes(plain, "layer.attention") ==
        2 * 4 * kTokens * kOfRow);
  CHECK(saved_bytes(job, "layer.norm") ==
        saved_bytes(plain, "layer.norm") - 2 * 2 * 2 * kTokens * 512);
}

// A recomputed layer rounds its weights again, and one layer has them at a time.
TEST_CASE("a layer that runs again has its own rounded weights alone") {
  const Job job = rounding_job();
  Plan plan = trainer_plan(0);
  plan.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 1};
  const std::int64_t most = most_bytes(job, plan, MomentKind::kReplay, "weights_fake_quantized");
  CHECK(most >= kProducts * 18);
  CHECK(most <= kProducts * 19 + 3 * 4 * 512 * 1024);
}

TEST_CASE("what was not read of rounding is refused by name") {
  Job valid = rounding_job(8);
  valid.global_batch = 64;
  constexpr std::string_view kRule = "unsupported: fake_quantization";
  check_refused(valid,
                {{kRule,
                  [](Job& job, Plan&) { job.profile.head_loss = HeadLoss::kStock; },
                  {"int8_int4 with a loss of all logits", "cut_cross_entropy"}},
                 {kRule,
                  [](Job& job, Plan&) { job.adapters = adapters_on_all(8); },
                  {"int8_int4 with adapters"}},
                 {kRule,
                  [](Job& job, Plan&) { job.profile.weights_dtype = DType::kFp32; },
                  {"int8_int4 with weights in fp32"}},
                 {kRule,
                  [](Job& job, Plan& plan) {
                    job.profile.fsdp_version = 1;
                    plan.zero = 3;
                  },
                  {"int8_int4 with fsdp_version 1"}}},
                trainer_plan(0));
}

}  // namespace
}  // namespace shardplan::transformers
