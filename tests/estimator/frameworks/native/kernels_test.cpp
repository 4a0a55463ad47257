// Kernels of our own trainer beside its products: counts by hand.
#include <doctest/doctest.h>

#include <utility>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/time/block_context_parallel.h"
#include "estimator/time/block_experts.h"
#include "tests/estimator/layer_kernels.h"
#include "tests/estimator/llama_job.h"

namespace shardplan::native {
namespace {

TEST_CASE("our own trainer copies inside a host and an NVLink domain, no other does") {
  for (const NamedValue<MemoryModel>& model : kMemoryModels) {
    const bool is_native = model.value == MemoryModel::kNative;
    CHECK(framework_of(job_of(model.value).profile).kernels.moves_by_copies == is_native);
  }
}

TEST_CASE("the native trainer adds up gradients of the keys that calls on gathered ones see") {
  Job job = job_on_h200();
  job.cluster.gpu.compute_capability = 80;  // cuDNN's
  set_framework(job.profile, MemoryModel::kNative);
  const auto merges = [&](const Plan& plan, std::int64_t window) {
    return context_parallel_merges(block_context(job, plan), {.attention_window = window}, {});
  };
  const double width = 2 * 8 * 128;
  const auto moving_s = [&](double bytes) { return memory_bound_s(job.cluster.gpu, bytes); };
  // Two sequences in chunks of 2048: 4096 tokens on a rank; the calls of rank 1 have 4096 queries
  // and the keys of up to 1 and up to 2 chunks before them. Of a token's keys and values, in bf16:
  // a copy of 4 bytes, a sum of two parts of 4 + 2, and zeros for two tokens of 4.
  const Plan plan = {.cp = 2, .micro_batch = 2, .cp_method = CpMethod::kAllGather};
  const double tokens = 2 * 4096;
  const std::pair<std::int64_t, double> keys_of_window[] = {
      {0, 4096 + 2048 + 4096},    {1000, 4096 + 1024 + 1024}, {1025, 4096 + 1024 + 1024},
      {1026, 4096 + 1088 + 1088}, {4000, 4096 + 2048 + 4032}, {8192, 4096 + 2048 + 4096}};
  for (const auto& row : keys_of_window) {
    const auto& window = row.first;
    const auto& keys = row.second;
    CAPTURE(window);
    const BlockTime time = merges(plan, window);
    CHECK(time.forward_s == doctest::Approx(moving_s(4 * tokens * width)));
    CHECK(time.backward_input_s ==
          doctest::Approx(
              moving_s((4 + (2 * 2 + 2) + 2 * 2) * tokens * width + 6 * 2 * keys * width)));
  }
  const Plan ring = {.cp = 2, .micro_batch = 2};
  CHECK(merges(ring, 0).backward_input_s == merges(ring, 1000).backward_input_s);
  job.cluster.gpu.compute_capability = 90;  // our own, which add by themselves
  CHECK(merges(plan, 1000).backward_input_s ==
        doctest::Approx(moving_s((4 + (2 * 2 + 2) + 2 * 2) * tokens * width)));
}

TEST_CASE("the native trainer writes and reads routed rows once, where Megatron permutes them") {
  Job job = job_on_h200();
  job.model.moe = {.num_experts = 64, .topk = 8, .expert_ffn = 1792};
  job.profile.moe_permute_fusion = true;
  const Plan plan;
  const double rows = 8192.0 * 8;  // of 8192 tokens, topk 8
  const double row_bytes = 4096 * 2;
  CHECK(expert_exchange(block_context(job, plan), rows).forward_s ==
        doctest::Approx(memory_bound_s(job.cluster.gpu, 8 * rows * row_bytes)));
  set_framework(job.profile, MemoryModel::kNative);
  CHECK(expert_exchange(block_context(job, plan), rows).forward_s ==
        doctest::Approx(memory_bound_s(job.cluster.gpu, 2 * (rows + 8192) * row_bytes)));
}

// 5 bytes an element: bf16 read twice, fp8 written; an output gradient is written twice.
TEST_CASE("our own trainer rounds both factors to fp8 before every product") {
  Job job = job_on_h200();
  set_framework(job.profile, MemoryModel::kNative);
  job.profile.gradient_accumulation_fusion = false;
  const Plan plan;
  const BlockContext context = block_context(job, plan);
  constexpr std::int64_t kRows = 8192, kIn = 4096, kOut = 28672;
  const ProductShape shape = {.m = kRows, .n = kOut, .k = kIn};
  const BlockTime bf16 = linear(context, shape, Precision::kBf16);
  const BlockTime fp8 = linear(context, shape, Precision::kFp8);
  const GpuSpec& gpu = job.cluster.gpu;
  const auto faster_s = [&](const ProductShape& product) {
    return gemm_s(gpu, Precision::kBf16, product) - gemm_s(gpu, Precision::kFp8, product);
  };
  CHECK(fp8.forward_s + faster_s(shape) - bf16.forward_s ==
        doctest::Approx(memory_bound_s(gpu, 5.0 * (kRows * kIn + kIn * kOut))));
  const ProductShape input = {.m = kRows, .n = kIn, .k = kOut, .pass = GemmPass::kInputGradient};
  CHECK(fp8.backward_input_s + faster_s(input) - bf16.backward_input_s ==
        doctest::Approx(memory_bound_s(gpu, 6.0 * kRows * kOut + 5.0 * kIn * kOut)));
  const ProductShape weight = {.m = kOut, .n = kIn, .k = kRows, .pass = GemmPass::kWeightGradient};
  CHECK(fp8.backward_weight_s + faster_s(weight) - bf16.backward_weight_s ==
        doctest::Approx(memory_bound_s(gpu, 5.0 * kRows * kIn)));
}

}  // namespace
}  // namespace shardplan::native
