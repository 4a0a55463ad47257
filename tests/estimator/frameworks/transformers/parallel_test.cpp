// Sequences divided over ranks, and copies of shards, under transformers' Trainer.
#include <doctest/doctest.h>

#include "tests/estimator/frameworks/transformers/played_bytes.h"
#include "tests/estimator/frameworks/transformers/small_job.h"

namespace shardplan::transformers {
namespace {

Plan divided(std::int64_t zero, std::int64_t cp) {
  Plan plan = trainer_plan(zero);
  plan.cp = cp;
  plan.cp_method = CpMethod::kA2a;
  return plan;
}

// Two ranks have a half of twice the sequence: what one has of the sequence itself, but for the
// exchange, whose parts on their way are two copies of queries at most.
TEST_CASE("Ulysses leaves a rank the activations of its own tokens") {
  Job whole = small_trainer_job(1);
  whole.profile.head_loss = HeadLoss::kPerToken;
  Job parts = small_trainer_job(2);
  parts.profile.head_loss = HeadLoss::kPerToken;
  parts.sequence_length *= 2;
  parts.global_batch = 1;
  for (const char* name : {"head.logits", "layer.ffn", "layer.residual"}) {
    CAPTURE(name);
    CHECK(most_bytes(parts, divided(0, 2), MomentKind::kLossForward, name) ==
          most_bytes(whole, divided(0, 1), MomentKind::kLossForward, name));
  }
  const auto attention = [](const Job& job, std::int64_t cp) {
    return held_bytes(job, divided(0, cp), Phase::kForward, "layer.attention");
  };
  CHECK(attention(parts, 2) >= attention(whole, 1));
  CHECK(attention(parts, 2) <= attention(whole, 1) + 3 * 2 * 512 * 512);
}

TEST_CASE("ranks of a sequence share FSDP2's shards, and DDP's buckets are on each") {
  Job job = small_trainer_job(2);
  job.global_batch = 1;
  CHECK(idle_bytes(job, divided(3, 2), "parameters.shards") == 4 * kSmallModel / 2);
  CHECK(idle_bytes(job, divided(0, 2), "ddp.buckets") == 2 * kSmallModel);
}

// Pieces of 128 tokens: logits in fp32, and of a piece the log-softmax and two gradients.
TEST_CASE("a loss in pieces of logits has their gradients in their place") {
  Job job = small_trainer_job(1);
  job.profile.head_loss = HeadLoss::kPerToken;
  job.profile.loss_chunk_tokens = 128;
  const auto logits = [&] {
    return most_bytes(job, divided(0, 1), MomentKind::kLossBackward, "head.logits_gradients");
  };
  CHECK(logits() >= 3 * 4 * 128 * 1024);
  CHECK(logits() <= 3 * 4 * 128 * 1024 + 2 * 512 * 1024 + 4096);
  job.profile.loss_chunk_tokens = 0;
  CHECK(logits() >= 2 * 4 * 512 * 1024);
}

// Of four ranks two have a copy: halves of all. Halves in bf16 stay until all have been summed.
TEST_CASE("hybrid shards are those of a copy, and what is summed over copies stays") {
  const Job job = small_trainer_job(4);
  Plan plan = trainer_plan(3);
  const auto buffers = [&] {
    return most_bytes(job, plan, MomentKind::kReduction, "gradients.reduce_buffer");
  };
  const std::int64_t alone = buffers();
  CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * kSmallModel / 4);
  plan.dp_replicate = 2;
  CHECK(idle_bytes(job, plan, "parameters.shards") == 4 * kSmallModel / 2);
  CHECK(idle_bytes(job, plan, "optimizer.exp_avg") == 4 * kSmallModel / 2);
  CHECK(buffers() >= alone + 2 * (2 * kSmallLayer + kSmallTable) / 2);
}

}  // namespace
}  // namespace shardplan::transformers
