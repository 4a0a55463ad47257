#include "tools/report/compare.h"

#include <nlohmann/json.hpp>

#include "tools/commands/verdict.h"
#include "tools/report/report.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Side& side) {
  Json json = {{"framework", side.question.job.profile.name},
               {"framework_version", side.question.job.profile.version},
               {"status", name_of(side.prediction.status)},
               {"verdict", verdict_name(side.prediction)},
               {"reason", side.prediction.reason}};
  if (side.prediction.judged) {
    json["rule"] = rule_json(*side.prediction.judged);
    json["left"] = side.prediction.judged->left_bytes;
  }
  return json;
}

}  // namespace

std::string comparison_json(const Side& left, const Side& right, const Table& table) {
  return one_line_of({{"schema", 1},
                      {"command", "compare"},
                      {"left", json_of(left)},
                      {"right", json_of(right)},
                      {"differences", rows_of(table)}});
}

}  // namespace shardplan
