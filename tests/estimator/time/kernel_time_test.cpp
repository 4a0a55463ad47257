// Kernels: measured anchors, waves, rooflines, measured curves.
#include "estimator/time/kernel_time.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <string>

#include "data/read/library.h"
#include "tests/estimator/llama_job.h"

namespace shardplan {
namespace {

GpuSpec h200() {
  return hopper_gpu(4.8e12);
}

double rate(const GpuSpec& gpu, const ProductShape& shape) {
  return shape.flops() / gemm_s(gpu, Precision::kBf16, shape) / 1e12;
}

TEST_CASE("a large bf16 product on H200 runs at the 660 to 700 TFLOP/s measured behind others") {
  const double tflops = rate(h200(), {.m = 8192, .n = 8192, .k = 8192});
  CHECK(tflops > 660);
  CHECK(tflops < 700);
}

// NVIDIA's rates of A100, 156 and 312 TFLOP/s, and of H100, 494.7 and 989.4: half of bf16's.
TEST_CASE("TF32 takes twice bf16's time where products bound it, and never more than fp32's") {
  for (const char* const id : {"a100", "h100", "b200"}) {
    GpuSpec gpu = Library().gpu(id);
    gpu.times = {};  // measured rates of bf16 are of their own shapes
    const ProductShape large = {.m = 16384, .n = 8192, .k = 8192};
    CHECK(tf32_gemm_s(gpu, large) ==
          doctest::Approx(2 * gemm_s(gpu, Precision::kBf16, large)).epsilon(1e-6));
    CHECK(tf32_gemm_s(gpu, large) < gemm_s(gpu, Precision::kFp32, large));
    const ProductShape thin = {.m = 16, .n = 65536, .k = 8192};
    CHECK(tf32_gemm_s(gpu, thin) >= memory_bound_s(gpu, 4.0 * 65536 * 8192));
  }
  GpuSpec volta = h200();
  volta.compute_capability = 70;
  const ProductShape shape = {.m = 4096, .n = 4096, .k = 4096};
  CHECK(tf32_gemm_s(volta, shape) == gemm_s(volta, Precision::kFp32, shape));
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
  const ProductShape shape = {.m = 8192, .n = 8192, .k = 8192};
  const double bf16 = gemm_s(gpu, Precision::kBf16, shape);
  CHECK(gemm_s(gpu, Precision::kFp8, shape) < 0.7 * bf16);
  CHECK(gemm_s(gpu, Precision::kFp32, shape) > 5 * bf16);
}

TEST_CASE("a GPU whose sustained rates are known runs large products and attention at them") {
  GpuSpec gpu = h200();
  const ProductShape shape = {.m = 16384, .n = 4096, .k = 14336};
  const AttentionWork work = {
      .pairs = 8192.0 * 8192.0 / 2, .heads = 64, .qk_dim = 128, .v_dim = 128, .length = 8192};
  const double bf16_s = gemm_s(gpu, Precision::kBf16, shape);
  const double attention_s = attention_forward_s(gpu, work);
  gpu.sustained = {.bf16_flops_per_s = 0.9 * gpu.bf16_flops_per_s,
                   .fp8_flops_per_s = 2 * 0.9 * gpu.bf16_flops_per_s,
                   .attention_of_curve = 1.64};
  CHECK(bf16_s / gemm_s(gpu, Precision::kBf16, shape) == doctest::Approx(0.9 / 0.72));
  CHECK(gemm_s(gpu, Precision::kBf16, shape) / gemm_s(gpu, Precision::kFp8, shape) ==
        doctest::Approx(2));
  CHECK(attention_s / attention_forward_s(gpu, work) == doctest::Approx(2));
}

TEST_CASE("attention reaches the rates measured for cuDNN on H200 behind products at 8192 tokens") {
  const GpuSpec gpu = h200();
  const AttentionWork work = {
      .pairs = 8192.0 * 8192.0 / 2, .heads = 64, .qk_dim = 128, .v_dim = 128, .length = 8192};
  CHECK(work.forward_flops() == 2.0 * 2 * 128 * 64 * 8192 * 8192 / 2);
  CHECK(work.forward_flops() / attention_forward_s(gpu, work) / 1e12 ==
        doctest::Approx(532.8).epsilon(0.02));
  CHECK(2.5 * work.forward_flops() / attention_backward_s(gpu, work) / 1e12 ==
        doctest::Approx(439.9).epsilon(0.02));
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

// Every product as fast as the mean of its sides in GFLOP/s, passes 1, 1.1 and 1.2 times as fast.
MeasuredTimes rates_by_mean_side() {
  MeasuredTimes times;
  times.gemm.m = times.gemm.n = times.gemm.k = {256, 1024, 4096};
  for (const double m : times.gemm.m) {
    for (const double n : times.gemm.n) {
      for (const double k : times.gemm.k) {
        const double rate = 1e9 * std::cbrt(m * n * k);
        times.gemm.forward.push_back(rate);
        times.gemm.input_gradient.push_back(1.1 * rate);
        times.gemm.weight_gradient.push_back(1.2 * rate);
      }
    }
  }
  times.attention = {{.head_dim = 64,
                      .forward = {{.size = 1024, .value = 1e14}, {.size = 4096, .value = 3e14}},
                      .backward = {{.size = 1024, .value = 5e13}}},
                     {.head_dim = 128,
                      .forward = {{.size = 1024, .value = 5e14}},
                      .backward = {{.size = 1024, .value = 4e14}}}};
  times.copy_bytes_per_s = 4e12;
  return times;
}

TEST_CASE("products run at the measured rate of their sides, and between them on logarithms") {
  GpuSpec gpu = h200();
  CHECK_FALSE(is_calibrated(gpu));
  gpu.times = rates_by_mean_side();
  CHECK(is_calibrated(gpu));
  const auto gflops = [&](std::int64_t n, GemmPass pass) {
    return 1e3 * rate(gpu, {.m = n, .n = n, .k = n, .pass = pass});
  };
  CHECK(gflops(1024, GemmPass::kForward) == doctest::Approx(1024));
  CHECK(gflops(1024, GemmPass::kInputGradient) == doctest::Approx(1.1 * 1024));
  CHECK(gflops(1024, GemmPass::kWeightGradient) == doctest::Approx(1.2 * 1024));
  CHECK(gflops(512, GemmPass::kForward) == doctest::Approx(512));  // the logarithm is linear here
  CHECK(gflops(65536, GemmPass::kForward) == doctest::Approx(4096));
}

TEST_CASE("a side below the measured ones takes as long as the shortest; experts fill a launch") {
  GpuSpec gpu = h200();
  gpu.times = rates_by_mean_side();
  const auto seconds = [&](const ProductShape& shape) {
    return gemm_s(gpu, Precision::kBf16, shape);
  };
  CHECK(seconds({.m = 64, .n = 1024, .k = 1024}) == seconds({.m = 256, .n = 1024, .k = 1024}));
  CHECK(seconds({.m = 256, .n = 1024, .k = 1024, .count = 4}) ==
        doctest::Approx(seconds({.m = 1024, .n = 1024, .k = 1024})));
  // What was measured in bf16 says nothing of other types.
  GpuSpec documented = h200();
  documented.memory_bytes_per_s = 1e18;
  gpu.memory_bytes_per_s = 1e18;
  const ProductShape shape = {.m = 8192, .n = 8192, .k = 8192};
  CHECK(gemm_s(gpu, Precision::kFp8, shape) == gemm_s(documented, Precision::kFp8, shape));
}

TEST_CASE("fp8 products run at rates of their own where they were measured, added or not") {
  GpuSpec gpu = h200();
  gpu.times = rates_by_mean_side();
  CHECK_FALSE(is_measured(gpu, Precision::kFp8));
  CHECK_FALSE(measures_accumulation(gpu, Precision::kFp8));
  gpu.times->gemm_fp8 = {.m = {1024, 4096},
                         .n = {1024, 4096},
                         .k = {1024, 4096},
                         .forward = {8e14, 8e14, 8e14, 8e14, 2e14, 2e14, 2e14, 2e14},
                         .input_gradient = std::vector<double>(8, 6e14),
                         .weight_gradient = std::vector<double>(8, 5e14),
                         .accumulated = {}};
  CHECK(is_measured(gpu, Precision::kFp8));
  CHECK(measures_accumulation(gpu, Precision::kFp8));
  CHECK_FALSE(measures_accumulation(gpu, Precision::kBf16));
  const auto tflops = [&](std::int64_t m, GemmPass pass) {
    const ProductShape shape = {.m = m, .n = 4096, .k = 4096, .pass = pass};
    return shape.flops() / gemm_s(gpu, Precision::kFp8, shape) / 1e12;
  };
  CHECK(tflops(1024, GemmPass::kForward) == doctest::Approx(800));
  CHECK(tflops(2048, GemmPass::kForward) == doctest::Approx(400));  // half way in logarithms
  CHECK(tflops(8192, GemmPass::kForward) == doctest::Approx(200));
  CHECK(tflops(2048, GemmPass::kInputGradient) == doctest::Approx(600));
  CHECK(tflops(2048, GemmPass::kWeightGradient) == doctest::Approx(500));
  CHECK(tflops(2048, GemmPass::kAccumulated) == doctest::Approx(500));
  GpuSpec without = h200();
  without.times = rates_by_mean_side();
  const ProductShape shape = {.m = 2048, .n = 4096, .k = 4096};
  CHECK(gemm_s(gpu, Precision::kBf16, shape) == gemm_s(without, Precision::kBf16, shape));
}

TEST_CASE("attention of few heads ends unevenly: seconds a FLOP are linear in one over the heads") {
  GpuSpec gpu = h200();
  gpu.times = rates_by_mean_side();
  AttentionCurve& curve = gpu.times->attention[1];
  const auto rate_of = [&](std::int64_t heads, std::int64_t length = 1024) {
    const AttentionWork work = {.pairs = 1e8,
                                .heads = 32,
                                .qk_dim = 128,
                                .v_dim = 128,
                                .length = length,
                                .heads_of_call = heads};
    return work.forward_flops() / attention_forward_s(gpu, work);
  };
  CHECK(rate_of(8) == doctest::Approx(5e14));  // nothing measured
  curve.tokens = 2048;
  curve.heads = 32;  // of two sequences of 1024 tokens: 64
  curve.few_heads = 8;
  curve.few = {.forward = {{.size = 1024, .value = 2.5e14}},
               .backward = {{.size = 1024, .value = 2e14}}};
  CHECK(rate_of(0) == doctest::Approx(5e14));
  CHECK(rate_of(64) == doctest::Approx(5e14));
  CHECK(rate_of(8) == doctest::Approx(2.5e14));
  // Of the way from 1/64 to 1/8 a seventh, and as far beyond.
  CHECK(rate_of(32) == doctest::Approx(5e14 / (1 + 1.0 / 7)));
  CHECK(rate_of(4) == doctest::Approx(5e14 / (1 + 15.0 / 7)));
  CHECK(rate_of(32, 4096) == doctest::Approx(5e14));  // one sequence of 4096 tokens: 32
  // The end of a shorter call takes as long, here for a quarter of the FLOPs of 1024 tokens.
  CHECK(rate_of(8, 512) == doctest::Approx(5e14 / (1 + 4)));
}

// 8 heads over 8192 tokens; 4096 FLOP a pair.
AttentionWork windowed(std::int64_t window) {
  const double w = static_cast<double>(window);
  return {.pairs = w * 8192 - w * w / 2,
          .heads = 8,
          .qk_dim = 128,
          .v_dim = 128,
          .length = 8192,
          .window = window,
          .heads_of_call = 8};
}

// A tile of 128 queries computes 960 + 128 keys, of its rows' 960 half a tile more than a
// triangle's tiles compute beside what their rows see; the first 960 queries are a triangle.
TEST_CASE("a window runs as triangles whose tiles compute as many keys, all tiles alike") {
  GpuSpec gpu = h200();
  gpu.num_sms = 0;
  gpu.times = rates_by_mean_side();
  AttentionCurve& curve = gpu.times->attention[1];
  curve.forward = {{.size = 1024, .value = 2e14}, {.size = 4096, .value = 4e14}};
  curve.backward = curve.forward;
  const AttentionWork work = windowed(960);
  const double computed = work.pairs + 64 * (8192 - 960);
  const double length = 2 * computed / 8192;
  const double rate = 2e14 * (1 + std::log(length / 1024) / std::log(4));
  CHECK(attention_forward_s(gpu, work) == doctest::Approx(4096 * computed / rate));
  CHECK(attention_backward_s(gpu, work) == doctest::Approx(2.5 * 4096 * computed / rate));
  gpu.num_sms = 100;  // 512 tiles of one length in six waves
  CHECK(attention_forward_s(gpu, work) == doctest::Approx(4096 * computed / rate * 6 / 5.12));
}

// Rows of 3072 tokens take twice the time of rows of 1024, so that half of these is not of keys.
TEST_CASE("a window shorter than any length measured saves the time of its keys alone") {
  GpuSpec gpu = h200();
  gpu.num_sms = 0;
  gpu.times = rates_by_mean_side();
  gpu.times->attention[1].forward = {{.size = 1024, .value = 2e14}, {.size = 3072, .value = 3e14}};
  const double computed = windowed(192).pairs + 64 * (8192 - 192);
  const double length = 2 * computed / 8192;
  const double of_1024_s = 4096 * (1024.0 * 8192 / 2) / 2e14;
  CHECK(attention_forward_s(gpu, windowed(192)) ==
        doctest::Approx(of_1024_s * (0.5 + 0.5 * length / 1024)));
}

TEST_CASE("a shorter window never takes longer, whatever the GPU, the heads and the sequence") {
  const Library library;
  for (const std::string& name : library.gpu_names()) {
    CAPTURE(name);
    const GpuSpec gpu = library.gpu(name);
    for (const std::int64_t length : {1024, 4096, 32768}) {
      for (const std::int64_t heads : {1, 8, 32, 512}) {
        for (const std::int64_t head_dim : {64, 128}) {
          std::array<double, 2> before_s = {0, 0};
          for (std::int64_t window = 64; window <= length; window += 64) {
            const double w = static_cast<double>(window);
            const double s = static_cast<double>(length);
            const AttentionWork work = {.pairs = w * s - w * w / 2,
                                        .heads = heads,
                                        .qk_dim = head_dim,
                                        .v_dim = head_dim,
                                        .length = length,
                                        .window = window < length ? window : 0,
                                        .heads_of_call = heads};
            CAPTURE(length);
            CAPTURE(heads);
            CAPTURE(window);
            const std::array<double, 2> seconds = {attention_forward_s(gpu, work),
                                                   attention_backward_s(gpu, work)};
            CHECK(seconds[0] >= before_s[0] * (1 - 1e-12));
            CHECK(seconds[1] >= before_s[1] * (1 - 1e-12));
            before_s = seconds;
          }
        }
      }
    }
  }
}

TEST_CASE("products between attention and copies run at the clock that the mean of all allows") {
  GpuSpec gpu = h200();
  gpu.times = rates_by_mean_side();
  CHECK_FALSE(measures_clocks(gpu));
  CHECK(clock_factors(gpu, {.products_s = 1, .attention_s = 1}, 128).products == 1);
  gpu.times->copy_clock_over_products = 1.25;
  gpu.times->attention[1].clock_over_products = 1 / 0.9;
  const ClockFactors alone = clock_factors(gpu, {.products_s = 2}, 128);
  CHECK(alone.products == doctest::Approx(1));
  CHECK(alone.attention == doctest::Approx(1 / 0.975));
  // As attention was measured.
  CHECK(clock_factors(gpu, {.products_s = 3, .attention_s = 1}, 128).attention ==
        doctest::Approx(1));
  const ClockFactors mixed =
      clock_factors(gpu, {.products_s = 2, .attention_s = 1, .memory_bound_s = 1}, 128);
  CHECK(mixed.products == doctest::Approx(0.5 + 0.25 * 0.9 + 0.25 * 0.8));
  CHECK(mixed.attention == doctest::Approx(mixed.products / 0.975));
}

TEST_CASE("accumulated gradients and the trainer's experts have measured rates of their own") {
  GpuSpec gpu = h200();
  gpu.times = rates_by_mean_side();
  CHECK_FALSE(measures_accumulation(gpu, Precision::kBf16));
  CHECK_FALSE(measures_grouped(gpu));
  for (const double rate : gpu.times->gemm.forward) {
    gpu.times->gemm.accumulated.push_back(rate / 2);
  }
  gpu.times->grouped = {.forward = {{.size = 128, .value = 1e14}, {.size = 512, .value = 3e14}},
                        .input_gradient = {{.size = 128, .value = 5e13}},
                        .weight_gradient = {{.size = 128, .value = 2e13}}};
  CHECK(measures_accumulation(gpu, Precision::kBf16));
  CHECK(1e3 * rate(gpu, {.m = 1024, .n = 1024, .k = 1024, .pass = GemmPass::kAccumulated}) ==
        doctest::Approx(512));
  // 2 x 4 x 256 x 1000 x 1000 FLOP at the middle of 100 and 300 TFLOP/s.
  const ProductShape experts = {.m = 256, .n = 1000, .k = 1000, .count = 4};
  CHECK(grouped_gemm_s(gpu, experts, 256) == doctest::Approx(2.048e9 / 2e14));
  ProductShape gradient = experts;
  gradient.pass = GemmPass::kAccumulated;
  CHECK(grouped_gemm_s(gpu, gradient, 256) == doctest::Approx(2.048e9 / 2e13));
}

TEST_CASE("attention has a measured curve for each direction and head dimension") {
  GpuSpec gpu = h200();
  gpu.times = rates_by_mean_side();
  AttentionWork work = {.pairs = 1e8, .heads = 8, .qk_dim = 64, .v_dim = 64, .length = 2048};
  const double flops = work.forward_flops();
  CHECK(flops / attention_forward_s(gpu, work) == doctest::Approx(2e14));  // half way in logarithm
  CHECK(2.5 * flops / attention_backward_s(gpu, work) == doctest::Approx(5e13));
  work.qk_dim = 96;  // the next wider head
  CHECK(work.forward_flops() / attention_forward_s(gpu, work) == doctest::Approx(5e14));
  work.qk_dim = 256;  // the widest there is
  CHECK(work.forward_flops() / attention_forward_s(gpu, work) == doctest::Approx(5e14));
  CHECK(memory_bound_s(gpu, 4e12 * 0.93) == doctest::Approx(1));
}

// data/measured/attention_heads_h200.json: two calls of 32 heads and 8,192 tokens.
TEST_CASE("heads of 512 run by a kernel of their own, whose curve narrower ones do not take") {
  GpuSpec gpu = Library().gpu("h200");
  const auto seconds = [&](std::int64_t width) {
    const AttentionWork work = {.pairs = 2 * 8192.0 * 8192.0 / 2,
                                .heads = 32,
                                .qk_dim = width,
                                .v_dim = width,
                                .length = 8192,
                                .heads_of_call = 64};
    return std::pair(attention_forward_s(gpu, work), attention_backward_s(gpu, work));
  };
  CHECK(seconds(512).first == doctest::Approx(0.03305).epsilon(0.01));
  CHECK(seconds(512).second == doctest::Approx(0.2472).epsilon(0.01));
  CHECK(seconds(256).first == doctest::Approx(2 * seconds(128).first));
}

TEST_CASE("FlashAttention 2 is slower than what Hopper can do, and as fast as any on Ampere") {
  GpuSpec gpu = h200();
  AttentionWork work = {.pairs = 1e9, .heads = 32, .qk_dim = 128, .v_dim = 128, .length = 8192};
  const double fastest = attention_forward_s(gpu, work);
  work.is_flash2 = true;
  CHECK(attention_forward_s(gpu, work) > 1.5 * fastest);
  gpu.compute_capability = 80;
  const double on_ampere = attention_forward_s(gpu, work);
  work.is_flash2 = false;
  CHECK(attention_forward_s(gpu, work) == on_ampere);
}

}  // namespace
}  // namespace shardplan
