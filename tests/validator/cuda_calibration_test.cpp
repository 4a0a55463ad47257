// Microbenchmarks of `calibrate --time` at small sizes.
#include "validator/cuda_calibration.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/kernels/device.h"

namespace shardplan {
namespace {

TEST_CASE("products in fp8 have a rate at every point of their grid, where the GPU has them") {
  TimeCalibration calibration;
  calibration.gemm_fp8_sizes = {128, 1024};
  calibration.clock_seconds = 0.01;
  const ScopedStream stream;
  const GemmGrid grid = measure_gemm_fp8(calibration, stream);
  if (grid.m.empty()) {
    MESSAGE("SKIPPED: no fp8 on this GPU");
    return;
  }
  CHECK(grid.n == grid.m);
  CHECK(grid.k == grid.m);
  CHECK(grid.accumulated.empty());
  for (const std::vector<double>* rates :
       {&grid.forward, &grid.input_gradient, &grid.weight_gradient}) {
    REQUIRE(rates->size() == 8);
    CHECK(std::ranges::all_of(*rates, [](double rate) { return rate > 1e9 && rate < 1e17; }));
    CHECK(rates->back() > rates->front());
  }
}

}  // namespace
}  // namespace shardplan
