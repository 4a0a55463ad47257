#include "tools/report/sweep.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/read/json_message.h"
#include "tools/commands/sweep.h"
#include "tools/options/plan_words.h"
#include "tools/report/lines.h"
#include "tools/report/search_extras.h"
#include "tools/report/text.h"
#include "tools/report/values.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

std::string number_cell(double value, int decimals) {
  return value > 0 ? fixed(value, decimals) : "";
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

// What the chosen cluster is, in words; empty: nothing that can be said.
std::string choice_opening(const SweepTarget& target, const SweepPoint& chosen) {
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
  return chosen ? "In full:\n" + report.commands[*chosen] + "\n" : "";
}

// Others that fit might be cheaper.
bool has_unpriced_beside(const SweepReport& report, const SweepPoint& chosen) {
  return chosen.usd_per_hour > 0 && std::ranges::any_of(report.points, [](const SweepPoint& point) {
           return point.best && point.usd_per_hour == 0;
         });
}

std::string choice_words(const SweepReport& report) {
  const auto chosen = choose_cluster(report.points, report.target);
  if (!chosen) {
    return report.target.is_given() ? "No cluster of these reaches the target."
                                    : "No plan fits any of these clusters.";
  }
  const SweepPoint& point = report.points[*chosen];
  std::string text = choice_opening(report.target, point);
  if (text.empty()) {
    return text;
  }
  text.append(grouped(point.job.cluster.world_size())).append(" x ");
  text.append(point.job.cluster.gpu.id);
  if (names_clusters(report.points)) {
    text.append(" (").append(point.job.cluster.name).append(")");
  }
  text.append(has_unpriced_beside(report, point) ? ", of those whose price is known" : "");
  return text.append(point.reached == Reached::kYes ? "" : ", if the prediction is not too fast");
}

// Prices of clusters' files, each with its day: "price of aws-p5: AWS list price, ...".
std::vector<std::string> price_sources(const SweepReport& report) {
  std::vector<std::string> sources;
  for (const SweepPoint& point : report.points) {
    const ClusterSpec& cluster = point.job.cluster;
    const std::size_t start = cluster.source.rfind(". ");
    if (report.has_given_prices || cluster.usd_per_gpu_hour == 0 || start == std::string::npos) {
      continue;
    }
    std::string text = "price of " + cluster.gpu.id + ": " + cluster.source.substr(start + 2);
    if (std::ranges::find(sources, text) == sources.end()) {
      sources.push_back(std::move(text));
    }
  }
  return sources;
}

}  // namespace

Table sweep_people_table(const SweepReport& report) {
  Table table = {.columns = {"GPU", "GPUs", "nodes", "tokens/s/GPU", "tokens/s", "interval", "MFU",
                             "allocated GiB", "days", "USD/hour", "USD", "reaches", "plan"}};
  const bool has_names = names_clusters(report.points);
  if (has_names) {
    table.columns.insert(table.columns.begin(), "cluster");
  }
  for (const SweepPoint& point : report.points) {
    std::vector<Cell> row = {point.job.cluster.gpu.id, point.job.cluster.world_size(),
                             point.job.cluster.nodes};
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
      row.emplace_back(fixed(100 * time.mfu, 1) + " %");
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
  // Columns that say nothing of any cluster are left out.
  for (std::size_t column = table.columns.size(); column-- > 0;) {
    const bool is_empty = std::ranges::all_of(table.rows, [&](const std::vector<Cell>& row) {
      const std::string* text = std::get_if<std::string>(&row[column]);
      return std::holds_alternative<std::monostate>(row[column]) ||
             (text != nullptr && text->empty());
    });
    if (is_empty) {
      const auto at = static_cast<std::ptrdiff_t>(column);
      table.columns.erase(table.columns.begin() + at);
      for (std::vector<Cell>& row : table.rows) { row.erase(row.begin() + at); }
    }
  }
  return table;
}

std::vector<std::string> sweep_notes(const SweepReport& report) {
  std::vector<std::string> notes = {spread_text(report.spread), beyond_text(report)};
  for (const std::string& price : price_sources(report)) { notes.push_back(price); }
  notes.push_back(choice_words(report));
  std::erase(notes, "");
  return notes;
}

std::string sweep_text(const SweepReport& report) {
  std::string text = table_text(sweep_people_table(report));
  for (const std::string& note : sweep_notes(report)) { text += note + "\n"; }
  return text + mfu_note(has_fp8_plans(report.points)) + command_line(report);
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
      row.emplace_back(std::string(time.mfu_peak));
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

}  // namespace shardplan
