// AdaLoRA and bottlenecks: what they hold, and what a layer saves for them, by hand and as autograd
// saved it on a CPU (saved_tensors_hooks around peft 0.20's SVDLinear and ms-swift's
// AdapterModule).
#include <doctest/doctest.h>

#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kRank = 16;
constexpr std::int64_t kNumLayers = 2;

Job adalora_job() {
  Job job = small_trainer_job(1);
  job.adapters = {.kind = AdapterKind::kAdaLora, .rank = kRank, .targets = {true, false, true}};
  return job;
}

Job bottleneck_job() {
  Job job = small_trainer_job(1);
  job.adapters = {.kind = AdapterKind::kBottleneck, .rank = kRank};
  job.adapters.targets[static_cast<std::size_t>(LinearLayer::kDown)] = true;
  return job;
}

// A, B and E of q [512, 512] and v [512, 256] in fp32, and a number that each divides by.
constexpr std::int64_t kAdaLora = kNumLayers * kRank * (512 + 512 + 1 + 512 + 256 + 1);

TEST_CASE("AdaLoRA trains a scale of each of A's rows, and keeps the importance of all numbers") {
  const Job job = adalora_job();
  const Plan plan = trainer_plan(0);
  CHECK(idle_bytes(job, plan, "adapters") == 4 * (kAdaLora + 2 * kNumLayers));
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kAdaLora);
  CHECK(idle_bytes(job, plan, "adapters.importance") == 3 * 4 * kAdaLora);
}

// In bf16 the input, the inner numbers, A by its scales and B; a divisor in fp32.
std::int64_t saved_of_linear(std::int64_t inputs, std::int64_t outputs) {
  return 2 * (kTokens * inputs + kTokens * kRank + kRank * inputs + kRank * outputs) + 4;
}

// The first layer's input asks for no gradient, and so for no A. The term of the loss saves two
// copies in bf16 of A and of B, of which autocast has one, and in fp32 the distance from the
// identity and its norm; the loss stays beside it.
TEST_CASE("AdaLoRA saves its factors anew at every use") {
  const Job job = adalora_job();
  CHECK(saved_bytes(job, "adapter.activations") ==
        kNumLayers * (saved_of_linear(512, 512) + saved_of_linear(512, 256)) - 2 * 2 * kRank * 512);
  const std::int64_t factors = kNumLayers * kRank * (512 + 512 + 512 + 256);
  const std::int64_t at_backward =
      trainer_bytes_at(job, MomentKind::kLossBackward, "adapters.orthogonality");
  CHECK(at_backward == 2 * factors + kNumLayers * 4 * 4 * (kRank * kRank + 1) + 4);
  CHECK(trainer_bytes_at(job, MomentKind::kLossBackward, "weights_cast") == 2 * factors);
}

// Both layers and their biases in fp32. Of an FFN in bf16 its output, what gelu reads and what it
// gives.
TEST_CASE("a bottleneck behind each FFN has two layers in fp32") {
  const Job job = bottleneck_job();
  const Plan plan = trainer_plan(0);
  const std::int64_t elements = kNumLayers * (2 * 512 * kRank + kRank + 512);
  CHECK(idle_bytes(job, plan, "adapters") == 4 * elements);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * elements);
  CHECK(saved_bytes(job, "adapter.activations") == kNumLayers * 2 * kTokens * (512 + 2 * kRank));
  CHECK(saved_bytes(job, "weights_cast") == 2 * elements);
}

TEST_CASE("AdaLoRA and bottlenecks that were not read are refused by name") {
  Job valid = small_trainer_job(8);
  valid.global_batch = 64;
  constexpr std::string_view kRule = "unsupported: adapters.kind";
  check_refused(valid,
                {{kRule,
                  [](Job& job, Plan& plan) {
                    job.adapters = adalora_job().adapters;
                    plan.zero = 3;
                  },
                  {"adalora with zero 3", "zero 0"}},
                 {kRule,
                  [](Job& job, Plan&) {
                    job.adapters = adalora_job().adapters;
                    job.quantized.kind = Quantization::kNf4;
                  },
                  {"adalora with quantized weights"}},
                 {kRule,
                  [](Job& job, Plan&) {
                    job.adapters = bottleneck_job().adapters;
                    job.adapters.dropout = 0.1;
                  },
                  {"bottleneck with dropout"}}},
                trainer_plan(0));
}

}  // namespace
}  // namespace shardplan::transformers
