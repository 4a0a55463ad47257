// What the kernels of one layer of Llama-3-8B take on an H200 whose copies were measured.
#pragma once

#include "estimator/frameworks/framework.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/time/elementwise.h"
#include "tests/time_constants.h"

namespace shardplan {

inline constexpr double kTokens = 8192;
inline constexpr double kHidden = 4096;
inline constexpr double kFfn = 14336;
inline constexpr double kQueriesAndKeys = 4096 + 1024;

// A job without a model whose weight gradients are not fused.
inline Job job_of(MemoryModel model) {
  Job job;
  job.cluster.gpu.constants = library_constants();
  set_framework(job.profile, model);
  job.profile.gradient_accumulation_fusion = false;
  job.profile.swiglu =
      model == MemoryModel::kMegatronLocal ? SwigluKind::kFused : SwigluKind::kUnfused;
  return job;
}

inline LayerKernels layer_kernels(const Job& job) {
  return framework_of(job.profile).kernels.layer(job, {});
}

inline Passes logit_kernels(const Job& job) {
  return framework_of(job.profile).kernels.loss(job, {}, static_cast<std::int64_t>(kTokens)).logit;
}

inline GpuSpec measured_h200() {
  GpuSpec gpu;
  gpu.constants = library_constants();
  gpu.times.emplace();
  gpu.times->copy_bytes_per_s = 4.25e12;
  return gpu;
}

inline double microseconds(const KernelBytes& bytes) {
  return elementwise_s(measured_h200(), bytes) * 1e6;
}

// Two norms with their additions, rotary embedding, copies, SwiGLU.
inline KernelBytes bytes_of_layer(const LayerKernels& kernels, KernelBytes Passes::*direction) {
  return 2 * kTokens * kHidden * (kernels.norm.*direction) +
         kTokens * kQueriesAndKeys * (kernels.rotary.*direction) +
         kTokens * kHidden * (kernels.copies.*direction) +
         kTokens * kFfn * (kernels.gated.*direction);
}

}  // namespace shardplan
