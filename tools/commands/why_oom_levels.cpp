#include "tools/commands/why_oom_levels.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "estimator/frameworks/pieces/memory_model.h"

namespace shardplan {
namespace {

// Moments of a step in the order in which they come.
constexpr auto kOrder = std::to_array<std::string_view>(
    {"start-up", "last warm-up forward", "loss forward", "loss backward", "first backward",
     "weight gradient", "recompute replay", "gradient reduction", "optimizer step",
     "parameter gather"});
constexpr std::string_view kStartUp = kOrder.front();
constexpr std::string_view kOptimizerStep = "optimizer step";

std::size_t place_of(std::string_view moment) {
  return static_cast<std::size_t>(std::ranges::find(kOrder, moment) - kOrder.begin());
}

// Names of moments by what is being done when a row is made; a row of the head belongs to the loss.
std::vector<std::string_view> moments_of(const Row& row) {
  const std::string_view born = row.born.name;
  const bool is_head = row.name.starts_with("head.");
  if (born.starts_with("forward")) {
    return is_head ? std::vector<std::string_view>{"loss forward"}
                   : std::vector<std::string_view>{"last warm-up forward", "recompute replay"};
  }
  if (born.starts_with("backward")) {
    return is_head ? std::vector<std::string_view>{"loss backward"}
                   : std::vector<std::string_view>{"first backward", "weight gradient"};
  }
  if (born.ends_with("optimizer_step")) {
    return {kOptimizerStep};
  }
  if (born == "gradient_reduction") {
    return {"gradient reduction"};
  }
  if (born == "parameter_gather") {
    return {"parameter gather"};
  }
  return {kStartUp};
}

const Moment& fullest_moment(const StageMemory& stage, const Row& row) {
  const std::vector<std::string_view> names = moments_of(row);
  const Moment* fullest = nullptr;
  for (const Moment& moment : stage.moments) {
    const bool is_one_of = std::ranges::find(names, moment.name) != names.end();
    if (is_one_of && (fullest == nullptr || moment.allocated_bytes > fullest->allocated_bytes)) {
      fullest = &moment;
    }
  }
  return fullest == nullptr ? stage.moments.front() : *fullest;
}

std::int64_t all_bytes(const Row& row) {
  return std::max(row.copies, std::int64_t{1}) * row.bytes;
}

template <class Condition>
std::int64_t bytes_where(const StageMemory& stage, Condition is_counted) {
  std::int64_t bytes = 0;
  for (const Row& row : stage.rows) {
    bytes += row.in_allocator && is_counted(row) ? all_bytes(row) : 0;
  }
  return bytes;
}

// State that step 1 makes at its end: moments of the optimizer.
bool is_made_by_first_step(const Row& row) {
  return row.born.name.starts_with("first ");
}

// Gradients that the first backward pass makes and that later microbatches are added to: they
// outlive the backward pass.
bool is_made_by_first_microbatch(const Row& row) {
  return row.component == Component::kGradients && row.born.name != "start" &&
         !row.dies.name.starts_with("backward") && row.dies.name != "gradient_reduction";
}

// Rows of one event stand in the order in which they are made.
std::int64_t bytes_born_behind(const StageMemory& stage, const Row& row) {
  std::int64_t bytes = 0;
  bool is_behind = false;
  for (const Row& other : stage.rows) {
    bytes += is_behind && other.in_allocator && other.born.name == row.born.name ? other.bytes : 0;
    is_behind = is_behind || &other == &row;
  }
  return bytes;
}

// Parameters, gradients, then what the optimizer makes of them; DeepSpeed's rows stand in the order
// in which its engine makes them.
bool is_made_before(const Row& one, const Row& other, MemoryModel model) {
  return model == MemoryModel::kDeepspeed ? &one < &other : one.component < other.component;
}

RowLevels at_start(const StageMemory& stage, const Row& row, MemoryModel model) {
  const auto is_state = [](const Row& other) { return other.born.name == "start"; };
  RowLevels levels = {.moment = std::string(kStartUp), .is_first = true};
  if (!is_state(row)) {  // what start-up needs for itself
    levels.highest = fullest_moment(stage, row).allocated_bytes;
    return levels;
  }
  levels.lowest = bytes_where(stage, [&](const Row& other) {
    return is_state(other) && is_made_before(other, row, model);
  });
  levels.highest = bytes_where(stage, [&](const Row& other) {
    return is_state(other) && !is_made_before(row, other, model);
  });
  return levels;
}

// The optimizer's state is made before what a step needs for itself, weight by weight; by
// DeepSpeed, which has its gradients ready before the step, behind it, one whole tensor after the
// other.
RowLevels at_optimizer_step(const StageMemory& stage, const Row& row, const Moment& moment,
                            MemoryModel model, bool is_first) {
  const std::int64_t made_late = bytes_where(stage, is_made_by_first_step);
  const std::int64_t temporaries =
      bytes_where(stage, [](const Row& other) { return other.born.name == "optimizer_step"; });
  const bool has_temporaries_first = model == MemoryModel::kDeepspeed;
  RowLevels levels = {.moment = moment.name, .is_first = is_first};
  levels.highest = moment.allocated_bytes;
  levels.lowest = levels.highest - temporaries;
  if (is_made_by_first_step(row) && has_temporaries_first) {
    levels.highest -= bytes_where(
        stage, [&](const Row& other) { return is_made_by_first_step(other) && &other > &row; });
    levels.lowest = levels.highest - (all_bytes(row) - row.bytes) - temporaries;
  } else if (is_made_by_first_step(row)) {
    levels.highest -= temporaries;
    levels.lowest = levels.highest - made_late;
  } else if (is_first && has_temporaries_first) {
    levels.highest -= made_late;
    levels.lowest -= made_late;
  }
  return levels;
}

// `missing`: bytes that come later in the step, or by its end.
RowLevels in_step(const StageMemory& stage, const Row& row, const Moment& moment, bool is_first,
                  std::int64_t missing) {
  RowLevels levels = {.moment = moment.name, .is_first = is_first};
  levels.highest = moment.allocated_bytes - missing;
  levels.lowest = levels.highest;
  levels.behind = bytes_born_behind(stage, row);
  if (moment.name == "last warm-up forward") {
    levels.lowest = stage.state_bytes - missing;
    return levels;
  }
  levels.highest -= moment.event == row.born.name ? levels.behind : 0;
  const bool is_of_head = row.name.starts_with("head.");
  levels.lowest = levels.highest - (is_of_head ? all_bytes(row) - row.bytes : 0);
  return levels;
}

std::int64_t most_before(const StageMemory& stage, const RowLevels& levels,
                         std::int64_t made_late) {
  const std::size_t optimizer = place_of(kOptimizerStep);
  const std::size_t here = place_of(levels.moment);
  std::int64_t most = 0;
  for (const Moment& moment : stage.moments) {
    const std::size_t place = place_of(moment.name);
    const bool is_earlier = place < here;
    if (levels.is_first ? is_earlier : place < optimizer) {
      most = std::max(most, moment.allocated_bytes - (place < optimizer ? made_late : 0));
    }
    if (!levels.is_first && is_earlier) {
      most = std::max(most, moment.allocated_bytes);
    }
  }
  return most;
}

}  // namespace

std::vector<RowLevels> levels_of(const StageMemory& stage, const Row& row, const Job& job,
                                 const Plan& plan) {
  const MemoryModel model = job.profile.memory_model;
  const Moment& moment = fullest_moment(stage, row);
  if (moment.name == kStartUp) {
    return {at_start(stage, row, model)};
  }
  const std::int64_t made_late = bytes_where(stage, is_made_by_first_step);
  std::vector<RowLevels> levels;
  if (moment.name == kOptimizerStep) {
    levels.push_back(at_optimizer_step(stage, row, moment, model, true));
    if (!is_made_by_first_step(row)) {
      levels.push_back(at_optimizer_step(stage, row, moment, model, false));
    }
  } else {
    levels.push_back(in_step(stage, row, moment, true, made_late));
    levels.push_back(in_step(stage, row, moment, false, 0));
  }
  for (RowLevels& each : levels) { each.before = most_before(stage, each, made_late); }
  if (moment.name != kOptimizerStep && num_microbatches(job, plan) > 1) {
    const std::int64_t missing = made_late + bytes_where(stage, is_made_by_first_microbatch);
    levels.push_back(in_step(stage, row, moment, true, missing));
    levels.back().before = most_before(stage, levels.back(), missing);
  }
  return levels;
}

}  // namespace shardplan
