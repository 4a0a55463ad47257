#include "tools/report/values.h"

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "data/read/case_tuning.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"

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

Json rule_json(const Judgement& judged) {
  return {{"basis", name_of(judged.rule.basis)},
          {"threshold", judged.rule.threshold},
          {"value", judged.check.value_bytes},
          {"limit", judged.check.limit_bytes},
          {"kept", judged.check.kept()}};
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

Json json_of(const Recompute& recompute) {
  Json json = {{"granularity", name_of(recompute.granularity)}};
  if (recompute.granularity == RecomputeGranularity::kFull) {
    json["method"] = name_of(recompute.method);
    json["num_layers"] = recompute.num_layers;
  }
  if (recompute.granularity == RecomputeGranularity::kSelective && !recompute.policy.empty()) {
    json["policy"] = recompute.policy;
  } else if (recompute.granularity == RecomputeGranularity::kSelective) {
    json["modules"] = Json::array();
    for (const auto& row : kRecomputeModules) {
      if (recompute.modules.*row.value) {
        json["modules"].push_back(row.name);
      }
    }
  }
  return json;
}

nlohmann::ordered_json json_of(const std::vector<NameRule>& rules) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const NameRule& rule : rules) {
    json.push_back({{"pattern", rule.pattern}, {"trains", rule.trains}});
  }
  return json;
}

nlohmann::ordered_json json_of(const Adapters& adapters) {
  const std::string word = text_of_targets(adapters);
  nlohmann::ordered_json targets = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < adapters.targets.size(); ++i) {
    if (adapters.targets.at(i)) {
      targets.push_back(kLinearLayerNames.at(i));
    }
  }
  nlohmann::ordered_json json = {
      {"rank", adapters.rank},
      {"targets", targets_of_word(word) ? nlohmann::ordered_json(word) : targets},
      {"dropout", adapters.dropout},
      {"dora", adapters.decomposes_weights},
      {"dtype", name_of(adapters.dtype)},
      {"trains_table", adapters.trains_table},
      {"trains_head", adapters.trains_head}};
  if (adapters.tower_targets != TowerTargets::kNone) {
    json["tower"] = kTowerTargetNames.at(static_cast<std::size_t>(adapters.tower_targets));
  }
  if (adapters.kind != AdapterKind::kLora) {
    json["kind"] = name_of(adapters.kind);
  }
  return json;
}

}  // namespace

Json plan_json(const Plan& plan) {
  Json json;
  for (const PlanSize& size : kPlanSizes) {
    const bool is_unknown_dp =
        size.name == "dp" && plan.dp == 0;               // derived, nothing to derive from
    if (size.name != "micro_batch" && !is_unknown_dp) {  // micro_batch is of `training`
      json[std::string(size.name)] = plan.*size.field;
    }
  }
  json["sequence_parallel"] = plan.sequence_parallel;
  json["schedule"] = name_of(plan.schedule);
  json["cp_method"] = name_of(plan.cp_method);
  json["recompute"] = json_of(plan.recompute);
  json["grad_dtype"] = name_of(plan.grad_dtype);
  json["master_dtype"] = name_of(plan.master_dtype);
  json["exp_avg_dtype"] = name_of(plan.exp_avg_dtype);
  json["exp_avg_sq_dtype"] = name_of(plan.exp_avg_sq_dtype);
  json["rank_order"] = dimensions_text(plan.rank_order);
  if (!plan.layers_per_chunk.empty()) {
    json["layers_per_chunk"] = plan.layers_per_chunk;
  }
  if (plan.offload.optimizer > 0) {
    json["offload"] = {{"optimizer", plan.offload.optimizer}};
  }
  if (plan.offload.parameters) {
    json["offload"]["parameters"] = true;
  }
  if (plan.moe_buffer_factor != Plan{}.moe_buffer_factor) {
    json["moe_buffer_factor"] = plan.moe_buffer_factor;
  }
  return json;
}

void add_tuning(nlohmann::ordered_json& json, const Job& job) {
  if (!job.name_rules.empty()) {
    json["name_rules"] = json_of(job.name_rules);
  }
  if (job.adapters.rank > 0) {
    json["adapters"] = json_of(job.adapters);
  }
  if (job.quantized.kind != Quantization::kNone) {
    json["quantization"] = {{"kind", name_of(job.quantized.kind)},
                            {"double", job.quantized.is_double}};
    if (const auto spared = spared_names(job.quantized); !spared.empty()) {
      json["quantization"]["spared"] = spared;
    }
    if (job.quantized.takes_head) {
      json["quantization"]["head"] = true;
    }
  }
}

}  // namespace shardplan
