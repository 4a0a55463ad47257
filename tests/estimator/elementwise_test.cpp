// Memory-bound kernels: counts by hand, and what one layer of Llama-3-8B took on H200.
#include "estimator/elementwise.h"

#include <doctest/doctest.h>

#include "estimator/units.h"

namespace shardplan {
namespace {

constexpr double kTokens = 8192;
constexpr double kHidden = 4096;
constexpr double kFfn = 14336;
constexpr double kQueriesAndKeys = 4096 + 1024;

Job job_of(MemoryModel model) {
  Job job;
  job.profile.memory_model = model;
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
}

TEST_CASE("an unfused weight gradient is added to fp32 in 10 bytes an element") {
  const double elements = 2 * 218'103'808 + 2 * 128256.0 * 4096;
  CHECK(microseconds(elements * weight_gradient_kernels(job_of(MemoryModel::kMegatronLocal), {})) ==
        doctest::Approx(5534.3).epsilon(0.15));
  Job fused = job_of(MemoryModel::kMegatronLocal);
  fused.profile.gradient_accumulation_fusion = true;
  CHECK(microseconds(weight_gradient_kernels(fused, {})) == 0);
}

TEST_CASE("kernels that read badly take longer for the same bytes") {
  const double one = microseconds({.fused = 1e9});
  CHECK(microseconds({.streamed = 1e9}) > one);
  CHECK(microseconds({.converted = 1e9}) > microseconds({.streamed = 1e9}));
  CHECK(microseconds({.rearranged = 1e9}) > microseconds({.converted = 1e9}));
}

}  // namespace
}  // namespace shardplan
