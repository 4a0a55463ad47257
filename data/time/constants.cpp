#include "data/time/constants.h"

#include <utility>

#include "data/read/json_message.h"
#include "data/read/library.h"
#include "data/read/provenance.h"

namespace shardplan {
namespace {

constexpr double kMost = 1e15;
constexpr double kLeast = 1e-15;
constexpr double kMostShare = 10;
constexpr double kLeastShare = 1e-3;

bool is_number(const JsonValue& value) {
  return value.kind == JsonKind::kInteger || value.kind == JsonKind::kReal;
}

double read_plain(ObjectReader& entry, const TimeConstant& constant) {
  return constant.unit.empty() ? entry.number("value", kLeastShare, kMostShare)
                               : entry.number("value", kLeast, kMost);
}

ChoiceCost read_choice(ObjectReader& entry, const std::string& file) {
  ObjectReader reader(entry.value("value"), file);
  const ChoiceCost cost = {.forward_s = reader.number("forward", kLeast, kMost),
                           .forward_score_s = reader.number("forward_score", kLeast, kMost),
                           .backward_s = reader.number("backward", kLeast, kMost),
                           .backward_score_s = reader.number("backward_score", kLeast, kMost)};
  reader.finish();
  return cost;
}

// [[size, share], ...]
std::vector<CurvePoint> read_shares(ObjectReader& entry) {
  const JsonValue& list = entry.value("value");
  std::vector<CurvePoint> curve;
  for (const JsonValue& point : list.items) {
    const bool is_pair =
        point.items.size() == 2 && is_number(point.items[0]) && is_number(point.items[1]);
    if (!is_pair || point.items[0].real <= (curve.empty() ? 0 : curve.back().size) ||
        point.items[1].real < kLeastShare || point.items[1].real > kMostShare) {
      throw entry.error("value", "found " + describe(point) +
                                     ", expected pairs of a size, ascending, and a share");
    }
    curve.push_back({.size = point.items[0].real, .value = point.items[1].real});
  }
  if (curve.empty()) {
    throw entry.error("value", "found " + describe(list) + ", expected a list that is not empty");
  }
  return curve;
}

// A share has no unit.
void read_unit(ObjectReader& entry, const TimeConstant& constant) {
  if (constant.unit.empty()) {
    return;
  }
  const std::string unit = entry.string("unit");
  if (unit != constant.unit) {
    throw entry.error("unit", "found \"" + shown(unit, Encoding::kUtf8) + "\", expected \"" +
                                  std::string(constant.unit) + "\"");
  }
}

void read_constant(const TimeConstant& constant, const JsonValue& value, const std::string& file,
                   TimeConstants& constants, Provenances& provenances) {
  ObjectReader entry(value, file);
  if (const auto* choice = std::get_if<ChoiceCost TimeConstants::*>(&constant.member)) {
    constants.*(*choice) = read_choice(entry, file);
  } else if (const auto* curve =
                 std::get_if<std::vector<CurvePoint> TimeConstants::*>(&constant.member)) {
    constants.*(*curve) = read_shares(entry);
  } else {
    constants.*std::get<double TimeConstants::*>(constant.member) = read_plain(entry, constant);
  }
  read_unit(entry, constant);
  provenances.emplace(constant.name, read_provenance(entry));
  entry.finish();
}

}  // namespace

TimeConstantsFile read_time_constants(const JsonValue& value, const std::string& file) {
  ObjectReader reader(value, file);
  TimeConstants constants;
  Provenances provenances;
  for (const TimeConstant& constant : kTimeConstants) {
    read_constant(constant, reader.value(constant.name), file, constants, provenances);
  }
  reader.finish();
  return {.constants = std::make_shared<const TimeConstants>(std::move(constants)),
          .provenances = std::move(provenances)};
}

const TimeConstantsFile& Library::time_constants_file() const {
  std::optional<TimeConstantsFile>& read = read_->time_constants;
  if (!read) {
    const JsonFile& source = parse(std::string(kTimeConstantsPath));
    read = read_time_constants(source.json, source.file);
  }
  return *read;
}

const std::shared_ptr<const TimeConstants>& Library::time_constants() const {
  return time_constants_file().constants;
}

}  // namespace shardplan
