#include "search/questions/scaling.h"

#include <algorithm>
#include <optional>

#include "search/questions/edits.h"
#include "search/space/resize.h"
#include "search/walk/parallel.h"

namespace shardplan {
namespace {

constexpr std::int64_t kLongest = std::int64_t{1} << 20;  // tokens
constexpr std::int64_t kDoublings = 4;                    // of a degree, beyond the plan's own

struct ScaledPlan {
  Job job;
  Plan plan;
};

// Degrees from 1 to 16 times the plan's own.
std::vector<std::int64_t> degrees(std::int64_t own) {
  std::vector<std::int64_t> values = {own};
  while (values.front() % 2 == 0) { values.insert(values.begin(), values.front() / 2); }
  for (std::int64_t i = 0; i < kDoublings; ++i) { values.push_back(2 * values.back()); }
  return values;
}

std::vector<std::int64_t> values_of(const Job& job, const Plan& plan, ScalingAxis axis) {
  switch (axis) {
    case ScalingAxis::kTp: return degrees(plan.tp);
    case ScalingAxis::kCp: return degrees(plan.cp);
    case ScalingAxis::kPp: return degrees(plan.pp);
    case ScalingAxis::kEp: return degrees(plan.ep);
    case ScalingAxis::kDp: return degrees(data_parallel_size(job, plan));
    case ScalingAxis::kZero: return {0, 1, 2, 3};
    case ScalingAxis::kMicroBatch: return degrees(plan.micro_batch);
    case ScalingAxis::kSequenceLength: {
      std::vector<std::int64_t> values = {job.sequence_length};
      while (2 * values.back() <= kLongest) { values.push_back(2 * values.back()); }
      return values;
    }
  }
  return {};
}

// Nothing where the GPUs would not fill whole nodes.
std::optional<ScaledPlan> scaled(const Job& job, const Plan& plan, ScalingAxis axis,
                                 std::int64_t value) {
  ScaledPlan at = {.job = job, .plan = plan};
  std::int64_t dp = data_parallel_size(job, plan);
  switch (axis) {
    case ScalingAxis::kTp:
      at.plan.tp = value;
      at.plan.sequence_parallel =
          value > 1 &&
          (plan.tp > 1 ? plan.sequence_parallel : job.profile.default_sequence_parallel);
      break;
    case ScalingAxis::kCp: at.plan.cp = value; break;
    case ScalingAxis::kPp:
      at.plan.pp = value;
      at.plan.layers_per_chunk.clear();
      at.plan.vpp = value > 1 ? plan.vpp : 1;
      if (value == 1) {
        at.plan.schedule = Schedule::kNone;
      } else if (plan.schedule == Schedule::kNone) {
        at.plan.schedule = job.profile.default_pipeline_schedule;
      }
      break;
    case ScalingAxis::kEp: at.plan.ep = value; break;
    case ScalingAxis::kDp: dp = value; break;
    case ScalingAxis::kZero: at.plan.zero = value; break;
    case ScalingAxis::kMicroBatch: at.plan.micro_batch = value; break;
    case ScalingAxis::kSequenceLength: at.job.sequence_length = value; break;
  }
  at.plan.dp = 0;
  const auto cluster = resized(job.cluster, dp * at.plan.tp * at.plan.cp * at.plan.pp);
  if (!cluster) {
    return std::nullopt;
  }
  at.job.cluster = *cluster;
  if (axis == ScalingAxis::kTp || axis == ScalingAxis::kEp) {
    suit_experts(at.job, plan, at.plan);
  }
  return at;
}

void name_largest_row(ScalingPoint& point) {
  for (const Row& row : point.stage.rows) {
    if (row.in_allocator && row.total_bytes() > point.largest_row_bytes) {
      point.largest_row_bytes = row.total_bytes();
      point.largest_row = row.name;
    }
  }
}

ScalingPoint point_at(const ScaledPlan& at, std::int64_t value) {
  ScalingPoint point;
  point.value = value;
  point.num_gpus = at.job.cluster.world_size();
  if (const std::optional<InvalidReason> reason = why_invalid(at.job, at.plan)) {
    point.invalid = reason->message;
    return point;
  }
  const MemoryEstimate memory = estimate_memory(at.job, at.plan);
  point.stage = memory.stages[static_cast<std::size_t>(memory.worst_stage)];
  point.fit = memory.fit;
  point.time = estimate_step_time(at.job, at.plan);
  name_largest_row(point);
  return point;
}

std::int64_t own_value(const Job& job, const Plan& plan, ScalingAxis axis) {
  switch (axis) {
    case ScalingAxis::kTp: return plan.tp;
    case ScalingAxis::kCp: return plan.cp;
    case ScalingAxis::kPp: return plan.pp;
    case ScalingAxis::kEp: return plan.ep;
    case ScalingAxis::kDp: return data_parallel_size(job, plan);
    case ScalingAxis::kZero: return plan.zero;
    case ScalingAxis::kMicroBatch: return plan.micro_batch;
    case ScalingAxis::kSequenceLength: return job.sequence_length;
  }
  return 0;
}

}  // namespace

std::vector<ScalingTable> scaling_tables(const Job& job, const Plan& plan) {
  std::vector<ScalingTable> tables;
  for (const NamedValue<ScalingAxis>& row : kScalingAxes) {
    ScalingTable table = {.axis = row.value, .points = {}};
    const std::vector<std::int64_t> values = values_of(job, plan, row.value);
    table.points.resize(values.size());
    in_parallel(std::ssize(values), 0, [&](std::int64_t i, std::size_t) {
      const std::size_t at = static_cast<std::size_t>(i);
      if (const auto changed = scaled(job, plan, row.value, values[at])) {
        table.points[at] = point_at(*changed, values[at]);
        table.points[at].is_own = values[at] == own_value(job, plan, row.value);
      }
    });
    std::erase_if(table.points, [](const ScalingPoint& point) { return point.num_gpus == 0; });
    const auto valid = std::ranges::count_if(
        table.points, [](const ScalingPoint& point) { return point.invalid.empty(); });
    if (valid > 1) {
      tables.push_back(std::move(table));
    }
  }
  return tables;
}

}  // namespace shardplan
