// The products in fp8 of `calibrate --time`, with the types and sums of the trainer's.
#include "validator/cuda/fp8_bench.h"

#include <algorithm>
#include <utility>

#include "estimator/plan/number.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/quantize_fp8.h"
#include "kernels/gemm/warpgroups.h"
#include "validator/cuda/calibration.h"
#include "validator/cuda/products.h"
#include "validator/cuda/stopwatch.h"

namespace shardplan {
namespace {

using Bf16 = __nv_bfloat16;
constexpr std::int64_t kWorkspaceBytes = std::int64_t{32} << 20;  // the trainer's
constexpr std::int64_t kScaleElements = 4;                        // every scale in its 16 bytes
constexpr std::int64_t kLoadSize = 8192;

enum class Pass { kForward, kInputGradient, kWeightGradient };

// Formats as in validator/lower/fp8.cpp; weight gradients are added to fp32.
GemmShape gemm_shape(Pass pass, std::int64_t m, std::int64_t n, std::int64_t k) {
  const Fp8Factors factors = {.a = pass == Pass::kForward ? Fp8Format::kE4m3 : Fp8Format::kE5m2};
  GemmShape shape = fp8_product(factors, m, n, k);
  if (pass == Pass::kWeightGradient) {
    shape.out_type = GemmType::kFloat;
    shape.sum = GradientSum::kAccumulate;
  }
  return shape;
}

// `side` x `side` random values, rounded under a scale of their own: a factor of any smaller shape.
class Factor {
 public:
  Factor(GemmType format, std::int64_t side, unsigned seed, cudaStream_t stream)
      : bytes_(side * side), scales_(2 * kScaleElements) {
    DeviceBuffer<Bf16> values(side * side);
    fill_random(values, side * side, seed);
    quantize_fp8({.plain = bytes_.data(),
                  .amax = scales_.data(),
                  .inverse_scale = scales_.data() + kScaleElements},
                 format, values.data(), side, side, side, stream);
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  const std::uint8_t* bytes() { return bytes_.data(); }
  const float* inverse_scale() { return scales_.data() + kScaleElements; }

 private:
  DeviceBuffer<std::uint8_t> bytes_;
  DeviceBuffer<float> scales_;
};

class Fp8Bench {
 public:
  Fp8Bench(std::int64_t largest, cudaStream_t stream)
      : stream_(stream),
        activations_(GemmType::kE4m3, largest, 1, stream),
        gradients_(GemmType::kE5m2, largest, 2, stream),
        second_(GemmType::kE4m3, largest, 3, stream),
        out_(largest * largest),
        load_out_(largest * largest),
        workspace_(kWorkspaceBytes),
        load_(gemm(Pass::kForward, std::min(kLoadSize, largest), std::min(kLoadSize, largest),
                   std::min(kLoadSize, largest))) {
    const auto bytes = static_cast<std::size_t>(largest * largest) * sizeof(float);
    CUDA_CHECK(cudaMemsetAsync(out_.data(), 0, bytes, stream));
  }

  // What a step in fp8 does most of its time.
  void run_load(cudaStream_t on) { run(load_, Pass::kForward, load_out_.data(), on); }

  // FLOP/s.
  double rate(Pass pass, std::int64_t m, std::int64_t n, std::int64_t k, double seconds) {
    const Gemm product = gemm(pass, m, n, k);
    const double once_s = Stopwatch(stream_).median_behind_s(
        [&](cudaStream_t on) { run(product, pass, out_.data(), on); },
        [&](cudaStream_t on) { run_load(on); }, seconds);
    return 2 * number(m) * number(n) * number(k) / once_s;
  }

 private:
  Factor& first(Pass pass) { return pass == Pass::kForward ? activations_ : gradients_; }
  Gemm gemm(Pass pass, std::int64_t m, std::int64_t n, std::int64_t k) {
    return Gemm(library_, gemm_shape(pass, m, n, k), kWorkspaceBytes,
                {.a = first(pass).inverse_scale(), .b = second_.inverse_scale()});
  }
  void run(const Gemm& product, Pass pass, void* out, cudaStream_t on) {
    product.run(out, first(pass).bytes(), second_.bytes(), workspace_.data(), on);
  }

  cudaStream_t stream_;
  GemmLibrary library_;
  Factor activations_;
  Factor gradients_;
  Factor second_;
  DeviceBuffer<float> out_;  // bf16 in its first half
  DeviceBuffer<Bf16> load_out_;
  DeviceBuffer<char> workspace_;
  Gemm load_;
};

}  // namespace

GemmGrid measure_gemm_fp8(const TimeCalibration& calibration, cudaStream_t stream) {
  if (!has_fp8_products()) {
    return {};
  }
  const std::vector<std::int64_t>& sizes = calibration.gemm_fp8_sizes;
  GemmGrid grid = grid_over(sizes);
  Fp8Bench bench(sizes.back(), stream);
  Stopwatch(stream).median_s([&](cudaStream_t on) { bench.run_load(on); },
                             calibration.clock_seconds);
  for (const auto& [pass, rates] : {std::pair{Pass::kForward, &grid.forward},
                                    std::pair{Pass::kInputGradient, &grid.input_gradient},
                                    std::pair{Pass::kWeightGradient, &grid.weight_gradient}}) {
    *rates = rates_over(sizes, [&, pass = pass](std::int64_t m, std::int64_t n, std::int64_t k) {
      return bench.rate(pass, m, n, k, calibration.seconds_per_point);
    });
  }
  return grid;
}

}  // namespace shardplan
