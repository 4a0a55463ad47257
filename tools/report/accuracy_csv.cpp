#include "tools/report/accuracy_csv.h"

#include <nlohmann/json.hpp>

#include "data/read/json_message.h"
#include "tools/accuracy/accuracy.h"
#include "tools/report/csv.h"
#include "tools/report/table.h"

namespace shardplan {
namespace {

// An empty cell for what was not measured.
template <class Value>
void add_cell(std::vector<Cell>& row, const std::optional<Value>& value) {
  if (value) {
    row.emplace_back(*value);
  } else {
    row.emplace_back();
  }
}

}  // namespace

std::string accuracy_csv(const AccuracyReport& report) {
  Table table = {.columns = {"set", "id", "framework", "measured_status", "status", "reason",
                             "features", "rank", "pp_rank"}};
  for (const auto& row : kQuantities) {
    table.columns.push_back("measured_" + std::string(row.name));
    table.columns.push_back("predicted_" + std::string(row.name));
  }
  table.columns.push_back("measured_step_time_s");
  table.columns.push_back("predicted_step_time_s");
  for (const AccuracyCase& run : report.cases) {
    const std::vector<Cell> start = {run.set,
                                     run.id,
                                     run.framework,
                                     std::string(name_of(run.measured_status)),
                                     std::string(name_of(run.status)),
                                     run.reason,
                                     joined(run.features)};
    for (const RankPairs& rank : run.ranks) {
      std::vector<Cell> row = start;
      const bool is_known = !rank.rank.is_largest;
      add_cell(row, is_known ? std::optional(rank.rank.rank) : std::nullopt);
      add_cell(row, is_known ? std::optional(rank.rank.pp_rank) : std::nullopt);
      for (const std::optional<BytesPair>& pair : rank.pairs) {
        add_cell(row, pair ? std::optional(pair->measured) : std::nullopt);
        add_cell(row, pair ? std::optional(pair->predicted) : std::nullopt);
      }
      add_cell(row, run.measured_step_s);
      add_cell(row, run.predicted_step_s);
      table.rows.push_back(std::move(row));
    }
    if (run.ranks.empty()) {
      std::vector<Cell> row = start;
      row.resize(table.columns.size());
      table.rows.push_back(std::move(row));
    }
  }
  return csv_text(table);
}

}  // namespace shardplan
