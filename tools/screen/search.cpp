#include "tools/screen/search.h"

#include <algorithm>

#include "tools/options/plan_words.h"
#include "tools/report/lines.h"
#include "tools/report/text.h"
#include "tools/screen/job.h"
#include "tools/screen/search_hints.h"

namespace shardplan {
namespace {

// A column of the table of plans.
struct PlanColumn {
  std::string name;
  std::vector<std::string> cells = {};
  int weight = kMustStand;
  bool is_folded = false;  // where all plans have the same
};

std::vector<PlanColumn> columns_of(const SearchReport& report) {
  std::vector<PlanColumn> columns;
  const auto add = [&](const std::string& name, int weight, bool is_folded, const auto& cell) {
    PlanColumn column = {.name = name, .weight = weight, .is_folded = is_folded};
    for (const RankedPlan& ranked : report.result.top) { column.cells.push_back(cell(ranked)); }
    columns.push_back(std::move(column));
  };
  std::int64_t rank = 0;
  add("rank", kMustStand, false, [&](const RankedPlan&) { return std::to_string(++rank); });
  add("tie", 20, false, [](const RankedPlan& ranked) { return std::to_string(ranked.tied_group); });
  add("tokens/s/GPU", kMustStand, false,
      [](const RankedPlan& ranked) { return whole(ranked.time.tokens_per_s_per_gpu); });
  add("step s", 40, false, [](const RankedPlan& ranked) { return fixed(ranked.time.total_s, 3); });
  add("MFU", 10, false,
      [](const RankedPlan& ranked) { return fixed(100 * ranked.time.mfu, 1) + " %"; });
  add("GiB used", 50, false, [](const RankedPlan& ranked) {
    return gib(basis_bytes(ranked.memory, MemoryBasis::kDeviceUsed));
  });
  for (const PlanSize& size : kPlanSizes) {
    add(std::string(size.name), 60, true, [&](const RankedPlan& ranked) {
      return std::to_string(size.name == "dp" ? data_parallel_size(report.job, ranked.plan)
                                              : ranked.plan.*size.field);
    });
  }
  add("sequence_parallel", 15, true, [](const RankedPlan& ranked) {
    return std::string(ranked.plan.sequence_parallel ? "on" : "off");
  });
  add("schedule", 30, true,
      [](const RankedPlan& ranked) { return std::string(name_of(ranked.plan.schedule)); });
  add("recompute", 45, true,
      [](const RankedPlan& ranked) { return recompute_text(ranked.plan.recompute); });
  add("notes", kMustStand, true, notes_of);
  return columns;
}

// Columns that say the same of all plans stand in a row of their own.
std::string folded_row(const Screen& screen, std::vector<PlanColumn>& columns) {
  std::string text;
  std::erase_if(columns, [&](const PlanColumn& column) {
    const bool is_same =
        column.is_folded && std::ranges::all_of(column.cells, [&](const auto& cell) {
          return cell == column.cells.front();
        });
    if (is_same && !column.cells.front().empty()) {
      text += (text.empty() ? "" : ", ") + column.name + " " + column.cells.front();
    }
    return is_same;
  });
  return text.empty() ? "" : screen_line(screen, "all have", text, 2);
}

std::string plans_table(const Screen& screen, const std::vector<PlanColumn>& columns,
                        std::size_t most) {
  ScreenTable table;
  const std::size_t rows = std::min(most, columns.front().cells.size());
  table.table.rows.resize(rows);
  for (const PlanColumn& column : columns) {
    table.table.columns.push_back(column.name);
    table.weights.push_back(column.weight);
    for (std::size_t row = 0; row < rows; ++row) {
      table.table.rows[row].emplace_back(column.cells[row]);
    }
  }
  return screen_table(screen, table);
}

// The rules that dropped most plans, where nothing is left.
std::string pruned_rows(const Screen& screen, const SearchResult& result) {
  std::vector<RuleCount> counts = result.pruned;
  std::ranges::stable_sort(counts, std::ranges::greater(), &RuleCount::plans);
  std::string rows;
  constexpr std::size_t kMost = 6;
  for (std::size_t i = 0; i < std::min(counts.size(), kMost); ++i) {
    rows += screen_line(screen, i == 0 ? "refused" : " ",
                        grouped(counts[i].plans) + " plans: " + counts[i].rule, 1);
  }
  return rows;
}

// What was chosen here and is not the framework's own: what decides first.
std::string assumed_row(const Screen& screen, const SearchReport& report) {
  std::string decisive;
  std::string others;
  for (const StatedAssumption& assumption : report.assumptions) {
    std::string& text = assumption.decides ? decisive : others;
    if (assumption.decides || assumption.kind == AssumptionKind::kAssumed) {
      text += (text.empty() ? "" : ", ") + assumption.in_short;
    }
  }
  return (decisive.empty() ? "" : screen_line(screen, "decides", decisive, 2)) +
         (others.empty() ? "" : screen_line(screen, "assumed", others, 2));
}

std::string nothing_screen(const Screen& screen, const SearchReport& report) {
  const SearchResult& result = report.result;
  std::vector<Block> blocks = {
      {kMustStand,
       verdict_line(screen, verdict_colour(report), verdict_words(report), no_plan_words(report))}};
  if (result.plans_distinct == 0) {
    blocks.push_back({80, report.reason.empty()
                              ? ""
                              : screen_line(screen, "nearest", one_line(report.reason), 5)});
  }
  for (const Hint& hint : other_size_hints(report)) {
    blocks.push_back({70, screen_line(screen, hint.label, hint.text, 3)});
  }
  blocks.push_back({40, job_rows(screen, report.job)});
  blocks.push_back({30, pruned_rows(screen, result)});
  if (result.plans_distinct > 0) {
    blocks.push_back({60, "\n" + command_rows(screen, report.command_of(result.smallest))});
  }
  return composed(std::move(blocks));
}

}  // namespace

std::string search_screen(const Screen& screen, const SearchReport& report) {
  const SearchResult& result = report.result;
  if (result.top.empty()) {
    return nothing_screen(screen, report);
  }
  const RankedPlan& best = report.chosen();
  const bool is_over = verdict_words(report) != "FITS";
  std::vector<Block> blocks = {
      {kMustStand,
       verdict_line(screen, verdict_colour(report), verdict_words(report),
                    is_over ? std::string(kOverWords) : memory_words(report.job, best.memory))},
      {kMustStand, screen_line(screen, "speed", speed_words(best.time), 2)}};
  if (report.evidence && report.evidence->near_card.runs() > 0) {
    blocks.push_back({35, screen_line(screen, "near",
                                      near_card_words(*report.evidence, report.job.profile.name))});
  }
  blocks.push_back({45, job_rows(screen, report.job)});
  std::vector<PlanColumn> columns = columns_of(report);
  const std::string folded = folded_row(screen, columns);
  blocks.push_back({3, "\n"});
  const std::size_t table_at = blocks.size();
  blocks.push_back({kMustStand, ""});
  blocks.push_back({65, folded});
  blocks.push_back({2, "\n"});
  for (const Hint& hint : first_plan_hints(report)) {
    if (hint.label != "next sizes") {
      blocks.push_back({50, screen_line(screen, hint.label, hint.text, 2)});
    }
  }
  blocks.push_back({49, assumed_row(screen, report)});
  blocks.push_back({48, screen_line(screen, "network", network_words(report.job.cluster), 2)});
  if (report.evidence) {
    blocks.push_back({47, screen_line(screen, "sure?", evidence_words(*report.evidence), 2)});
  }
  blocks.push_back({4, "\n"});
  blocks.push_back({kMustStand, command_rows(screen, report.command_of(best.plan))});
  blocks.push_back({20, screen_line(screen, "more",
                                    "--pick N: the command of plan N; --details: all of it", 1)});
  constexpr std::int64_t kFewestPlans = 4;
  std::int64_t others = 0;
  for (const Block& block : blocks) { others += num_rows(block.text); }
  const std::int64_t room = std::max(kFewestPlans, kMostRows - others - 1);
  blocks[table_at].text = plans_table(screen, columns, static_cast<std::size_t>(room));
  return composed(std::move(blocks));
}

}  // namespace shardplan
