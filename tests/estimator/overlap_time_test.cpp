// Communication beside computation: a hand count, laws, and what holds without measured rates.
#include "estimator/overlap_time.h"

#include <doctest/doctest.h>

#include <limits>

namespace shardplan {
namespace {

GpuSpec measured(double products, double collectives) {
  GpuSpec gpu;
  gpu.num_sms = 132;
  gpu.times.emplace();
  gpu.times->beside = BesideRates{.products = products, .collectives = collectives};
  return gpu;
}

TEST_CASE("a collective at half its rate takes a fifth of the products' while it runs") {
  const GpuSpec gpu = measured(0.8, 0.5);
  // 1 s becomes 2 s, in which products do 1.6 s of work.
  CHECK(beside_compute_s(gpu, 1, 10) == doctest::Approx(0.4));
  // Products of 0.8 s take 1 s, in which half of the collective is done.
  CHECK(beside_compute_s(gpu, 1, 0.8) == doctest::Approx(0.7));
  CHECK(beside_compute_s(gpu, 1, 0) == doctest::Approx(1));
}

TEST_CASE(
    "more computation hides no less, and running beside never costs more than running after") {
  for (const GpuSpec& gpu : {measured(0.8, 0.5), measured(0.6, 0.3), measured(1, 1), GpuSpec{}}) {
    double last_s = 2;
    for (const double compute_s : {0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 1e6}) {
      const double now_s = beside_compute_s(gpu, 2, compute_s);
      CHECK(now_s <= last_s + 1e-12);
      CHECK(now_s >= 0);
      last_s = now_s;
    }
    const double never_ends = std::numeric_limits<double>::infinity();
    CHECK(beside_compute_s(gpu, 2, never_ends) <= last_s + 1e-12);
  }
}

TEST_CASE("pieces leave one of them with nothing to hide behind") {
  const GpuSpec gpu = measured(1, 1);
  CHECK(in_pieces_s(gpu, 1, 10, 4) == doctest::Approx(0.25));
  CHECK(in_pieces_s(gpu, 1, 10, 2) == doctest::Approx(0.5));
  // Three quarters beside as much of 0.4 s: 0.25 + 0.75 - 0.3.
  CHECK(in_pieces_s(gpu, 1, 0.4, 4) == doctest::Approx(0.7));
}

}  // namespace
}  // namespace shardplan
