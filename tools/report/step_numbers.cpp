#include "tools/report/step_numbers.h"

#include <variant>

#include "data/read/json_message.h"
#include "tools/report/table.h"
#include "tools/report/text.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMicrosPerS = 1e6;

Json json_of(std::monostate /*nothing*/) {
  return nullptr;
}

Json json_of(double value) {
  return value;
}

Json json_of(const HostCost& cost) {
  return {{"forward", cost.forward_s}, {"backward", cost.backward_s}};
}

Json json_of(const ChoiceCost& cost) {
  return {{"forward", cost.forward_s},
          {"forward_score", cost.forward_score_s},
          {"backward", cost.backward_s},
          {"backward_score", cost.backward_score_s}};
}

Json json_of(const std::vector<CurvePoint>& curve) {
  Json points = Json::array();
  for (const CurvePoint& point : curve) { points.push_back({point.size, point.value}); }
  return points;
}

std::string text_of(std::monostate /*nothing*/, double /*units*/) {
  return "rates by size";
}

std::string text_of(double value, double units) {
  return shortest(units * value);
}

std::string text_of(const HostCost& cost, double units) {
  return text_of(cost.forward_s, units) + " forward, " + text_of(cost.backward_s, units) +
         " backward";
}

std::string text_of(const ChoiceCost& cost, double units) {
  return text_of(HostCost{.forward_s = cost.forward_s, .backward_s = cost.backward_s}, units) +
         ", of a token and expert " +
         text_of(HostCost{.forward_s = cost.forward_score_s, .backward_s = cost.backward_score_s},
                 units);
}

std::string text_of(const std::vector<CurvePoint>& curve, double units) {
  const auto end_of = [&](const CurvePoint& point) {
    return text_of(point.value, units) + " at " + shortest(point.size);
  };
  return end_of(curve.front()) + " to " + end_of(curve.back());
}

std::string name_in_table(const StepNumber& number) {
  return std::string(name_of(number.table)) + "/" + std::string(number.name);
}

}  // namespace

Json numbers_json(const std::vector<StatedNumber>& numbers) {
  Json json = Json::array();
  for (const auto& [number, provenance] : numbers) {
    json.push_back({{"name", name_in_table(number)},
                    {"value", std::visit([](const auto& of) { return json_of(of); }, number.value)},
                    {"unit", number.unit},
                    {"parts", number.parts},
                    {"origin", name_of(provenance.origin)},
                    {"source", provenance.source}});
  }
  return json;
}

std::string numbers_text(const std::vector<StatedNumber>& numbers) {
  Table table = {.columns = {"number", "value", "unit", "parts", "origin", "source"}};
  for (const auto& [number, provenance] : numbers) {
    const bool is_seconds = number.unit == "s";
    const double units = is_seconds ? kMicrosPerS : 1;
    table.rows.push_back(
        {name_in_table(number),
         std::visit([&](const auto& of) { return text_of(of, units); }, number.value),
         is_seconds ? "us" : std::string(number.unit), joined(number.parts),
         std::string(name_of(provenance.origin)), provenance.source});
  }
  return "\nWhat the step rests on: numbers of which a percent more or less moves these parts of "
         "it\n" +
         table_text(table);
}

}  // namespace shardplan
