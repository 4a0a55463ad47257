#include "tools/report/csv.h"

#include <array>

#include "data/read/json_message.h"
#include "tools/commands/verdict.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"
#include "tools/report/report.h"
#include "tools/report/search_extras.h"
#include "tools/report/sweep.h"

namespace shardplan {
namespace {

std::string quoted(const std::string& text) {
  const bool is_formula =
      !text.empty() && std::string("=+-@\t\r").find(text.front()) != std::string::npos;
  std::string safe = (is_formula ? "'" : "") + text;
  if (safe.find_first_of(",\"\r\n") == std::string::npos) {
    return safe;
  }
  std::string out = "\"";
  for (const char letter : safe) { out += letter == '"' ? "\"\"" : std::string(1, letter); }
  return out + "\"";
}

struct CellText {
  std::string operator()(std::monostate) const { return ""; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return exact_text(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
};

// The verdict, and the rule that it was made by.
constexpr auto kVerdictColumns = std::to_array<const char*>(
    {"verdict", "rule_basis", "rule_threshold", "rule_value", "rule_limit", "rule_kept"});

void append_verdict(std::vector<Cell>& row, const Judgement& judged) {
  row.emplace_back(std::string(name_of(judged.verdict)));
  row.emplace_back(std::string(name_of(judged.rule.basis)));
  row.emplace_back(judged.rule.threshold);
  row.emplace_back(judged.check.value_bytes);
  row.emplace_back(judged.check.limit_bytes);
  row.emplace_back(std::string(judged.check.kept() ? "yes" : "no"));
}

// The columns that `estimate` and `batch` share, after the ones that say which case it is.
std::vector<std::string> prediction_columns() {
  std::vector<std::string> columns = {
      "status",      "reason",           "stage",         "num_layers",
      "parameters",  "peak_allocated",   "peak_reserved", "required",
      "device_used", "outside",          "state",         "first_step_allocated",
      "after_init",  "steady_allocated", "peak_moment"};
  for (const std::string_view name : kComponentNames) {
    columns.push_back(std::string(name) + "_bytes");
  }
  columns.push_back("step_time_s");
  columns.push_back("tokens_per_s_per_gpu");
  columns.insert(columns.end(), kVerdictColumns.begin(), kVerdictColumns.end());
  return columns;
}

void append_stage(std::vector<Cell>& row, const StageMemory& stage) {
  for (const std::int64_t value :
       {stage.pp_rank, stage.num_layers, stage.parameters, stage.allocated_bytes,
        stage.reserved_bytes, stage.required_bytes, stage.device_used_bytes, stage.outside_bytes,
        stage.state_bytes, stage.first_step_bytes, stage.built_bytes, stage.steady_bytes}) {
    row.emplace_back(value);
  }
  row.emplace_back(stage.peak_moment());
  for (const std::int64_t bytes : stage.components) { row.emplace_back(bytes); }
}

Table prediction_table(const std::vector<std::string>& key_columns, const std::vector<Cell>& keys,
                       const Prediction& prediction) {
  Table table = {.columns = key_columns};
  const std::vector<std::string> columns = prediction_columns();
  table.columns.insert(table.columns.end(), columns.begin(), columns.end());
  std::vector<Cell> start = keys;
  start.emplace_back(std::string(name_of(prediction.status)));
  start.emplace_back(prediction.reason);
  for (const StageMemory& stage : prediction.memory.stages) {
    std::vector<Cell> row = start;
    append_stage(row, stage);
    row.emplace_back(prediction.time.total_s);
    row.emplace_back(prediction.time.tokens_per_s_per_gpu);
    append_verdict(row, prediction.judged.value());
    table.rows.push_back(std::move(row));
  }
  if (!prediction.has_numbers()) {
    start.resize(table.columns.size() - kVerdictColumns.size());
    start.emplace_back(std::string(verdict_name(prediction)));
    start.resize(table.columns.size());
    table.rows.push_back(std::move(start));
  }
  return table;
}

// Its fields, the group of its ties, the command.
void append_plan(std::vector<Cell>& row, const SearchReport& report, const Plan& plan,
                 const Cell& tied_group) {
  for (const PlanSize& size : kPlanSizes) {
    row.emplace_back(size.name == "dp" ? data_parallel_size(report.job, plan) : plan.*size.field);
  }
  row.emplace_back(std::string(plan.sequence_parallel ? "on" : "off"));
  row.emplace_back(std::string(name_of(plan.schedule)));
  row.emplace_back(std::string(name_of(plan.cp_method)));
  row.emplace_back(recompute_text(plan.recompute));
  row.emplace_back(std::string(name_of(plan.precision)));
  row.emplace_back(std::string(name_of(plan.grad_dtype)));
  row.emplace_back(dimensions_text(plan.rank_order));
  row.emplace_back(std::string(name_of(plan.master_dtype)));
  row.emplace_back(std::string(name_of(plan.exp_avg_dtype)));
  row.emplace_back(std::string(name_of(plan.exp_avg_sq_dtype)));
  row.emplace_back(plan.offload.optimizer);
  row.emplace_back(std::string(plan.offload.parameters ? "on" : "off"));
  row.push_back(tied_group);
  row.emplace_back(report.command_of(plan));
}

std::vector<Cell> ranked_row(const SearchReport& report, const RankedPlan& ranked,
                             std::int64_t rank) {
  std::vector<Cell> row = {rank, ranked.time.tokens_per_s_per_gpu, ranked.time.total_s,
                           ranked.time.mfu, std::string(ranked.time.mfu_peak)};
  for (const MemoryBasis basis : {MemoryBasis::kAllocated, MemoryBasis::kReserved,
                                  MemoryBasis::kRequired, MemoryBasis::kDeviceUsed}) {
    row.emplace_back(basis_bytes(ranked.memory, basis));
  }
  row.emplace_back(std::int64_t{ranked.exceeds_device ? 1 : 0});
  row.emplace_back(std::string(name_of(status_of(ranked.memory.fit))));
  append_plan(row, report, ranked.plan, ranked.tied_group);
  append_verdict(row, judge_memory(report.job, ranked.memory, report.rule));
  return row;
}

// What a price knows, in the columns of a ranked row.
std::vector<Cell> front_row(const SearchReport& report, const ParetoPoint& point) {
  const Cell none;
  std::vector<Cell> row = {std::string("pareto"),
                           none,  // rank
                           point.price.tokens_per_s_per_gpu,
                           point.price.step_time_s,
                           none,  // mfu
                           none,  // mfu_peak
                           point.price.allocated_bytes};
  constexpr std::size_t kReplayed = 5;  // peak_reserved, required, device_used and what they decide
  row.resize(row.size() + kReplayed);
  append_plan(row, report, point.plan, none);
  row.resize(row.size() + kVerdictColumns.size());
  return row;
}

std::string csv_row(const std::vector<Cell>& cells) {
  std::string line;
  for (const Cell& cell : cells) {
    line += &cell == &cells.front() ? "" : ",";
    line += std::visit(CellText{}, cell);
  }
  return line + "\n";
}

}  // namespace

std::string csv_header(const Table& table) {
  return csv_row(std::vector<Cell>(table.columns.begin(), table.columns.end()));
}

std::string csv_rows(const Table& table) {
  std::string text;
  for (const std::vector<Cell>& row : table.rows) { text += csv_row(row); }
  return text;
}

std::string csv_text(const Table& table) {
  return csv_header(table) + csv_rows(table);
}

Table estimate_table(const EstimateReport& report) {
  const Job& job = report.question.job;
  Table table =
      prediction_table({"model", "cluster", "framework"},
                       {job.model.name, job.cluster.name, job.profile.name}, report.prediction);
  if (report.cost) {
    const Table cost = cost_table(*report.cost);
    table.columns.insert(table.columns.end(), cost.columns.begin(), cost.columns.end());
    for (std::vector<Cell>& row : table.rows) {
      row.insert(row.end(), cost.rows.front().begin(), cost.rows.front().end());
    }
  }
  return table;
}

Table batch_table(const BatchAnswer& answer) {
  return prediction_table({"line", "id", "framework"}, {answer.line, answer.id, answer.framework},
                          answer.prediction);
}

Table search_table(const SearchReport& report) {
  Table table = {.columns = {"rank", "tokens_per_s_per_gpu", "step_time_s", "mfu", "mfu_peak",
                             "peak_allocated", "peak_reserved", "required", "device_used",
                             "exceeds_device", "status"}};
  for (const PlanSize& size : kPlanSizes) { table.columns.push_back(std::string(size.name)); }
  for (const char* name :
       {"sequence_parallel", "schedule", "cp_method", "recompute", "precision", "grad_dtype",
        "rank_order", "master_dtype", "exp_avg_dtype", "exp_avg_sq_dtype", "offload_optimizer",
        "offload_parameters", "tied_group", "command"}) {
    table.columns.push_back(name);
  }
  table.columns.insert(table.columns.end(), kVerdictColumns.begin(), kVerdictColumns.end());
  std::int64_t rank = 0;
  for (const RankedPlan& ranked : report.result.top) {
    table.rows.push_back(ranked_row(report, ranked, ++rank));
  }
  if (report.options.pareto) {
    name_ranked_rows(table);
    for (const ParetoPoint& point : report.result.pareto) {
      table.rows.push_back(front_row(report, point));
    }
  }
  return table;
}

}  // namespace shardplan
