#include "tools/report/search_table.h"

#include <algorithm>
#include <array>

#include "data/read/json_message.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/plan/units.h"
#include "search/walk/rank.h"
#include "tools/options/plan_words.h"
#include "tools/options/words.h"
#include "tools/report/estimate_table.h"
#include "tools/report/lines.h"
#include "tools/report/report.h"
#include "tools/report/step.h"
#include "tools/report/text.h"
#include "tools/screen/search_hints.h"

namespace shardplan {
namespace {

void add_plan_cells(const Job& job, const RankedPlan& ranked, std::vector<Cell>& row) {
  for (const PlanSize& size : kPlanSizes) {
    row.emplace_back(size.name == "dp" ? data_parallel_size(job, ranked.plan)
                                       : ranked.plan.*size.field);
  }
  row.emplace_back(std::string(ranked.plan.sequence_parallel ? "on" : "off"));
  row.emplace_back(std::string(name_of(ranked.plan.schedule)));
  row.emplace_back(recompute_text(ranked.plan.recompute));
  row.emplace_back(notes_of(ranked));
}

std::string ranked_table(const SearchReport& report) {
  Table table = {
      .columns = {"rank", "tie", "tokens/s/GPU", "step s", "MFU", "allocated", "device used"}};
  for (const PlanSize& size : kPlanSizes) {
    table.columns.push_back(size.name == "dp_replicate"  ? "rep"
                            : size.name == "micro_batch" ? "mbs"
                                                         : std::string(size.name));
  }
  for (const char* name : {"sp", "schedule", "recompute", "notes"}) {
    table.columns.push_back(name);
  }
  std::int64_t rank = 0;
  for (const RankedPlan& ranked : report.result.top) {
    std::vector<Cell> row = {++rank,
                             ranked.tied_group,
                             whole(ranked.time.tokens_per_s_per_gpu),
                             fixed(ranked.time.total_s, 3),
                             fixed(100 * ranked.time.mfu, 1) + " %",
                             gib(basis_bytes(ranked.memory, MemoryBasis::kAllocated)),
                             gib(basis_bytes(ranked.memory, MemoryBasis::kDeviceUsed))};
    add_plan_cells(report.job, ranked, row);
    table.rows.push_back(std::move(row));
  }
  return table_text(table);
}

// The front, thinned to a screen: both ends and plans evenly between them.
std::string pareto_table(const SearchReport& report) {
  constexpr std::size_t kMostRows = 20;
  const std::vector<ParetoPoint>& points = report.result.pareto;
  const std::size_t rows = std::min(points.size(), kMostRows);
  Table table = {.columns = {"allocated", "tokens/s/GPU", "step s"}};
  for (const PlanSize& size : kPlanSizes) { table.columns.push_back(std::string(size.name)); }
  for (const char* name : {"sp", "schedule", "recompute", "notes"}) {
    table.columns.push_back(name);
  }
  for (std::size_t at = 0; at < rows; ++at) {
    const std::size_t point = rows < 2 ? 0 : at * (points.size() - 1) / (rows - 1);
    const RankedPlan ranked = {
        .plan = points[point].plan, .price = points[point].price, .memory = {}, .time = {}};
    std::vector<Cell> row = {gib(ranked.price.allocated_bytes),
                             whole(ranked.price.tokens_per_s_per_gpu),
                             fixed(ranked.price.step_time_s, 3)};
    add_plan_cells(report.job, ranked, row);
    table.rows.push_back(std::move(row));
  }
  return "\nNo plan that fits is as fast with less memory (" + grouped(std::ssize(points)) +
         " plans" + (rows < points.size() ? ", " + std::to_string(rows) + " shown" : "") + ")\n" +
         table_text(table);
}

std::string pruned_table(const SearchResult& result) {
  Table table = {.columns = {"plans", "pruned by"}};
  for (const RuleCount& count : result.pruned) { table.rows.push_back({count.plans, count.rule}); }
  return table_text(table);
}

struct NamedGroup {
  std::string_view name;
  GroupKind kind;
};
constexpr std::array<NamedGroup, 6> kNamedGroups = {{
    {.name = "tp", .kind = GroupKind::kTp},
    {.name = "cp", .kind = GroupKind::kCp},
    {.name = "etp", .kind = GroupKind::kEtp},
    {.name = "ep", .kind = GroupKind::kEp},
    {.name = "pp", .kind = GroupKind::kPp},
    {.name = "dp", .kind = GroupKind::kDp},
}};

// What each group of ranks reaches over: "tp 8 in a node, cp 2 over 2 nodes".
std::string groups_text(const Job& job, const Plan& plan) {
  std::vector<std::string> groups;
  for (const NamedGroup& group : kNamedGroups) {
    const GroupShape shape = group_shape(job, plan, group.kind);
    const std::int64_t nodes = div_exact(shape.size, shape.ranks_per_node);
    if (shape.size > 1) {
      groups.push_back(std::string(group.name) + " " + grouped(shape.size) +
                       (nodes == 1 ? " in a node" : " over " + grouped(nodes) + " nodes") +
                       (nodes > 1 && shape.ranks_per_domain == shape.size ? " by NVLink" : ""));
    }
  }
  return joined(groups);
}

std::string first_plan_lines(const SearchReport& report) {
  const RankedPlan& best = report.chosen();
  std::string text = report.picked == 0 ? std::string("\nThe first plan\n")
                                        : "\nPlan " + std::to_string(report.picked + 1) + "\n";
  text += batch_line(report.job, best.plan);
  if (report.job.cluster.nodes > 1) {
    text += label_line("groups", groups_text(report.job, best.plan));
  }
  text += time_lines(best.time);
  for (const Hint& hint : first_plan_hints(report)) { text += label_line(hint.label, hint.text); }
  return text;
}

// Only where it says something: some plans shown are as fast as each other.
std::string tie_line(const SearchResult& result) {
  if (result.top.back().tied_group == std::ssize(result.top)) {
    return "";
  }
  return "tie: plans of one number are within " + percent(kSpeedUncertainty) +
         " of its fastest, closer than the model can tell; of a family only one is shown: "
         "--all-plans\n";
}

bool has_fp8_plans(const SearchResult& result) {
  return std::ranges::any_of(result.top, [](const RankedPlan& ranked) {
    return ranked.plan.precision == Precision::kFp8;
  });
}

std::string nothing_fits(const SearchReport& report, const Paint& paint) {
  const SearchResult& result = report.result;
  std::string text =
      paint(verdict_colour(report), verdict_words(report)) + "  " + no_plan_words(report) + "\n";
  if (result.plans_distinct == 0 && !report.reason.empty()) {
    text += label_line("nearest", one_line(report.reason));
  }
  if (result.plans_distinct > 0) {
    text += label_line("", report.command_of(result.smallest));
  }
  for (const Hint& hint : other_size_hints(report)) { text += label_line(hint.label, hint.text); }
  return text;
}

}  // namespace

std::string search_text(const SearchReport& report, const Paint& paint) {
  const SearchResult& result = report.result;
  std::string text =
      job_lines(report.job) +
      label_line("batch", grouped(report.job.global_batch) +
                              (report.job.global_batch == 1 ? " sequence of " : " sequences of ") +
                              grouped(report.job.sequence_length) + " tokens per step") +
      label_line("rule", std::string(name_of(report.rule.basis)) +
                             " <= " + gib(memory_limit_bytes(report.job.cluster, report.rule)) +
                             " GiB, " + limit_text(report.job.cluster, report.rule)) +
      "\n";
  if (result.top.empty()) {
    text += nothing_fits(report, paint);
  } else {
    if (report.verdict == name_of(MemoryVerdict::kOver)) {
      text += paint(verdict_colour(report), verdict_words(report)) + "  " +
              std::string(kOverWords) + "\n";
    }
    text += std::string("Fastest plans, memory in GiB") +
            (result.top.front().time.calibrated ? "\n" : ", times uncalibrated\n") +
            ranked_table(report) + tie_line(result) + mfu_note(has_fp8_plans(result)) +
            first_plan_lines(report) + "\nIn full:\n" + report.command_of(report.chosen().plan) +
            "\n" + assumption_lines(report.assumptions, report.job) +
            list_lines("Evidence for the plan", report.evidence ? evidence_lines(*report.evidence)
                                                                : std::vector<std::string>{});
  }
  if (!result.pareto.empty()) {
    text += pareto_table(report);
  }
  return text + "\n" + grouped(result.plans_in_space) + " plans in the space, " +
         grouped(result.plans_priced) + " priced, " + grouped(result.plans_fitting) +
         " of them fit\n" + pruned_table(result);
}

}  // namespace shardplan
