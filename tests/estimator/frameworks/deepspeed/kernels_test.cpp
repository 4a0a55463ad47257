// Memory-bound kernels of Hugging Face's layers, counted by hand.
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/layer_kernels.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::deepspeed {
namespace {

// Qwen3RMSNorm is LlamaRMSNorm: forward on heads as on tokens, less the residual addition of 3
// elements.
TEST_CASE("norms of heads in Hugging Face's layers are counted as norms") {
  Job job = job_of(MemoryModel::kDeepspeed);
  const LayerKernels without = layer_kernels(job);
  job.model.qk_norm = true;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 8;
  const KernelBytes with = layer_kernels(job).rotary.forward;
  const KernelBytes& norm = without.norm.forward;
  CHECK(with.streamed - without.rotary.forward.streamed == norm.streamed - 3 * 2);
  CHECK(with.converted - without.rotary.forward.converted == norm.converted);
  CHECK(with.rearranged == without.rotary.forward.rearranged);
}

// Copied into the bucket, divided, copied flat: 2 bytes six times.
TEST_CASE("gradients of DeepSpeed's weights go through the bucket") {
  const Job job = job_of(MemoryModel::kDeepspeed);
  for (const std::int64_t zero : {2, 3}) {
    CHECK(block_context(job, deepspeed_plan(zero)).weight_gradient.fused == 12);
  }
}

}  // namespace
}  // namespace shardplan::deepspeed
