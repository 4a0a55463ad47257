// shardplan compare as JSON.
#include <nlohmann/json.hpp>

#include "tools/report.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

struct CellJson {
  Json operator()(std::monostate) const { return nullptr; }
  template <class Value>
  Json operator()(const Value& value) const {
    return value;
  }
};

Json json_of(const Side& side) {
  return {{"framework", side.question.job.profile.name},
          {"framework_version", side.question.job.profile.version},
          {"status", name_of(side.prediction.status)},
          {"reason", side.prediction.reason}};
}

}  // namespace

std::string comparison_json(const Side& left, const Side& right, const Table& table) {
  Json json = {{"schema", 1},
               {"command", "compare"},
               {"left", json_of(left)},
               {"right", json_of(right)},
               {"differences", Json::array()}};
  for (const std::vector<Cell>& row : table.rows) {
    Json difference = Json::object();
    for (std::size_t i = 0; i < row.size(); ++i) {
      difference[table.columns[i]] = std::visit(CellJson{}, row[i]);
    }
    json["differences"].push_back(std::move(difference));
  }
  return json.dump() + "\n";
}

}  // namespace shardplan
