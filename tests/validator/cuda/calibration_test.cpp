// Microbenchmarks of `calibrate --time` at small sizes.
#include "validator/cuda/calibration.h"
#include "tests/kernels/device.h"
#include "validator/cuda/beside_bench.h"
#include "validator/cuda/copies_bench.h"
#include "validator/cuda/fp8_bench.h"

#include <doctest/doctest.h>

#include <algorithm>

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

TEST_CASE("copies between two GPUs have a time for every message, larger ones no less") {
  TimeCalibration calibration;
  calibration.num_gpus = std::min<std::int64_t>(2, num_gpus_here());
  calibration.message_bytes = {1 << 14, 1 << 22, 1 << 26};
  const std::vector<CollectiveCurve> curves = measure_copies(calibration);
  if (curves.empty()) {
    MESSAGE("SKIPPED: no two GPUs that reach each other's memory");
    return;
  }
  REQUIRE(curves.size() == 3);
  CHECK(curves[0].collective == Collective::kAllGather);
  CHECK(curves[1].collective == Collective::kAllToAll);
  CHECK(curves[2].collective == Collective::kSend);
  for (const CollectiveCurve& curve : curves) {
    CHECK(curve.ranks == 2);
    REQUIRE(curve.seconds.size() == 3);
    CHECK(curve.seconds.front().value > 1e-7);
    CHECK(curve.seconds.back().value > curve.seconds.front().value);
    CHECK(curve.seconds.back().value < 0.1);
  }
}

TEST_CASE("gathers by copies and products keep a share of their rates beside each other") {
  if (num_gpus_here() < 2) {
    MESSAGE("SKIPPED: one GPU");
    return;
  }
  if (const std::optional<BesideRates> rates = measure_beside_copies()) {
    CHECK(rates->products > 0.3);
    CHECK(rates->collectives > 0.1);
  }
}

}  // namespace
}  // namespace shardplan
