#include "tools/report/calibration_time.h"

#include <nlohmann/json.hpp>

#include <cmath>

#include "estimator/plan/units.h"
#include "tools/measure/calibrate_time.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicro = 1e-6;

// Four digits: more than a rate repeats to.
double rounded(double value) {
  const double unit = std::pow(10, std::floor(std::log10(value)) - 3);
  return std::round(value / unit) * unit;
}

// Numbers as people write them: 6.4 and not 6.4000000000000004.
Json number_of(double value) {
  const double whole = std::round(value);
  if (std::fabs(value - whole) < 1e-9 * value) {
    return static_cast<std::int64_t>(whole);
  }
  constexpr double kThousand = 1000;
  return std::round(value * kThousand) / kThousand;
}

Json sizes_of(const std::vector<double>& sizes) {
  Json list = Json::array();
  for (const double size : sizes) { list.push_back(number_of(size)); }
  return list;
}

Json rates_of(const GemmGrid& grid, const std::vector<double>& rates) {
  Json by_m = Json::array();
  std::size_t at = 0;
  for (std::size_t i = 0; i < grid.m.size(); ++i) {
    Json by_n = Json::array();
    for (std::size_t j = 0; j < grid.n.size(); ++j) {
      Json by_k = Json::array();
      for (std::size_t l = 0; l < grid.k.size(); ++l, ++at) {
        by_k.push_back(number_of(rounded(rates[at] / kTera)));
      }
      by_n.push_back(std::move(by_k));
    }
    by_m.push_back(std::move(by_n));
  }
  return by_m;
}

Json grid_of(const GemmGrid& grid) {
  Json json = {{"m", sizes_of(grid.m)},
               {"n", sizes_of(grid.n)},
               {"k", sizes_of(grid.k)},
               {"forward_tflops", rates_of(grid, grid.forward)},
               {"input_gradient_tflops", rates_of(grid, grid.input_gradient)},
               {"weight_gradient_tflops", rates_of(grid, grid.weight_gradient)}};
  if (!grid.accumulated.empty()) {
    json["accumulated_tflops"] = rates_of(grid, grid.accumulated);
  }
  return json;
}

Json curve_of(const std::vector<CurvePoint>& curve, double unit) {
  Json points = Json::array();
  for (const CurvePoint& point : curve) {
    points.push_back({number_of(point.size), number_of(rounded(point.value / unit))});
  }
  return points;
}

Json attention_of(const AttentionCurve& curve) {
  Json json = {{"head_dim", curve.head_dim},
               {"forward_tflops", curve_of(curve.forward, kTera)},
               {"backward_tflops", curve_of(curve.backward, kTera)}};
  if (!curve.few.forward.empty()) {
    json["tokens"] = curve.tokens;
    json["heads"] = curve.heads;
    json["few_heads"] = {{"heads", curve.few_heads},
                         {"forward_tflops", curve_of(curve.few.forward, kTera)},
                         {"backward_tflops", curve_of(curve.few.backward, kTera)}};
  }
  if (curve.clock_over_products) {
    json["clock_over_products"] = number_of(*curve.clock_over_products);
  }
  return json;
}

Json collectives_of(const std::vector<CollectiveCurve>& curves) {
  Json list = Json::array();
  for (const CollectiveCurve& curve : curves) {
    list.push_back({{"collective", name_of(curve.collective)},
                    {"ranks", curve.ranks},
                    {"microseconds", curve_of(curve.seconds, kMicro)}});
  }
  return list;
}

Json beside_of(const BesideRates& rates) {
  return {{"product_share", number_of(rates.products)},
          {"collective_share", number_of(rates.collectives)}};
}

// Null where nothing of it was measured.
Json copies_of(const CopiesBetweenGpus& copies) {
  Json json;
  if (!copies.collectives.empty()) {
    json["collectives"] = collectives_of(copies.collectives);
  }
  if (copies.beside) {
    json["beside_products"] = beside_of(*copies.beside);
  }
  return json;
}

}  // namespace

std::string with_measured_times(const std::string& gpu_file, const MeasuredTimes& times) {
  Json file = Json::parse(gpu_file);
  Json& measured = file["measured"];
  if (measured.is_null()) {
    measured = Json::object();
    measured["source"] = times.source;
  }
  Json attention = Json::array();
  for (const AttentionCurve& curve : times.attention) { attention.push_back(attention_of(curve)); }
  Json time = {{"gemm", grid_of(times.gemm)}};
  if (!times.gemm_fp8.m.empty()) {
    time["gemm_fp8"] = grid_of(times.gemm_fp8);
  }
  time["attention"] = std::move(attention);
  if (!times.grouped.forward.empty()) {
    time["grouped"] = {{"forward_tflops", curve_of(times.grouped.forward, kTera)},
                       {"input_gradient_tflops", curve_of(times.grouped.input_gradient, kTera)},
                       {"weight_gradient_tflops", curve_of(times.grouped.weight_gradient, kTera)}};
  }
  time["copy_gb_per_s"] = number_of(rounded(times.copy_bytes_per_s / kGB));
  if (times.copy_clock_over_products) {
    time["copy_clock_over_products"] = number_of(*times.copy_clock_over_products);
  }
  time["launch_us"] = number_of(rounded(times.launch_s / kMicro));
  time["collectives"] = collectives_of(times.collectives);
  if (times.beside) {
    time["beside_products"] = beside_of(*times.beside);
  }
  if (Json copies = copies_of(times.copies); !copies.is_null()) {
    time["copies"] = std::move(copies);
  }
  time["source"] = times.source;
  measured["time"] = std::move(time);
  return indented_text(file);
}

}  // namespace shardplan
