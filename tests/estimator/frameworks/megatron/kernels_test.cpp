// Memory-bound kernels: counts by hand, and what one layer of Llama-3-8B took on H200.
#include <doctest/doctest.h>

#include "estimator/answer/model_times.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "tests/estimator/layer_kernels.h"

namespace shardplan::megatron {
namespace {

// data/measured/torch_kernels_h200.json, halves of what two layers took: norms, additions, silu and
// products, casts, negations, cats and copies.
TEST_CASE("the kernels of Megatron-core's local layer take what was measured") {
  const LayerKernels kernels = layer_kernels(job_of(MemoryModel::kMegatronLocal));
  const double forward =
      (490 + 362.3 + 318 + 215.3 * 4 / 5 + 177.9 + 158.4 + 115.8 + 107.6 + 83.3) / 2;
  const double backward =
      (909.6 + 527 + 408.5 + 382.9 + (346.5 + 227.3) * 4 / 5 + 111.4 + 99.4) / 2;
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::forward)) ==
        doctest::Approx(forward).epsilon(0.15));
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::backward)) ==
        doctest::Approx(backward).epsilon(0.15));
}

// A norm of the heads reads and writes what is there.
TEST_CASE("norms of heads in local layers are counted as norms") {
  Job job = job_of(MemoryModel::kMegatronLocal);
  const LayerKernels without = layer_kernels(job);
  job.model.qk_norm = true;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 8;
  const KernelBytes with = layer_kernels(job).rotary.forward;
  const KernelBytes& norm = without.norm.forward;
  CHECK(with.streamed - without.rotary.forward.streamed == norm.streamed - 3 * 2);
  CHECK(with.converted - without.rotary.forward.converted == norm.converted);
  // k alone, one of five heads, is made contiguous.
  CHECK(with.rearranged - without.rotary.forward.rearranged == doctest::Approx(2 * 2 / 5.));
}

// Of a profile of Megatron-core v0.16.1 with Transformer Engine 2.11 on H200: kernels of 8 layers
// of Llama-3-8B, embedding and head, 2 microbatches of 8192 tokens.
Job engine_job() {
  Job job = job_of(MemoryModel::kMegatron);
  job.profile.swiglu = SwigluKind::kFused;
  job.model.num_heads = 32;
  job.model.num_kv_heads = 8;
  job.model.moe.topk = 8;
  return job;
}

TEST_CASE("the kernels of Megatron-core's layer with Transformer Engine take what was measured") {
  const LayerKernels kernels = layer_kernels(engine_job());
  const double forward = 1309 / 17. + (1426 + 1488 + 1707 + 2615) / 16.;
  const double backward = (1950 + 115) / 17. + (1484 + 1687 + 793 + 8805) / 16.;
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::forward)) ==
        doctest::Approx(forward).epsilon(0.1));
  CHECK(microseconds(bytes_of_layer(kernels, &Passes::backward)) ==
        doctest::Approx(backward).epsilon(0.1));
}

TEST_CASE("learned positions are added once, not turned into every layer") {
  Job job = engine_job();
  CHECK(layer_kernels(job).rotary.forward.fused > 0);
  job.model.learned_positions = 2048;
  CHECK(layer_kernels(job).rotary.forward.fused == 0);
  CHECK(layer_kernels(job).rotary.backward.fused == 0);
  CHECK(layer_kernels(job).copies.forward.rearranged == 0);
  CHECK(layer_kernels(job).copies.backward.fused == 0);
}

TEST_CASE("as many key-value heads as heads leave the queries where they are") {
  Job job = engine_job();
  CHECK(layer_kernels(job).copies.forward.rearranged == 2 * 2 * (1 + 0.25));
  CHECK(layer_kernels(job).copies.backward.fused == 2 * 2 * (1 + 2 * 0.25));
  job.model.num_kv_heads = 32;
  CHECK(layer_kernels(job).copies.forward.rearranged == 2 * 2 * 1);
  CHECK(layer_kernels(job).copies.backward.fused == 2 * 2 * (1 + 2));
}

TEST_CASE("the gradient of Megatron-core's embedding is as large as its table") {
  const TableGradientKernels kernels =
      framework_of(engine_job().profile).kernels.table_gradient(engine_job(), {});
  CHECK(microseconds(kTokens * kHidden * kernels.token) ==
        doctest::Approx((550 + 535 + 129) / 2.).epsilon(0.1));
  CHECK(microseconds(128256 * kHidden * kernels.table) ==
        doctest::Approx((633 + 4505) / 2.).epsilon(0.1));
}

TEST_CASE("probabilities cost an expert's SwiGLU a gradient of their own") {
  const LayerKernels kernels = layer_kernels(engine_job());
  const double halves = 8192 * 8 * 1024.0;
  CHECK(microseconds(halves * kernels.gated.forward) == doctest::Approx(728 / 8.).epsilon(0.15));
  CHECK(microseconds(halves * (kernels.gated.backward + kernels.weighted.backward)) ==
        doctest::Approx((2601 + 796) / 8.).epsilon(0.1));
}

TEST_CASE("Megatron-core's losses over 8192 x 128256 logits take what was measured") {
  const double logits = kTokens * 128256;
  const Passes local = logit_kernels(job_of(MemoryModel::kMegatronLocal));
  CHECK(microseconds(logits * local.forward) ==
        doctest::Approx(3530.8 + 3261.4 + 3013 + 1984.7 + 1088.9 + 961.6).epsilon(0.1));
  CHECK(microseconds(logits * local.backward) == doctest::Approx(3121.8 + 1437.8).epsilon(0.15));
  Job engine = engine_job();
  engine.profile.cross_entropy = CrossEntropyKind::kTeFused;
  const Passes fused = logit_kernels(engine);
  CHECK(microseconds(logits * fused.forward) == doctest::Approx((1968 + 2079) / 2.).epsilon(0.1));
  CHECK(microseconds(logits * fused.backward) == doctest::Approx(2089 / 2.).epsilon(0.1));
}

// {}: the products add to the main gradient.
KernelBytes weight_gradient(const Job& job, const Plan& plan) {
  return block_context(job, plan).weight_gradient;
}

TEST_CASE("an unfused weight gradient is added to fp32 in 10 bytes an element") {
  const double elements = 2 * 218'103'808 + 2 * 128256.0 * 4096;
  CHECK(microseconds(elements * weight_gradient(job_of(MemoryModel::kMegatronLocal), {})) ==
        doctest::Approx(5534.3).epsilon(0.15));
  Job fused = job_of(MemoryModel::kMegatronLocal);
  fused.profile.gradient_accumulation_fusion = true;
  CHECK(microseconds(weight_gradient(fused, {})) == 0);
}

// A step of data/measured/overlaps_two_gpus_h200.jsonl, fsdp-dense-fp32: copies take 12.55 ms, in
// -bf16, whose gradients are fused, 4.42; two microbatches.
TEST_CASE("Megatron-FSDP copies a gradient that is not fused into the bucket that is reduced") {
  Job job = engine_job();
  job.profile.gradient_accumulation_fusion = true;
  const double elements = 2 * 1'570'820'096.;
  const Plan copied = {.zero = 3};
  CHECK(microseconds(elements * weight_gradient(job, copied)) ==
        doctest::Approx(12'550 - 4'420).epsilon(0.2));
  const Plan fused = {.zero = 3, .grad_dtype = DType::kBf16};
  CHECK(microseconds(weight_gradient(job, fused)) == 0);
}

}  // namespace
}  // namespace shardplan::megatron
