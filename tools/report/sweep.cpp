// The answers of a search over several clusters, and what --headroom and --families add to one.
#include "tools/report/sweep.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/read/json_message.h"
#include "tools/commands/sweep.h"
#include "tools/options/plan_words.h"
#include "tools/report/csv.h"
#include "tools/report/json.h"
#include "tools/report/lines.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

std::string number_cell(double value, int decimals) {
  return value > 0 ? fixed(value, decimals) : "";
}

std::string whole_cell(double value) {
  return value > 0 ? whole(value) : "";
}

std::string range_text(double low, double high) {
  return whole(low) + " to " + whole(high);
}

std::string plan_words(const Plan& plan) {
  std::string text;
  for (const PlanSize& size : kPlanSizes) {
    const bool is_always = size.name == "tp" || size.name == "pp" || size.name == "zero";
    if (size.name != "dp" && (is_always || plan.*size.field != Plan{}.*size.field)) {
      text.append(text.empty() ? "" : " ").append(size.name).append(" ");
      text.append(std::to_string(plan.*size.field));
    }
  }
  return text.append(" ").append(recompute_text(plan.recompute));
}

// In what the cluster is outside all runs that the interval rests on.
std::string beyond_runs(const StepTimeSpread& spread, const ClusterSpec& cluster) {
  std::vector<std::string> beyond;
  const std::int64_t size = cluster.world_size();
  if (spread.num_runs > 0 && (size < spread.least_gpus || size > spread.most_gpus)) {
    beyond.push_back(grouped(size) + " GPUs");
  }
  if (spread.num_runs > 0 && std::ranges::find(spread.gpus, cluster.gpu.id) == spread.gpus.end()) {
    beyond.push_back("GPU " + cluster.gpu.id);
  }
  return joined(beyond);
}

std::string spread_text(const StepTimeSpread& spread) {
  return spread.num_runs == 0
             ? "no measured run: the interval is the prediction itself"
             : "interval: measured over predicted step time of " + grouped(spread.num_runs) + " " +
                   spread.of + ", " + fixed(spread.low, 2) + " (10th percentile) to " +
                   fixed(spread.high, 2) + " (90th)";
}

// What the mark of an interval means; nothing where none has one.
std::string beyond_text(const SweepReport& report) {
  const StepTimeSpread& spread = report.spread;
  const bool is_any = std::ranges::any_of(report.points, [&](const SweepPoint& point) {
    return point.best && !beyond_runs(spread, point.job.cluster).empty();
  });
  return is_any ? "* beyond all these runs, of " + grouped(spread.least_gpus) + " to " +
                      grouped(spread.most_gpus) + " GPUs: " + joined(spread.gpus)
                : "";
}

std::string mark_of(const StepTimeSpread& spread, const ClusterSpec& cluster) {
  return beyond_runs(spread, cluster).empty() ? "" : "*";
}

std::string with_newline(std::string text) {
  return text.empty() ? text : text.append("\n");
}

// What the chosen cluster is, in words; empty: nothing that can be said.
std::string choice_words(const SweepTarget& target, const SweepPoint& chosen) {
  if (target.cost_usd > 0) {
    return "fastest within the cost: ";
  }
  if (chosen.usd_per_hour == 0) {
    return target.is_given() ? "fewest GPUs that reach the target, no price is known: " : "";
  }
  return target.is_given() ? "cheapest that reaches the target: "
                           : "cheapest on which a plan fits: ";
}

// Rows of one kind of GPU that stand for different machines.
bool names_clusters(const std::vector<SweepPoint>& points) {
  return std::ranges::any_of(points, [&](const SweepPoint& a) {
    return std::ranges::any_of(points, [&](const SweepPoint& b) {
      return a.job.cluster.gpu.id == b.job.cluster.gpu.id &&
             a.job.cluster.world_size() == b.job.cluster.world_size() &&
             a.job.cluster.name != b.job.cluster.name;
    });
  });
}

bool has_fp8_plans(const std::vector<SweepPoint>& points) {
  return std::ranges::any_of(points, [](const SweepPoint& point) {
    return point.best && point.best->plan.precision == Precision::kFp8;
  });
}

// Of the cluster that is chosen.
std::string command_line(const SweepReport& report) {
  const auto chosen = choose_cluster(report.points, report.target);
  return chosen ? "In full: " + report.commands[*chosen] + "\n" : "";
}

// Others that fit might be cheaper.
bool has_unpriced_beside(const SweepReport& report, const SweepPoint& chosen) {
  return chosen.usd_per_hour > 0 && std::ranges::any_of(report.points, [](const SweepPoint& point) {
           return point.best && point.usd_per_hour == 0;
         });
}

std::string choice_line(const SweepReport& report) {
  const auto chosen = choose_cluster(report.points, report.target);
  if (!chosen) {
    return report.target.is_given() ? "No cluster of these reaches the target.\n"
                                    : "No plan fits any of these clusters.\n";
  }
  const SweepPoint& point = report.points[*chosen];
  std::string text = choice_words(report.target, point);
  if (text.empty()) {
    return text;
  }
  text.append(grouped(point.job.cluster.world_size())).append(" x ");
  text.append(point.job.cluster.gpu.id);
  if (names_clusters(report.points)) {
    text.append(" (").append(point.job.cluster.name).append(")");
  }
  text.append(has_unpriced_beside(report, point) ? ", of those whose price is known" : "");
  return text.append(point.reached == Reached::kYes ? "\n"
                                                    : ", if the prediction is not too fast\n");
}

std::string family_reason(const PlanFamily& family) {
  std::string text = family.reason;
  if (family.least_bytes > 0) {
    text.append(": at least ").append(gib(family.least_bytes)).append(" GiB allocated");
  }
  return text.append(family.nearest.empty()
                         ? "; no value passes"
                         : "; " + family.axis + " " + family.nearest + " passes");
}

}  // namespace

std::string sweep_text(const SweepReport& report) {
  Table table = {.columns = {"GPU", "GPUs", "tokens/s/GPU", "tokens/s", "interval", "MFU",
                             "allocated GiB", "days", "USD/hour", "USD", "reaches", "plan"}};
  const bool has_names = names_clusters(report.points);
  if (has_names) {
    table.columns.insert(table.columns.begin(), "cluster");
  }
  for (const SweepPoint& point : report.points) {
    std::vector<Cell> row = {point.job.cluster.gpu.id, point.job.cluster.world_size()};
    if (has_names) {
      row.insert(row.begin(), point.job.cluster.name);
    }
    if (!point.best) {
      row.resize(table.columns.size() - 1);
      row.emplace_back("nothing fits; the least is " + gib(point.smallest_bytes) +
                       " GiB allocated");
    } else {
      const StepTime& time = point.best->time;
      row.emplace_back(whole(time.tokens_per_s_per_gpu));
      row.emplace_back(whole(point.tokens_per_s));
      row.emplace_back(range_text(point.low_tokens_per_s, point.high_tokens_per_s) +
                       mark_of(report.spread, point.job.cluster));
      row.emplace_back(percent(time.mfu));
      row.emplace_back(gib(basis_bytes(point.best->memory, MemoryBasis::kAllocated)));
      row.emplace_back(number_cell(point.days, 1));
      row.emplace_back(number_cell(point.usd_per_hour, 2));
      row.emplace_back(whole_cell(point.cost_usd));
      row.emplace_back(
          std::string(report.target.is_given() ? name_of(point.reached) : std::string_view()));
      row.emplace_back(plan_words(point.best->plan));
    }
    table.rows.push_back(std::move(row));
  }
  return table_text(table) + spread_text(report.spread) + "\n" + with_newline(beyond_text(report)) +
         mfu_note(has_fp8_plans(report.points)) + choice_line(report) + command_line(report);
}

Table sweep_table(const SweepReport& report) {
  Table table = {.columns = {"cluster",
                             "gpu",
                             "num_gpus",
                             "plans_in_space",
                             "tokens_per_s_per_gpu",
                             "tokens_per_s",
                             "low_tokens_per_s",
                             "high_tokens_per_s",
                             "step_time_s",
                             "mfu",
                             "mfu_peak",
                             "peak_allocated",
                             "device_used",
                             "days",
                             "usd_per_hour",
                             "cost_usd",
                             "reaches",
                             "chosen",
                             "command",
                             "beyond_measured"}};
  const auto chosen = choose_cluster(report.points, report.target);
  for (std::size_t i = 0; i < report.points.size(); ++i) {
    const SweepPoint& point = report.points[i];
    std::vector<Cell> row = {point.job.cluster.name, point.job.cluster.gpu.id,
                             point.job.cluster.world_size(), point.plans_in_space};
    if (point.best) {
      const StepTime& time = point.best->time;
      for (const double value :
           {time.tokens_per_s_per_gpu, point.tokens_per_s, point.low_tokens_per_s,
            point.high_tokens_per_s, time.total_s, time.mfu}) {
        row.emplace_back(value);
      }
      row.emplace_back(std::string(name_of(point.best->plan.precision)));
      row.emplace_back(basis_bytes(point.best->memory, MemoryBasis::kAllocated));
      row.emplace_back(basis_bytes(point.best->memory, MemoryBasis::kDeviceUsed));
      for (const double value : {point.days, point.usd_per_hour, point.cost_usd}) {
        row.push_back(value > 0 ? Cell(value) : Cell());
      }
      row.emplace_back(std::string(name_of(point.reached)));
      row.emplace_back(std::string(chosen == i ? "yes" : "no"));
      row.emplace_back(report.commands[i]);
      row.emplace_back(beyond_runs(report.spread, point.job.cluster));
    }
    row.resize(table.columns.size());
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string sweep_json(const SweepReport& report) {
  Json root = {{"schema", 1},
               {"clusters", rows_of(sweep_table(report))},
               {"step_time_spread",
                {{"low", report.spread.low},
                 {"high", report.spread.high},
                 {"runs", report.spread.num_runs},
                 {"of", report.spread.of}}}};
  return one_line_of(root);
}

std::string cost_lines(const SweepReport& report) {
  const SweepPoint& point = report.points.front();
  std::vector<std::string> words;
  if (point.days > 0) {
    words.push_back(whole(report.target.tokens) + " tokens in " + fixed(point.days, 1) + " days (" +
                    fixed(point.days * report.spread.low, 1) + " to " +
                    fixed(point.days * report.spread.high, 1) +
                    mark_of(report.spread, point.job.cluster) + ")");
  }
  if (point.usd_per_hour > 0) {
    words.push_back(fixed(point.usd_per_hour, 2) + " USD/hour");
  }
  if (point.cost_usd > 0) {
    words.push_back(whole(point.cost_usd) + " USD");
  }
  std::string text = label_line("training", joined(words));
  if (point.days == 0) {
    return text;
  }
  const std::string beyond = beyond_text(report);
  text += label_line("", spread_text(report.spread));
  return text + (beyond.empty() ? "" : label_line("", beyond));
}

Table cost_table(const SweepReport& report) {
  const SweepPoint& point = report.points.front();
  const auto if_known = [](double value) { return value > 0 ? Cell(value) : Cell(); };
  return {.columns = {"tokens", "tokens_per_s", "low_tokens_per_s", "high_tokens_per_s", "days",
                      "usd_per_hour", "cost_usd", "beyond_measured"},
          .rows = {{if_known(report.target.tokens), point.tokens_per_s, point.low_tokens_per_s,
                    point.high_tokens_per_s, if_known(point.days), if_known(point.usd_per_hour),
                    if_known(point.cost_usd), beyond_runs(report.spread, point.job.cluster)}}};
}

std::string extras_text(const SearchExtras& extras) {
  std::string text;
  if (!extras.headroom.empty()) {
    Table table = {.columns = {"rank", "left GiB", "largest micro_batch", "largest sequence"}};
    std::int64_t rank = 0;
    for (const Headroom& headroom : extras.headroom) {
      table.rows.push_back({++rank, gib(headroom.left_bytes), headroom.largest_micro_batch,
                            grouped(headroom.largest_sequence_length)});
    }
    text.append("\nHeadroom under the limit, and what would use it, each alone\n");
    text.append(table_text(table));
  }
  if (!extras.families.empty()) {
    Table table = {.columns = {"axis", "value", "plans", "fit", "tokens/s/GPU", "why not"}};
    for (const PlanFamily& family : extras.families) {
      table.rows.push_back({family.axis, family.value, family.plans, family.fitting,
                            whole_cell(family.best_tokens_per_s_per_gpu),
                            family.fitting > 0 ? std::string() : family_reason(family)});
    }
    text.append("\nFamilies: one value of an axis, all others free\n").append(table_text(table));
  }
  return text;
}

void name_ranked_rows(Table& search_table) {
  if (search_table.columns.front() == "list") {
    return;
  }
  search_table.columns.insert(search_table.columns.begin(), "list");
  for (std::vector<Cell>& row : search_table.rows) {
    row.insert(row.begin(), std::string("ranked"));
  }
}

namespace {

void add_headroom(const std::vector<Headroom>& headroom, Table& search_table) {
  for (const char* name : {"headroom_bytes", "largest_micro_batch", "largest_sequence_length"}) {
    search_table.columns.emplace_back(name);
  }
  for (std::size_t i = 0; i < headroom.size(); ++i) {
    search_table.rows[i].emplace_back(headroom[i].left_bytes);
    search_table.rows[i].emplace_back(headroom[i].largest_micro_batch);
    search_table.rows[i].emplace_back(headroom[i].largest_sequence_length);
  }
}

void add_families(const std::vector<PlanFamily>& families, Table& search_table) {
  name_ranked_rows(search_table);
  const std::size_t first = search_table.columns.size();
  for (const char* name :
       {"axis", "value", "plans", "fitting", "reason", "least_allocated", "nearest"}) {
    search_table.columns.emplace_back(name);
  }
  const auto speed = std::ranges::find(search_table.columns, "tokens_per_s_per_gpu");
  const std::size_t speed_column = static_cast<std::size_t>(speed - search_table.columns.begin());
  for (const PlanFamily& family : families) {
    std::vector<Cell> row(first);
    row.front() = std::string("family");
    if (family.fitting > 0) {
      row[speed_column] = family.best_tokens_per_s_per_gpu;
    }
    for (const Cell& cell : std::vector<Cell>{
             family.axis, family.value, family.plans, family.fitting, family.reason,
             family.least_bytes > 0 ? Cell(family.least_bytes) : Cell(), family.nearest}) {
      row.push_back(cell);
    }
    search_table.rows.push_back(std::move(row));
  }
}

}  // namespace

void add_extras(const SearchExtras& extras, Table& search_table) {
  if (!extras.headroom.empty()) {
    add_headroom(extras.headroom, search_table);
  }
  if (!extras.families.empty()) {
    add_families(extras.families, search_table);
  }
  for (std::vector<Cell>& row : search_table.rows) { row.resize(search_table.columns.size()); }
}

std::string with_extras(const SearchExtras& extras, const std::string& search_json) {
  if (extras.headroom.empty() && extras.families.empty()) {
    return search_json;
  }
  Json root = Json::parse(search_json);
  Json headroom = Json::array();
  for (const Headroom& of_plan : extras.headroom) {
    headroom.push_back({{"left_bytes", of_plan.left_bytes},
                        {"largest_micro_batch", of_plan.largest_micro_batch},
                        {"largest_sequence_length", of_plan.largest_sequence_length}});
  }
  Json families = Json::array();
  for (const PlanFamily& family : extras.families) {
    families.push_back({{"axis", family.axis},
                        {"value", family.value},
                        {"plans", family.plans},
                        {"fitting", family.fitting},
                        {"best_tokens_per_s_per_gpu", family.best_tokens_per_s_per_gpu},
                        {"reason", family.reason},
                        {"least_bytes", family.least_bytes},
                        {"nearest", family.nearest}});
  }
  root["headroom"] = std::move(headroom);
  root["families"] = std::move(families);
  return one_line_of(root);
}

}  // namespace shardplan
