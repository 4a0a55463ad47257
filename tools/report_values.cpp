#include "tools/report_values.h"

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

struct CellJson {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(std::int64_t value) const { return value; }
  Json operator()(double value) const { return value; }
  Json operator()(const std::string& value) const { return value; }
};

}  // namespace

std::string one_line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json rows_of(const Table& table) {
  Json rows = Json::array();
  for (const std::vector<Cell>& cells : table.rows) {
    Json row = Json::object();
    for (std::size_t column = 0; column < cells.size(); ++column) {
      row[table.columns[column]] = std::visit(CellJson{}, cells[column]);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace shardplan
