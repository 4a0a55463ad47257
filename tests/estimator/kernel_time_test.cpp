// Kernels: measured anchors, waves, rooflines, measured curves.
#include "estimator/kernel_time.h"

#include <doctest/doctest.h>

namespace shardplan {
namespace {

GpuSpec h200() {
  GpuSpec gpu;
  gpu.compute_capability = 90;
  gpu.num_sms = 132;
  gpu.bf16_flops_per_s = 989.4e12;
  gpu.fp8_flops_per_s = 1978.9e12;
  gpu.fp32_flops_per_s = 67e12;
  gpu.memory_bytes_per_s = 4.8e12;
  return gpu;
}

double rate(const GpuSpec& gpu, const GemmShape& shape) {
  return shape.flops() / gemm_s(gpu, Precision::kBf16, shape) / 1e12;
}

TEST_CASE("a large bf16 product on H200 runs under load at 0.9 to 1.0 of its burst of 769") {
  const double tflops = rate(h200(), {.m = 8192, .n = 8192, .k = 8192});
  CHECK(tflops > 0.9 * 769);
  CHECK(tflops < 769);
}

TEST_CASE("dividing a small product by eight does not make it eight times faster") {
  const GpuSpec gpu = h200();
  const double whole = gemm_s(gpu, Precision::kBf16, {.m = 2048, .n = 2048, .k = 2048});
  const double eighth = gemm_s(gpu, Precision::kBf16, {.m = 2048, .n = 256, .k = 2048});
  CHECK(eighth > whole / 5);
  CHECK(eighth < whole);
  const double large = gemm_s(gpu, Precision::kBf16, {.m = 16384, .n = 65536, .k = 8192});
  const double large_eighth = gemm_s(gpu, Precision::kBf16, {.m = 16384, .n = 8192, .k = 8192});
  CHECK(large_eighth < large / 7.5);
}

TEST_CASE("a product never gets faster by growing, and doubles with k beyond its prologue") {
  const GpuSpec gpu = h200();
  std::int64_t failures = 0;
  double last = 0;
  for (std::int64_t n = 64; n <= 16384; n += 64) {
    const double now = gemm_s(gpu, Precision::kBf16, {.m = 4096, .n = n, .k = 4096});
    failures += now >= last ? 0 : 1;
    last = now;
  }
  CHECK(failures == 0);
  const double one = gemm_s(gpu, Precision::kBf16, {.m = 8192, .n = 8192, .k = 8192});
  const double two = gemm_s(gpu, Precision::kBf16, {.m = 8192, .n = 8192, .k = 16384});
  CHECK(two > 1.9 * one);
  CHECK(two < 2 * one);
}

TEST_CASE("a product of one row is bound by reading its weights") {
  const GpuSpec gpu = h200();
  const double seconds = gemm_s(gpu, Precision::kBf16, {.m = 1, .n = 65536, .k = 65536});
  CHECK(seconds >= 2.0 * 65536 * 65536 / 4.8e12);
}

TEST_CASE("fp8 products are faster than bf16 and fp32 ones slower") {
  const GpuSpec gpu = h200();
  const GemmShape shape = {.m = 8192, .n = 8192, .k = 8192};
  const double bf16 = gemm_s(gpu, Precision::kBf16, shape);
  CHECK(gemm_s(gpu, Precision::kFp8, shape) < 0.7 * bf16);
  CHECK(gemm_s(gpu, Precision::kFp32, shape) > 5 * bf16);
}

TEST_CASE("attention reaches the rates measured for cuDNN on H200 at 8192 tokens") {
  const GpuSpec gpu = h200();
  const AttentionWork work = {
      .pairs = 8192.0 * 8192.0 / 2, .heads = 64, .qk_dim = 128, .v_dim = 128, .length = 8192};
  CHECK(work.forward_flops() == 2.0 * 2 * 128 * 64 * 8192 * 8192 / 2);
  CHECK(work.forward_flops() / attention_forward_s(gpu, work) / 1e12 ==
        doctest::Approx(644).epsilon(0.001));
  CHECK(2.5 * work.forward_flops() / attention_backward_s(gpu, work) / 1e12 ==
        doctest::Approx(541).epsilon(0.001));
}

TEST_CASE("heads of 64 are less efficient than heads of 128") {
  const GpuSpec gpu = h200();
  const AttentionWork wide = {
      .pairs = 1e8, .heads = 16, .qk_dim = 128, .v_dim = 128, .length = 8192};
  const AttentionWork narrow = {
      .pairs = 1e8, .heads = 32, .qk_dim = 64, .v_dim = 64, .length = 8192};
  CHECK(wide.forward_flops() == narrow.forward_flops());
  CHECK(attention_forward_s(gpu, narrow) > attention_forward_s(gpu, wide));
}

TEST_CASE("measured curves replace the documented shares, between points and beyond the ends") {
  GpuSpec gpu = h200();
  CHECK_FALSE(is_calibrated(gpu));
  gpu.gemm_efficiency = {{.size = 1e9, .share = 0.2}, {.size = 1e13, .share = 0.6}};
  gpu.attention_efficiency = {{.size = 1024, .share = 0.5}};
  gpu.copy_efficiency = 0.9;
  CHECK(is_calibrated(gpu));
  const auto share = [&](std::int64_t n) { return rate(gpu, {.m = n, .n = n, .k = n}) / 989.4; };
  CHECK(share(100) == doctest::Approx(0.2));
  CHECK(share(100'000) == doctest::Approx(0.6));
  // 2 n^3 = 1e11, half way between 1e9 and 1e13 on a logarithmic scale.
  CHECK(share(3684) == doctest::Approx(0.4).epsilon(0.001));
  CHECK(memory_bound_s(gpu, 4.8e12 * 0.9) == doctest::Approx(1));
}

}  // namespace
}  // namespace shardplan
