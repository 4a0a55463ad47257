#include "tools/bench/training_table.h"

#include <algorithm>
#include <cmath>

#include "tools/report/text.h"

namespace shardplan {
namespace {

constexpr double kMsPerS = 1e3;
constexpr double kLeastShare = 0.001;  // of a step: smaller losses are not shown

Cell percent_cell(double share) {
  return share > 0 ? Cell{fixed(100 * share, 1)} : Cell{};
}

Cell rounded(double value) {
  return value > 0 ? Cell{std::llround(value)} : Cell{};
}

std::string reached(const SpeedGoal& goal, double speed) {
  if (goal.must == 0) {
    return "";
  }
  if (speed < goal.must) {
    return "no";
  }
  return speed < goal.aim ? "must" : "aim";
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  return values.at(static_cast<std::size_t>(std::llround(place)));
}

double TrainingResult::tokens_per_s_per_gpu(double step_s) const {
  const Job& job = question.job;
  return static_cast<double>(job.global_batch) * static_cast<double>(job.sequence_length) / step_s /
         static_cast<double>(job.cluster.world_size());
}

Table training_table(const std::vector<TrainingResult>& results) {
  Table table = {.columns = {"id", "GPUs", "tokens/s/GPU", "p10", "p90", "s/step", "steps",
                             "SM MHz", "W", "roofline %", "limit %", "limit", "baseline", "must",
                             "aim", "reached"}};
  for (const TrainingResult& result : results) {
    std::vector<Cell> row = {result.question.id, result.question.job.cluster.world_size()};
    if (result.steps_s.empty()) {
      row.emplace_back(result.failure);
      row.resize(table.columns.size());
      table.rows.push_back(std::move(row));
      continue;
    }
    const double median_s = percentile(result.steps_s, 0.5);
    const double speed = result.tokens_per_s_per_gpu(median_s);
    const auto speed_at = [&](double share) {
      return rounded(result.tokens_per_s_per_gpu(percentile(result.steps_s, share)));
    };
    const auto share_of = [&](const std::optional<double>& least_s) {
      return percent_cell(least_s.value_or(0) / median_s);
    };
    row.insert(
        row.end(),
        {rounded(speed), speed_at(0.9), speed_at(0.1), fixed(median_s, 4),
         static_cast<std::int64_t>(result.steps_s.size()), rounded(result.sensors.sm_clock_mhz),
         rounded(result.sensors.power_w), share_of(result.roofline_s), share_of(result.limit_s),
         result.limit_s ? rounded(result.tokens_per_s_per_gpu(*result.limit_s)) : Cell{},
         rounded(result.goal.baseline), rounded(result.goal.must), rounded(result.goal.aim),
         reached(result.goal, speed)});
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::string losses_text(const TrainingResult& result) {
  Table table = {.columns = {"lost to", "ms", "at the limit", "lost ms", "lost %"}};
  double measured_s = 0;
  double limit_s = 0;
  for (const StepLoss& loss : result.losses) {
    measured_s += loss.measured_s;
    limit_s += loss.limit_s;
  }
  const auto add = [&](const std::string& kind, double seconds, double least_s) {
    table.rows.push_back({kind, fixed(seconds * kMsPerS, 2), fixed(least_s * kMsPerS, 2),
                          fixed((seconds - least_s) * kMsPerS, 2),
                          fixed(100 * (seconds - least_s) / measured_s, 2)});
  };
  for (const StepLoss& loss : result.losses) {
    if (std::fabs(loss.lost_s()) >= kLeastShare * measured_s) {
      add(loss.kind, loss.measured_s, loss.limit_s);
    }
  }
  add("step", measured_s, limit_s);
  return table_text(table);
}

}  // namespace shardplan
