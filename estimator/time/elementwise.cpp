// Every number counts how often one element is read or written. A product of bytes and rates was
// held against the kernels of one layer of Llama-3-8B on H200
// (data/measured/torch_kernels_h200.json).
#include "estimator/time/elementwise.h"

#include "estimator/time/kernel_time.h"

namespace shardplan {

KernelBytes operator+(const KernelBytes& a, const KernelBytes& b) {
  return {.fused = a.fused + b.fused,
          .streamed = a.streamed + b.streamed,
          .converted = a.converted + b.converted,
          .rearranged = a.rearranged + b.rearranged};
}

KernelBytes operator*(double count, const KernelBytes& bytes) {
  return {.fused = count * bytes.fused,
          .streamed = count * bytes.streamed,
          .converted = count * bytes.converted,
          .rearranged = count * bytes.rearranged};
}

Passes operator+(const Passes& a, const Passes& b) {
  return {.forward = a.forward + b.forward, .backward = a.backward + b.backward};
}

KernelBytes at_share(const GpuSpec& gpu, double bytes, double TimeConstants::*share) {
  const TimeConstants& of = *gpu.constants;
  return {.fused = bytes * of.fused_share / of.*share};
}

double elementwise_s(const GpuSpec& gpu, const KernelBytes& bytes) {
  const TimeConstants& of = *gpu.constants;
  const double as_fused =
      bytes.fused + (bytes.streamed / of.streamed_share + bytes.converted / of.converted_share +
                     bytes.rearranged / of.rearranged_share) *
                        of.fused_share;
  return memory_bound_s(gpu, as_fused);
}

double activation_element_bytes(const Plan& plan) {
  return plan.precision == Precision::kFp32 ? 4 : 2;
}

double gradient_element_bytes(const Plan& plan) {
  return static_cast<double>(bytes_of(plan.grad_dtype));
}

}  // namespace shardplan
