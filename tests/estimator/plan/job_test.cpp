// Sizes derived from a job and a plan.
#include "estimator/plan/job.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

Job job_on(std::int64_t gpus) {
  Job job;
  job.cluster.gpus_per_node = gpus;
  job.sequence_length = 8192;
  job.global_batch = 64;
  return job;
}

TEST_CASE("what tensor, context and pipeline parallelism leave of the cluster is data parallel") {
  const Job job = job_on(64);
  CHECK(data_parallel_size(job, {.tp = 4, .cp = 2, .pp = 2}) == 4);
  CHECK(data_parallel_size(job, {.tp = 4, .cp = 2, .pp = 2, .dp = 4}) == 4);
  CHECK_THROWS_AS(data_parallel_size(job, {.tp = 3}), std::logic_error);
}

TEST_CASE("a global batch is cut into microbatches per data-parallel rank") {
  const Job job = job_on(8);
  CHECK(num_microbatches(job, {.tp = 2, .pp = 2, .micro_batch = 1}) == 32);
  CHECK(num_microbatches(job, {.tp = 2, .pp = 2, .micro_batch = 4}) == 8);
  CHECK_THROWS_AS(num_microbatches(job, {.micro_batch = 3}), std::logic_error);
}

TEST_CASE("context parallelism divides the tokens of a rank, tensor parallelism does not") {
  const Job job = job_on(8);
  CHECK(tokens_per_microbatch(job, {.tp = 2, .cp = 4, .micro_batch = 3}) == 3 * 2048);
}

TEST_CASE("the Llama 3 vocabulary is padded as Megatron-LM pads it at tp 1, 2, 4 and 8") {
  Job job = job_on(8);
  job.model.vocab = 128256;
  job.profile.vocab_multiple = 128;
  CHECK(padded_vocab(job, {.tp = 1}) == 128256);
  CHECK(padded_vocab(job, {.tp = 2}) == 128256);
  CHECK(padded_vocab(job, {.tp = 4}) == 128512);
  CHECK(padded_vocab(job, {.tp = 8}) == 129024);
}

TEST_CASE("without padding the vocabulary only becomes divisible by tp") {
  Job job = job_on(8);
  job.model.vocab = 50257;
  job.profile.vocab_multiple = 1;
  CHECK(padded_vocab(job, {.tp = 1}) == 50257);
  CHECK(padded_vocab(job, {.tp = 8}) == 50264);
}

TEST_CASE("optimizer shards of dense parameters span dp and cp, those of experts the whole stage") {
  const Job job = job_on(64);
  const Plan plan = {.tp = 2, .cp = 2, .ep = 4, .etp = 1, .pp = 2, .dp_replicate = 2};
  CHECK(data_parallel_size(job, plan) == 8);
  CHECK(dense_shard_size(job, plan) == 8 * 2 / 2);
  CHECK(expert_shard_size(job, plan) == 64 / (2 * 4 * 1) / 2);
}

TEST_CASE("without expert parallelism Megatron-LM keeps experts' state with the dense one") {
  Job job = job_on(4);
  const Plan plan = {.tp = 2, .dp = 2};  // etp 1: four ranks have the same experts
  set_framework(job.profile, MemoryModel::kMegatronLocal);
  CHECK(expert_shard_size(job, plan) == 4);
  CHECK(expert_state_shards(job, plan) == 2);
  Plan experts = plan;
  experts.ep = 2;
  CHECK(expert_state_shards(job, experts) == 2);
  CHECK(expert_shard_size(job, experts) == 2);
  set_framework(job.profile, MemoryModel::kNative);
  CHECK(expert_state_shards(job, plan) == 4);
}

}  // namespace
}  // namespace shardplan
