// torchtitan's HSDP: what FSDP2 keeps beside replicas of shards (torch _fsdp_param_group.py,
// AllReduceState), as code of PyTorch 2.11 has it and a rank on an H200 shows
// (data/measured/gpt_oss_ranks_h200.jsonl, goss-hsdp).
#include <doctest/doctest.h>

#include <string_view>

#include "estimator/estimate.h"
#include "tests/estimator/frameworks/torchtitan/peaks.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::torchtitan {
namespace {

constexpr std::int64_t kLayers = 4;
constexpr std::int64_t kVocab = 32768;

Job llama(std::int64_t microbatches) {
  Job job = llama_job("torchtitan", {.hidden = 1024, .ffn = 4096, .heads = 8, .layers = kLayers}, 8,
                      2048, 8 * microbatches);
  job.model.vocab = kVocab;
  job.model.num_kv_heads = 8;
  return job;
}

Plan sharded(std::int64_t replicas) {
  Plan plan;
  plan.dp = 8;
  plan.dp_replicate = replicas;
  plan.zero = 3;
  return plan;
}

std::int64_t kept_bytes(const Job& job, const Plan& plan, std::string_view row) {
  const StageMemory stage = estimate_memory(job, plan).stages.at(0);
  const auto found = std::ranges::find(stage.rows, row, &Row::name);
  return found == stage.rows.end() ? 0 : found->bytes;
}

// Two replicas of four shards; a layer of 4 products of 1024 by 1024, 3 of 4096 by 1024, 2 norms.
TEST_CASE("beside replicas later microbatches keep what they reduced to the end of backward") {
  constexpr std::int64_t kShare = 4 * (4 * 1024 * 1024 + 3 * 4096 * 1024 + 2 * 1024) / 4;
  constexpr std::int64_t kHead = 4 * (kVocab * 1024 + 1024) / 4;
  const Job job = llama(2);
  const Plan plan = sharded(2);
  CHECK(kept_bytes(job, plan, "embedding.fsdp.kept_reductions") == kLayers * kShare + kHead);
  CHECK(kept_bytes(job, plan, "layer.first.fsdp.kept_reductions") ==
        (kLayers - 1) * kShare + kHead);
  CHECK(kept_bytes(job, plan, "layer.last.fsdp.kept_reductions") == kHead);
  CHECK(kept_bytes(llama(1), plan, "embedding.fsdp.kept_reductions") == 0);
  CHECK(kept_bytes(job, sharded(1), "embedding.fsdp.kept_reductions") == 0);
}

TEST_CASE("rows and timeline of replicas with several microbatches peak alike") {
  for (const std::int64_t microbatches : {1, 2}) {
    CAPTURE(microbatches);
    Job job = llama(microbatches);
    check_peaks_alike(job, sharded(2));
    job.sequence_length = 256;  // whose peak is at the end of backward
    check_peaks_alike(job, sharded(2));
  }
}

}  // namespace
}  // namespace shardplan::torchtitan
