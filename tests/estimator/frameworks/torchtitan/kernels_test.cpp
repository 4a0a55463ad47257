// Memory-bound kernels: what one layer of Llama-3-8B took on H200.
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/layer_kernels.h"

namespace shardplan::torchtitan {
namespace {

// data/measured/torch_kernels_h200.json, halves of what two layers took: norms,
// additions, silu and
// products, casts and complex products (torchtitan).
TEST_CASE("the eager kernels of torchtitan's layer take what was measured") {
  const LayerKernels kernels = layer_kernels(job_of(MemoryModel::kTorchtitan));
  const double forward = (469.2 + 452.4 + 419.5 + 316.3 + 252 * 4 / 5. + 235.4 + 122.2) / 2;
  const double backward =
      (1049.3 + 476.1 + 446.9 + (334.4 + 231.4) * 4 / 5. + 244 + 187.4 + 119) / 2;
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::forward)) ==
        doctest::Approx(forward).epsilon(0.1));
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::backward)) ==
        doctest::Approx(backward).epsilon(0.1));
}

TEST_CASE("the compiled kernels of torchtitan's layer take what was measured") {
  Job job = job_of(MemoryModel::kTorchtitan);
  job.profile.compile = true;
  const LayerKernels kernels = layer_kernels(job);
  const double forward = (388.2 + 283.7 + 163.4 + 149.1 + 138.1 + 115 + 110 + 37.2 + 33.3) / 2;
  const double backward = (785.3 + 373.5 + 233.2 + 196.1 + 98.2 + 93.3 + 74.7 + 25.9) / 2;
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::forward)) ==
        doctest::Approx(forward).epsilon(0.15));
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::backward)) ==
        doctest::Approx(backward).epsilon(0.15));
}

TEST_CASE("torchtitan's loss over 8192 x 128256 logits takes what was measured") {
  const double logits = kTokens * 128256;
  const Passes titan = logit_kernels(job_of(MemoryModel::kTorchtitan));
  CHECK(microseconds(logits * titan.forward) == doctest::Approx(7018).epsilon(0.1));
  CHECK(microseconds(logits * titan.backward) ==
        doctest::Approx(4448.7 + 1437 + 1085.5).epsilon(0.1));
}

// {}: the products add to the main gradient.
KernelBytes weight_gradient(const Job& job, const Plan& plan) {
  return block_context(job, plan).weight_gradient;
}

// Of a profile of torchtitan on four H200 (frameworks_again_h200.jsonl, pp 2, dp 2, 4
// microbatches): a stage's 16 layers of Llama-3-8B and its embedding add 3 of 4 gradients in 48.2
// ms.
TEST_CASE("gradients of a pipeline's microbatches are added up in what was measured") {
  Job job = job_of(MemoryModel::kTorchtitan);
  const auto kernels_us = [&](std::int64_t microbatches, const Plan& plan) {
    job.cluster.gpus_per_node = plan.pp;
    job.global_batch = microbatches;
    return microseconds((16 * 218'103'808. + 128'256 * 4096.) * weight_gradient(job, plan));
  };
  const Plan pipeline = {.pp = 2, .zero = 3};
  const double addition = kernels_us(1 << 20, pipeline);  // but for one in a million
  const double cast = 4 * kernels_us(4, pipeline) - 3 * addition;
  CHECK(3 * addition == doctest::Approx(48'200).epsilon(0.1));
  CHECK(cast == doctest::Approx(0.6 * addition).epsilon(0.001));  // 6 bytes of 10
  CHECK(kernels_us(1, pipeline) == 0);     // reduced from where the product wrote it
  CHECK(kernels_us(4, {.zero = 3}) == 0);  // every microbatch is reduced
  CHECK(kernels_us(4, {.zero = 0}) > kernels_us(1, {.zero = 0}));
}

}  // namespace
}  // namespace shardplan::torchtitan
