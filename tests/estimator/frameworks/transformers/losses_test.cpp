// Losses that a trainer takes of the logits, token by token, counted by hand; what autograd saves
// of each was read with torch.autograd.graph.saved_tensors_hooks of PyTorch 2.11 on the CPU.
#include <doctest/doctest.h>

#include "tests/estimator/broken_plans.h"
#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

constexpr std::int64_t kTokens = 512;
constexpr std::int64_t kVocab = 1024;
constexpr std::int64_t kLogits = kTokens * kVocab;
constexpr std::int64_t kCounted = kLogits - kVocab;  // the last token predicts none
// Losses, weights, labels and masks of tokens, and tensors of one number.
constexpr std::int64_t kOfTokens = 64 * kTokens;

Job job_with(HeadLoss loss, std::int64_t gpus = 1) {
  Job job = small_trainer_job(gpus);
  job.profile.head_loss = loss;
  return job;
}

std::int64_t logits_at(const Job& job, MomentKind moment, std::int64_t zero = 0) {
  return most_bytes(job, trainer_plan(zero), moment, "head.logits");
}

// Logits that accelerate has made fp32 and their log-softmax; then the log-softmax and the
// gradients of both.
TEST_CASE("a loss weighted by probability has logits in fp32 twice, and thrice in backward") {
  const Job job = job_with(HeadLoss::kByProbability);
  const std::int64_t forward = logits_at(job, MomentKind::kLossForward);
  CHECK(forward >= 8 * kLogits);
  CHECK(forward <= 8 * kLogits + kOfTokens);
  const std::int64_t saved = logits_at(job, MomentKind::kLossBackward);
  CHECK(saved >= 4 * kLogits);
  CHECK(saved <= 4 * kLogits + kOfTokens);
  const std::int64_t gradients =
      most_bytes(job, trainer_plan(0), MomentKind::kLossBackward, "head.logits_gradients");
  CHECK(gradients >= 8 * kLogits);
  CHECK(gradients <= 8 * kLogits + kOfTokens);
}

// FSDP2 leaves the logits in bf16, of which the loss makes a copy in fp32.
TEST_CASE("a loss in fp32 of logits in bf16 copies them") {
  const std::int64_t forward =
      logits_at(job_with(HeadLoss::kByProbability, 2), MomentKind::kLossForward, 3);
  CHECK(forward >= 10 * kLogits);
  CHECK(forward <= 10 * kLogits + kOfTokens);
}

// Beside both a copy of the rows that count, of which 20 are largest: a value of 4 bytes and a
// place of 8, and 256 counts of 2 bytes a row while they are sought.
TEST_CASE("the entropy of the largest logits is taken of a copy of the rows that count") {
  const std::int64_t forward = logits_at(job_with(HeadLoss::kByEntropy), MomentKind::kLossForward);
  constexpr std::int64_t kLargest = 511 * (20 * 12 + 2 * 256);
  CHECK(forward >= 8 * kLogits + 4 * kCounted + kLargest);
  CHECK(forward <= 8 * kLogits + 4 * kCounted + kLargest + kOfTokens);
}

// axolotl's rows are those of one copy more, which the loss is of: logits, the copy and its
// log-softmax. Two sequences are copied without their last tokens first.
TEST_CASE("a loss of rows that count is of a copy of theirs") {
  Job job = job_with(HeadLoss::kByEntropyOfRows);
  const std::int64_t one = logits_at(job, MomentKind::kLossForward);
  CHECK(one >= 4 * kLogits + 8 * kCounted);
  CHECK(one <= 4 * kLogits + 8 * kCounted + kOfTokens);
  Plan plan = trainer_plan(0);
  plan.micro_batch = 2;
  job.global_batch *= 2;
  const std::int64_t two = most_bytes(job, plan, MomentKind::kLossForward, "head.logits");
  CHECK(two >= 4 * 2 * kLogits + 12 * 2 * kCounted);
  CHECK(two <= 4 * 2 * kLogits + 12 * 2 * kCounted + 2 * kOfTokens);
}

// The weights are constants, and the logits go with the outputs: the log-softmax alone stays.
TEST_CASE("weights of losses keep no logits") {
  for (const HeadLoss loss :
       {HeadLoss::kByProbability, HeadLoss::kByEntropy, HeadLoss::kByEntropyOfRows}) {
    CAPTURE(name_of(loss));
    const std::int64_t saved = logits_at(job_with(loss), MomentKind::kLossBackward);
    CHECK(saved >= 4 * kCounted);
    CHECK(saved <= 4 * kLogits + kOfTokens);
  }
}

// The logits of both models, the log-softmax of the model's own loss, and of rows that count two
// log-softmaxes, the reference's probabilities, their entropy, their product and the difference.
TEST_CASE("ASFT has the logits of two models and seven tensors like them") {
  Job job = job_with(HeadLoss::kAnchored);
  const std::int64_t one = logits_at(job, MomentKind::kLossForward);
  CHECK(one >= 3 * 4 * kLogits + 6 * 4 * kCounted);
  CHECK(one <= 3 * 4 * kLogits + 6 * 4 * kCounted + kOfTokens);
  Plan plan = trainer_plan(0);
  plan.micro_batch = 2;  // whose rows of both models are copied without the last of each sequence
  job.global_batch *= 2;
  const std::int64_t two = most_bytes(job, plan, MomentKind::kLossForward, "head.logits");
  CHECK(two >= 2 * (3 * 4 * kLogits + 8 * 4 * kCounted));
  CHECK(two <= 2 * (3 * 4 * kLogits + 8 * 4 * kCounted + kOfTokens));
}

// Both log-softmaxes and the probabilities; what both models returned is gone.
TEST_CASE("ASFT keeps three tensors of rows that count") {
  const std::int64_t kept = logits_at(job_with(HeadLoss::kAnchored), MomentKind::kLossBackward);
  CHECK(kept >= 3 * 4 * kCounted);
  CHECK(kept <= 3 * 4 * kCounted + kOfTokens);
}

// Whole, in the type of products, beside a model in fp32; its forward pass copies keys and values
// of both layers, 256 wide each.
TEST_CASE("ASFT holds a frozen copy of the model, which keeps keys and values") {
  Job job = job_with(HeadLoss::kAnchored);
  job.profile.weights_dtype = DType::kFp32;
  CHECK(idle_bytes(job, trainer_plan(0), "reference_model") == 2 * kSmallModel);
  Plan recomputes = trainer_plan(0);
  recomputes.recompute = {.granularity = RecomputeGranularity::kFull, .num_layers = 1};
  const auto kept = [&](HeadLoss loss) {
    return most_bytes(job_with(loss), recomputes, MomentKind::kLossForward, "layer.attention");
  };
  CHECK(kept(HeadLoss::kAnchored) == kept(HeadLoss::kByProbability) + 2 * 2 * 2 * 256 * 512);
}

TEST_CASE("ASFT is refused where LLaMA-Factory was not read, or does not run") {
  Job job = job_with(HeadLoss::kAnchored, 2);
  check_refused(
      job,
      {{"unsupported: objective", [](Job&, Plan& plan) { plan.zero = 3; }, {"asft with zero 3"}},
       {"unsupported: head_loss",
        [](Job& spoilt, Plan&) { spoilt.profile.liger_kernel = LigerKernel::kOn; },
        {"asft with liger_kernel"}},
       {"asft_trains_whole_models",
        [](Job& spoilt, Plan&) { spoilt.adapters = adapters_on_all(8); },
        {"no reference model", "dft"}}},
      trainer_plan(0));
}

// The last token of each sequence counts for nothing, and one rank of a group has it.
TEST_CASE("weighted losses are refused where ranks divide sequences") {
  Job job = job_with(HeadLoss::kByProbability, 8);
  job.global_batch = 64;
  check_refused(job,
                {{"unsupported: head_loss",
                  [](Job&, Plan& plan) {
                    plan.cp = 2;
                    plan.cp_method = CpMethod::kA2a;
                  },
                  {"dft with cp 2", "per_token", "cp 1"}}},
                trainer_plan(0));
}

}  // namespace
}  // namespace shardplan::transformers
