#include "tools/report/values.h"

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "data/read/case_tuning.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

struct CellJson {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(std::int64_t value) const { return value; }
  Json operator()(double value) const { return value; }
  Json operator()(const std::string& value) const { return value; }
};

void write(const Json& value, std::size_t indent, std::string& text) {
  const bool is_flat =
      !value.is_structured() || value.empty() ||
      (value.is_array() && !value.front().is_object() &&
       (!value.front().is_array() || (value.front().size() == 2 && !value.front()[0].is_array())));
  if (is_flat) {
    text += value.dump();
    return;
  }
  const bool is_object = value.is_object();
  text += is_object ? "{\n" : "[\n";
  bool is_first = true;
  for (const auto& item : value.items()) {
    text += is_first ? "" : ",\n";
    is_first = false;
    text.append(indent + 2, ' ');
    text += is_object ? Json(item.key()).dump() + ": " : "";
    write(item.value(), indent + 2, text);
  }
  text += '\n';
  text.append(indent, ' ');
  text += is_object ? '}' : ']';
}

}  // namespace

std::string indented_text(const Json& json) {
  std::string text;
  write(json, 0, text);
  return text + '\n';
}

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

namespace {

nlohmann::ordered_json json_of(const Adapters& adapters) {
  nlohmann::ordered_json targets = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < adapters.targets.size(); ++i) {
    if (adapters.targets.at(i)) {
      targets.push_back(kLinearLayerNames.at(i));
    }
  }
  return {{"rank", adapters.rank},
          {"targets",
           targets.size() == adapters.targets.size() ? nlohmann::ordered_json("all") : targets},
          {"dropout", adapters.dropout},
          {"dora", adapters.decomposes_weights},
          {"dtype", name_of(adapters.dtype)},
          {"trains_table", adapters.trains_table},
          {"trains_head", adapters.trains_head}};
}

}  // namespace

void add_tuning(nlohmann::ordered_json& json, const Job& job) {
  if (job.adapters.rank > 0) {
    json["adapters"] = json_of(job.adapters);
  }
  if (job.quantized.kind != Quantization::kNone) {
    json["quantization"] = {{"kind", name_of(job.quantized.kind)},
                            {"double", job.quantized.is_double}};
  }
}

}  // namespace shardplan
