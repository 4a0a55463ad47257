// Memory-bound kernels: counts by hand, and what one layer of Llama-3-8B took on H200.
#include "estimator/time/elementwise.h"
#include "estimator/frameworks/framework.h"

#include <doctest/doctest.h>

#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr double kTokens = 8192;
constexpr double kHidden = 4096;
constexpr double kFfn = 14336;
constexpr double kQueriesAndKeys = 4096 + 1024;

Job job_of(MemoryModel model) {
  Job job;
  set_framework(job.profile, model);
  job.profile.gradient_accumulation_fusion = false;
  job.profile.swiglu =
      model == MemoryModel::kMegatronLocal ? SwigluKind::kFused : SwigluKind::kUnfused;
  return job;
}

GpuSpec measured_h200() {
  GpuSpec gpu;
  gpu.times.emplace();
  gpu.times->copy_bytes_per_s = 4.25e12;
  return gpu;
}

double microseconds(const KernelBytes& bytes) {
  return elementwise_s(measured_h200(), bytes) * 1e6;
}

// Two norms with their additions, rotary embedding, copies, SwiGLU.
KernelBytes layer(const LayerKernels& kernels, KernelBytes Passes::*direction) {
  return 2 * kTokens * kHidden * (kernels.norm.*direction) +
         kTokens * kQueriesAndKeys * (kernels.rotary.*direction) +
         kTokens * kHidden * (kernels.copies.*direction) +
         kTokens * kFfn * (kernels.gated.*direction);
}

// data/measured/torch_kernels_h200.json, halves of what two layers took: norms, additions, silu and
// products, casts and complex products (torchtitan); and negations, cats and copies (Megatron).
TEST_CASE("the eager kernels of torchtitan's layer take what was measured") {
  const LayerKernels kernels = layer_kernels(job_of(MemoryModel::kTorchtitan), {});
  const double forward = (469.2 + 452.4 + 419.5 + 316.3 + 252 * 4 / 5. + 235.4 + 122.2) / 2;
  const double backward =
      (1049.3 + 476.1 + 446.9 + (334.4 + 231.4) * 4 / 5. + 244 + 187.4 + 119) / 2;
  CHECK(microseconds(layer(kernels, &Passes::forward)) == doctest::Approx(forward).epsilon(0.1));
  CHECK(microseconds(layer(kernels, &Passes::backward)) == doctest::Approx(backward).epsilon(0.1));
}

TEST_CASE("the compiled kernels of torchtitan's layer take what was measured") {
  Job job = job_of(MemoryModel::kTorchtitan);
  job.profile.compile = true;
  const LayerKernels kernels = layer_kernels(job, {});
  const double forward = (388.2 + 283.7 + 163.4 + 149.1 + 138.1 + 115 + 110 + 37.2 + 33.3) / 2;
  const double backward = (785.3 + 373.5 + 233.2 + 196.1 + 98.2 + 93.3 + 74.7 + 25.9) / 2;
  CHECK(microseconds(layer(kernels, &Passes::forward)) == doctest::Approx(forward).epsilon(0.15));
  CHECK(microseconds(layer(kernels, &Passes::backward)) == doctest::Approx(backward).epsilon(0.15));
}

TEST_CASE("the kernels of Megatron-core's local layer take what was measured") {
  const LayerKernels kernels = layer_kernels(job_of(MemoryModel::kMegatronLocal), {});
  const double forward =
      (490 + 362.3 + 318 + 215.3 * 4 / 5 + 177.9 + 158.4 + 115.8 + 107.6 + 83.3) / 2;
  const double backward =
      (909.6 + 527 + 408.5 + 382.9 + (346.5 + 227.3) * 4 / 5 + 111.4 + 99.4) / 2;
  CHECK(microseconds(layer(kernels, &Passes::forward)) == doctest::Approx(forward).epsilon(0.15));
  CHECK(microseconds(layer(kernels, &Passes::backward)) == doctest::Approx(backward).epsilon(0.15));
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
  const LayerKernels kernels = layer_kernels(engine_job(), {});
  const double forward = 1309 / 17. + (1426 + 1488 + 1707 + 2615) / 16.;
  const double backward = (1950 + 115) / 17. + (1484 + 1687 + 793 + 8805) / 16.;
  CHECK(microseconds(layer(kernels, &Passes::forward)) == doctest::Approx(forward).epsilon(0.1));
  CHECK(microseconds(layer(kernels, &Passes::backward)) == doctest::Approx(backward).epsilon(0.1));
}

// Qwen3RMSNorm is LlamaRMSNorm: forward on heads as on tokens, less the residual addition of 3
// elements. Of local layers a norm of the heads reads and writes what is there.
TEST_CASE("norms of heads are counted as norms") {
  for (const MemoryModel model : {MemoryModel::kDeepspeed, MemoryModel::kMegatronLocal}) {
    Job job = job_of(model);
    const LayerKernels without = layer_kernels(job, {});
    job.model.qk_norm = true;
    job.model.num_heads = 32;
    job.model.num_kv_heads = 8;
    const KernelBytes with = layer_kernels(job, {}).rotary.forward;
    const KernelBytes& norm = without.norm.forward;
    CHECK(with.streamed - without.rotary.forward.streamed == norm.streamed - 3 * 2);
    CHECK(with.converted - without.rotary.forward.converted == norm.converted);
    // k alone, one of five heads, is made contiguous.
    CHECK(with.rearranged - without.rotary.forward.rearranged ==
          doctest::Approx(model == MemoryModel::kDeepspeed ? 0 : 2 * 2 / 5.));
  }
}

TEST_CASE("learned positions are added once, not turned into every layer") {
  Job job = engine_job();
  CHECK(layer_kernels(job, {}).rotary.forward.fused > 0);
  job.model.learned_positions = 2048;
  CHECK(layer_kernels(job, {}).rotary.forward.fused == 0);
  CHECK(layer_kernels(job, {}).rotary.backward.fused == 0);
  CHECK(layer_kernels(job, {}).copies.forward.rearranged == 0);
  CHECK(layer_kernels(job, {}).copies.backward.fused == 0);
}

TEST_CASE("as many key-value heads as heads leave the queries where they are") {
  Job job = engine_job();
  CHECK(layer_kernels(job, {}).copies.forward.rearranged == 2 * 2 * (1 + 0.25));
  CHECK(layer_kernels(job, {}).copies.backward.fused == 2 * 2 * (1 + 2 * 0.25));
  job.model.num_kv_heads = 32;
  CHECK(layer_kernels(job, {}).copies.forward.rearranged == 2 * 2 * 1);
  CHECK(layer_kernels(job, {}).copies.backward.fused == 2 * 2 * (1 + 2));
}

TEST_CASE("the gradient of Megatron-core's embedding is as large as its table") {
  const TableGradientKernels kernels = table_gradient_kernels(engine_job(), {});
  CHECK(microseconds(kTokens * kHidden * kernels.token) ==
        doctest::Approx((550 + 535 + 129) / 2.).epsilon(0.1));
  CHECK(microseconds(128256 * kHidden * kernels.table) ==
        doctest::Approx((633 + 4505) / 2.).epsilon(0.1));
}

// The same of 4 layers with 64 experts of 1024, 8 a token, 2 microbatches of 2 x 4096 tokens of
// 2048: gathers, scatter_add and cats forward; gathers, index_add and cats backward.
TEST_CASE("experts' rows are permuted in what was measured") {
  const double row_bytes = 8192 * 8 * 2048 * 2.0;
  Job job = engine_job();
  job.profile.moe_permute_fusion = false;
  const Passes unfused = permutation_kernels(job, {.ep = 8});
  const double gathers_or_cats = (1974 - 40) / 16. + 2 * 4008 / 32.;
  CHECK(microseconds(row_bytes * unfused.forward) ==
        doctest::Approx(gathers_or_cats + 4068 / 8.).epsilon(0.15));
  CHECK(microseconds(row_bytes * unfused.backward) ==
        doctest::Approx(gathers_or_cats + 9259 / 8.).epsilon(0.15));
  job.profile.moe_permute_fusion = true;
  CHECK(microseconds(permutation_kernels(job, {.ep = 8}).forward) < microseconds(unfused.forward));
  CHECK(microseconds(permutation_kernels(job, {.ep = 8}).backward) <
        microseconds(unfused.backward));
}

TEST_CASE("probabilities cost an expert's SwiGLU a gradient of their own") {
  const LayerKernels kernels = layer_kernels(engine_job(), {});
  const double halves = 8192 * 8 * 1024.0;
  CHECK(microseconds(halves * kernels.gated.forward) == doctest::Approx(728 / 8.).epsilon(0.15));
  CHECK(microseconds(halves * (kernels.gated.backward + kernels.weighted.backward)) ==
        doctest::Approx((2601 + 796) / 8.).epsilon(0.1));
}

TEST_CASE("losses over 8192 x 128256 logits take what was measured") {
  const double logits = kTokens * 128256;
  const Passes titan = loss_kernels(job_of(MemoryModel::kTorchtitan));
  CHECK(microseconds(logits * titan.forward) == doctest::Approx(7018).epsilon(0.1));
  CHECK(microseconds(logits * titan.backward) ==
        doctest::Approx(4448.7 + 1437 + 1085.5).epsilon(0.1));
  const Passes local = loss_kernels(job_of(MemoryModel::kMegatronLocal));
  CHECK(microseconds(logits * local.forward) ==
        doctest::Approx(3530.8 + 3261.4 + 3013 + 1984.7 + 1088.9 + 961.6).epsilon(0.1));
  CHECK(microseconds(logits * local.backward) == doctest::Approx(3121.8 + 1437.8).epsilon(0.15));
  Job engine = engine_job();
  engine.profile.cross_entropy = CrossEntropyKind::kTeFused;
  const Passes fused = loss_kernels(engine);
  CHECK(microseconds(logits * fused.forward) == doctest::Approx((1968 + 2079) / 2.).epsilon(0.1));
  CHECK(microseconds(logits * fused.backward) == doctest::Approx(2089 / 2.).epsilon(0.1));
}

TEST_CASE("an unfused weight gradient is added to fp32 in 10 bytes an element") {
  const double elements = 2 * 218'103'808 + 2 * 128256.0 * 4096;
  CHECK(microseconds(elements * weight_gradient_kernels(job_of(MemoryModel::kMegatronLocal), {})) ==
        doctest::Approx(5534.3).epsilon(0.15));
  Job fused = job_of(MemoryModel::kMegatronLocal);
  fused.profile.gradient_accumulation_fusion = true;
  CHECK(microseconds(weight_gradient_kernels(fused, {})) == 0);
}

// A step of data/measured/overlaps_two_gpus_h200.jsonl, fsdp-dense-fp32: copies take 12.55 ms, in
// -bf16, whose gradients are fused, 4.42; two microbatches.
TEST_CASE("Megatron-FSDP copies a gradient that is not fused into the bucket that is reduced") {
  Job job = engine_job();
  job.profile.gradient_accumulation_fusion = true;
  const double elements = 2 * 1'570'820'096.;
  const Plan copied = {.zero = 3};
  CHECK(microseconds(elements * weight_gradient_kernels(job, copied)) ==
        doctest::Approx(12'550 - 4'420).epsilon(0.2));
  const Plan fused = {.zero = 3, .grad_dtype = DType::kBf16};
  CHECK(microseconds(weight_gradient_kernels(job, fused)) == 0);
}

// Of a profile of torchtitan on four H200 (frameworks_again_h200.jsonl, pp 2, dp 2, 4
// microbatches): a stage's 16 layers of Llama-3-8B and its embedding add 3 of 4 gradients in 48.2
// ms.
TEST_CASE("gradients of a pipeline's microbatches are added up in what was measured") {
  Job job = job_of(MemoryModel::kTorchtitan);
  const auto kernels_us = [&](std::int64_t microbatches, const Plan& plan) {
    job.cluster.gpus_per_node = plan.pp;
    job.global_batch = microbatches;
    return microseconds((16 * 218'103'808. + 128'256 * 4096.) * weight_gradient_kernels(job, plan));
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

TEST_CASE("kernels that read badly take longer for the same bytes") {
  const double one = microseconds({.fused = 1e9});
  CHECK(microseconds({.streamed = 1e9}) > one);
  CHECK(microseconds({.converted = 1e9}) > microseconds({.streamed = 1e9}));
  CHECK(microseconds({.rearranged = 1e9}) > microseconds({.converted = 1e9}));
}

}  // namespace
}  // namespace shardplan
