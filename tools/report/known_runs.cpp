#include "tools/report/known_runs.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/accuracy/known_runs.h"
#include "tools/options/plan_words.h"
#include "tools/report/csv.h"
#include "tools/report/table.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDatasheet = "datasheet";

std::string unsigned_percent(double share) {
  return fixed(share * 100, 1) + " %";
}

// "+4.9 %", right-aligned.
std::string signed_error(double share) {
  const std::string number = fixed(share * 100, 1);
  return padded_left(share < 0 ? number + " %" : std::string(1, '+').append(number) + " %", 7);
}

std::string kind_of(const TimedRun& run) {
  return run.has_experts ? "MoE" : "dense";
}

std::string gpu_figures(const TimedRun& run) {
  return run.calibrated ? "measured" : kDatasheet;
}

// No link between NVLink domains has been measured: its rate is the network's datasheet.
Cell link_figures(const TimedRun& run) {
  return run.num_gpus > run.nvlink_domain ? Cell(std::string(kDatasheet)) : Cell();
}

// The degrees above 1, micro-batch and recomputation.
std::string layout_text(const Plan& plan) {
  std::string text;
  for (const PlanSize& size : kPlanSizes) {
    const std::int64_t value = plan.*size.field;
    const bool always = size.name == "zero" || size.name == "micro_batch";
    if (size.field != &Plan::dp && (value > 1 || always)) {
      text += (size.name == "micro_batch" ? "mbs" : std::string(size.name)) + " " +
              std::to_string(value) + " ";
    }
  }
  return text + recompute_text(plan.recompute);
}

// One row of a group of runs.
std::vector<Cell> summary_row(const RunGroup& group) {
  const RunErrors errors = errors_of(group.runs);
  return {group.name,
          static_cast<std::int64_t>(std::ssize(group.runs)),
          unsigned_percent(errors.mean),
          unsigned_percent(errors.median),
          signed_error(errors.bias),
          signed_error(errors.worst->error()),
          errors.worst->id,
          fixed(errors.rank_correlation, 3),
          fixed(errors.mfu_rank_correlation, 3)};
}

std::string runs_table(const KnownRunsReport& report) {
  Table table = {.columns = {"run", "GPUs", "GPU", "model", "precision", "layout", "measured s",
                             "predicted s", "error", "MFU", "predicted MFU", "GPU figures",
                             "links between nodes"}};
  for (const TimedRun& run : report.runs) {
    table.rows.push_back(
        {run.id, run.num_gpus, run.gpu, kind_of(run), std::string(name_of(run.plan.precision)),
         layout_text(run.plan), fixed(run.measured_s, 3), fixed(run.predicted_s, 3),
         signed_error(run.error()), unsigned_percent(run.measured_mfu()),
         unsigned_percent(run.predicted_mfu), gpu_figures(run), link_figures(run)});
  }
  return table_text(table);
}

std::string summary_table(const KnownRunsReport& report) {
  Table table = {.columns = {"runs of", "runs", "mean |error|", "median", "bias", "worst",
                             "worst run", "Spearman of s", "of MFU"}};
  for (const RunGroup& group : run_groups(report)) { table.rows.push_back(summary_row(group)); }
  return table_text(table);
}

Table rows_table(const KnownRunsReport& report) {
  Table table = {.columns = {"id", "source", "num_gpus", "gpu", "model", "precision", "layout",
                             "measured_step_s", "predicted_step_s", "error", "measured_mfu",
                             "predicted_mfu", "gpu_figures", "link_figures", "refused"}};
  for (const TimedRun& run : report.runs) {
    table.rows.push_back({run.id, run.source(), run.num_gpus, run.gpu, kind_of(run),
                          std::string(name_of(run.plan.precision)), layout_text(run.plan),
                          run.measured_s, run.predicted_s, run.error(), run.measured_mfu(),
                          run.predicted_mfu, gpu_figures(run), link_figures(run), Cell()});
  }
  for (const RefusedRun& run : report.refused) {
    std::vector<Cell> cells(table.columns.size());
    cells.front() = run.id;
    cells.back() = run.reason;
    table.rows.push_back(std::move(cells));
  }
  return table;
}

}  // namespace

std::string known_runs_text(const KnownRunsReport& report) {
  std::string text = grouped(std::ssize(report.runs)) + " published runs on more than " +
                     std::to_string(kMoreGpusThan) +
                     " GPUs; error: predicted over measured step time - 1\n";
  if (report.smaller > 0) {
    text += grouped(report.smaller) + " runs of the files are on fewer GPUs and not shown\n";
  }
  if (!report.runs.empty()) {
    text += "\n";
    text += runs_table(report);
    text += "\n";
    text += summary_table(report);
  }
  if (!report.refused.empty()) {
    text += "\n";
    text += grouped(std::ssize(report.refused)) + " more are refused\n";
    for (const RefusedRun& run : report.refused) {
      text += "  ";
      text += one_line(run.id) + ": " + one_line(run.reason) + "\n";
    }
  }
  return text;
}

std::string known_runs_csv(const KnownRunsReport& report) {
  return csv_text(rows_table(report));
}

std::string known_runs_json(const KnownRunsReport& report) {
  Json groups = Json::array();
  for (const RunGroup& group : run_groups(report)) {
    const RunErrors errors = errors_of(group.runs);
    groups.push_back({{"name", group.name},
                      {"runs", group.runs.size()},
                      {"mean_abs_error", errors.mean},
                      {"median_abs_error", errors.median},
                      {"bias", errors.bias},
                      {"worst_error", errors.worst->error()},
                      {"worst", errors.worst->id},
                      {"rank_correlation", errors.rank_correlation},
                      {"mfu_rank_correlation", errors.mfu_rank_correlation}});
  }
  const Json root = {{"schema", 1},
                     {"runs", rows_of(rows_table(report))},
                     {"smaller", report.smaller},
                     {"groups", std::move(groups)}};
  return one_line_of(root);
}

}  // namespace shardplan
