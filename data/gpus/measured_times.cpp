#include "data/gpus/measured_times.h"

#include <utility>

#include "data/read/case_members.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

constexpr double kMaxTflops = 1e9;
constexpr double kMaxGBPerS = 1e9;
constexpr double kMaxMicroseconds = 1e12;
constexpr double kMicro = 1e-6;
constexpr std::int64_t kMaxRanks = std::int64_t{1} << 20;

const std::vector<JsonValue>& items_of(ObjectReader& reader, std::string_view key) {
  const JsonValue& list = reader.value(key);
  if (list.kind != JsonKind::kArray || list.items.empty()) {
    throw reader.error(key, "found " + describe(list) + ", expected a list that is not empty");
  }
  return list.items;
}

bool is_number(const JsonValue& value) {
  return value.kind == JsonKind::kInteger || value.kind == JsonKind::kReal;
}

std::vector<double> ascending(ObjectReader& reader, std::string_view key) {
  std::vector<double> sizes;
  for (const JsonValue& item : items_of(reader, key)) {
    if (!is_number(item) || item.real <= (sizes.empty() ? 0 : sizes.back())) {
      throw reader.error(key, "found " + describe(item) + ", expected sizes above 0, ascending");
    }
    sizes.push_back(item.real);
  }
  return sizes;
}

// Rates nested as [m][n][k], as long as the lists of sizes.
std::vector<double> grid_rates(ObjectReader& reader, std::string_view key, const GemmGrid& grid) {
  const auto refuse_length = [&](const JsonValue& list, std::size_t expected) {
    if (list.kind != JsonKind::kArray || list.items.size() != expected) {
      throw reader.error(
          key, "found " + describe(list) + ", expected an array of " + std::to_string(expected));
    }
  };
  std::vector<double> rates;
  const JsonValue& by_m = reader.value(key);
  refuse_length(by_m, grid.m.size());
  for (const JsonValue& by_n : by_m.items) {
    refuse_length(by_n, grid.n.size());
    for (const JsonValue& by_k : by_n.items) {
      refuse_length(by_k, grid.k.size());
      for (const JsonValue& rate : by_k.items) {
        if (!is_number(rate) || rate.real <= 0 || rate.real > kMaxTflops) {
          throw reader.error(key, "found " + describe(rate) + ", expected TFLOP/s above 0");
        }
        rates.push_back(rate.real * kTera);
      }
    }
  }
  return rates;
}

GemmGrid read_grid(ObjectReader& reader) {
  GemmGrid grid;
  grid.m = ascending(reader, "m");
  grid.n = ascending(reader, "n");
  grid.k = ascending(reader, "k");
  grid.forward = grid_rates(reader, "forward_tflops", grid);
  grid.input_gradient = grid_rates(reader, "input_gradient_tflops", grid);
  grid.weight_gradient = grid_rates(reader, "weight_gradient_tflops", grid);
  return grid;
}

GemmGrid read_gemm(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  GemmGrid grid = read_grid(reader);
  if (reader.has("accumulated_tflops")) {
    grid.accumulated = grid_rates(reader, "accumulated_tflops", grid);
  }
  reader.finish();
  return grid;
}

GemmGrid read_gemm_fp8(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  GemmGrid grid = read_grid(reader);
  reader.finish();
  return grid;
}

// [[size, value], ...] with sizes ascending; values become `unit` times what stands there.
std::vector<CurvePoint> read_curve(ObjectReader& reader, std::string_view key, double most,
                                   double unit) {
  std::vector<CurvePoint> curve;
  for (const JsonValue& point : items_of(reader, key)) {
    const double last_size = curve.empty() ? 0 : curve.back().size;
    const bool is_pair =
        point.items.size() == 2 && is_number(point.items[0]) && is_number(point.items[1]);
    if (!is_pair || point.items[0].real <= last_size || point.items[1].real <= 0 ||
        point.items[1].real > most) {
      throw reader.error(key, "found " + describe(point) +
                                  ", expected pairs of a size, ascending, and a value above 0");
    }
    curve.push_back({.size = point.items[0].real, .value = point.items[1].real * unit});
  }
  return curve;
}

std::optional<double> read_clock(ObjectReader& reader, std::string_view key) {
  constexpr double kLeast = 0.1;
  constexpr double kMost = 10;
  return reader.has(key) ? std::optional(reader.number(key, kLeast, kMost)) : std::nullopt;
}

// Rates of few heads, and what the others were measured with.
void read_few_heads(ObjectReader& of_curve, const std::string& file, AttentionCurve& curve) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  curve.tokens = of_curve.integer("tokens", 1, kMost);
  curve.heads = of_curve.integer("heads", 2, kMost);
  ObjectReader reader(of_curve.value("few_heads"), file);
  curve.few_heads = reader.integer("heads", 1, curve.heads - 1);
  curve.few.forward = read_curve(reader, "forward_tflops", kMaxTflops, kTera);
  curve.few.backward = read_curve(reader, "backward_tflops", kMaxTflops, kTera);
  reader.finish();
}

AttentionCurve read_attention(const JsonValue& value, const std::string& file,
                              std::int64_t last_dim) {
  ObjectReader reader(value, file);
  AttentionCurve curve;
  curve.head_dim = reader.integer("head_dim", last_dim + 1, 4096);
  curve.forward = read_curve(reader, "forward_tflops", kMaxTflops, kTera);
  curve.backward = read_curve(reader, "backward_tflops", kMaxTflops, kTera);
  if (reader.has("few_heads")) {
    read_few_heads(reader, file, curve);
  }
  curve.clock_over_products = read_clock(reader, "clock_over_products");
  reader.finish();
  return curve;
}

GroupedRates read_grouped(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  GroupedRates rates;
  rates.forward = read_curve(reader, "forward_tflops", kMaxTflops, kTera);
  rates.input_gradient = read_curve(reader, "input_gradient_tflops", kMaxTflops, kTera);
  rates.weight_gradient = read_curve(reader, "weight_gradient_tflops", kMaxTflops, kTera);
  reader.finish();
  return rates;
}

BesideRates read_beside(const JsonValue& value, const std::string& file) {
  constexpr double kLeast = 0.01;
  ObjectReader reader(value, file);
  BesideRates rates;
  rates.products = reader.number("product_share", kLeast, 1);
  rates.collectives = reader.number("collective_share", kLeast, 1);
  reader.finish();
  return rates;
}

CollectiveCurve read_collective(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  CollectiveCurve curve;
  curve.collective = choice<Collective>(reader, "collective");
  curve.ranks = reader.integer("ranks", 2, kMaxRanks);
  curve.seconds = read_curve(reader, "microseconds", kMaxMicroseconds, kMicro);
  reader.finish();
  return curve;
}

// By collective, then by ranks: curves of one collective follow each other, ascending.
void refuse_disorder(const ObjectReader& reader, const std::vector<CollectiveCurve>& curves) {
  for (std::size_t i = 1; i < curves.size(); ++i) {
    const CollectiveCurve& last = curves[i - 1];
    const CollectiveCurve& next = curves[i];
    if (std::pair(next.collective, next.ranks) <= std::pair(last.collective, last.ranks)) {
      throw reader.error("collectives", "found " + std::string(name_of(next.collective)) + " of " +
                                            std::to_string(next.ranks) + " ranks after " +
                                            std::string(name_of(last.collective)) + " of " +
                                            std::to_string(last.ranks) +
                                            ", expected them by collective, then by ranks");
    }
  }
}

CopiesBetweenGpus read_copies(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  CopiesBetweenGpus copies;
  if (reader.has("collectives")) {
    for (const JsonValue& item : items_of(reader, "collectives")) {
      copies.collectives.push_back(read_collective(item, file));
      const Collective collective = copies.collectives.back().collective;
      if (collective == Collective::kReduceScatter || collective == Collective::kAllReduce) {
        throw ObjectReader(item, file)
            .error("collective", "found " + std::string(name_of(collective)) +
                                     ", expected one that copies alone can do: all_gather, "
                                     "all_to_all or send");
      }
    }
    refuse_disorder(reader, copies.collectives);
  }
  if (reader.has("beside_products")) {
    copies.beside = read_beside(reader.value("beside_products"), file);
  }
  reader.finish();
  return copies;
}

}  // namespace

std::optional<MeasuredTimes> read_measured_times(ObjectReader& measured, const std::string& file) {
  if (!measured.has("time") || measured.is_null("time")) {
    measured.ignore("time");
    return std::nullopt;
  }
  ObjectReader reader(measured.value("time"), file);
  MeasuredTimes times;
  times.gemm = read_gemm(reader.value("gemm"), file);
  if (reader.has("gemm_fp8")) {
    times.gemm_fp8 = read_gemm_fp8(reader.value("gemm_fp8"), file);
  }
  for (const JsonValue& item : items_of(reader, "attention")) {
    const std::int64_t last = times.attention.empty() ? 0 : times.attention.back().head_dim;
    times.attention.push_back(read_attention(item, file, last));
  }
  if (reader.has("grouped")) {
    times.grouped = read_grouped(reader.value("grouped"), file);
  }
  times.copy_bytes_per_s = kGB * reader.number("copy_gb_per_s", 1, kMaxGBPerS);
  times.copy_clock_over_products = read_clock(reader, "copy_clock_over_products");
  times.launch_s = kMicro * reader.number("launch_us", 0, kMaxMicroseconds);
  for (const JsonValue& item : reader.value("collectives").items) {
    times.collectives.push_back(read_collective(item, file));
  }
  refuse_disorder(reader, times.collectives);
  if (reader.has("beside_products")) {
    times.beside = read_beside(reader.value("beside_products"), file);
  }
  if (reader.has("copies")) {
    times.copies = read_copies(reader.value("copies"), file);
  }
  times.source = reader.string("source");
  reader.finish();
  return times;
}

}  // namespace shardplan
