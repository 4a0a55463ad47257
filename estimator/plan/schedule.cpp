#include "estimator/plan/schedule.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace shardplan {
namespace {

// Every looping schedule is one pattern with four numbers. A unit is one (chunk, microbatch); a
// rank runs its units in groups: `group` microbatches of chunk 0, the same of chunk 1, ...
struct Pattern {
  std::int64_t group = 1;         // microbatches of one chunk in a row
  std::int64_t warmup_units = 0;  // forwards before the first backward
  std::int64_t delay_units = 0;   // split backward: backwards before the first weight gradient
  bool splits_backward = false;
};

// torch.distributed.pipelining (schedules.py, microbatches_per_round): as many rounds as whole
// groups of pp fit into the microbatches.
std::int64_t microbatches_per_round(const ScheduleShape& shape) {
  return shape.num_microbatches / std::max<std::int64_t>(1, shape.num_microbatches / shape.pp);
}

Pattern pattern_of(const ScheduleShape& shape, std::int64_t pp_rank) {
  const ScheduleRow& row = row_of(shape.schedule);
  const std::int64_t units = shape.num_microbatches * shape.vpp;
  const std::int64_t group = microbatch_group(shape);
  const std::int64_t later_ranks = shape.pp - pp_rank - 1;
  const std::int64_t warmup = row.warmup_per_hop * later_ranks + (shape.vpp - 1) * group;
  return {.group = group,
          .warmup_units = row.group == MicrobatchGroup::kAll ? units : std::min(warmup, units),
          .delay_units = row.splits_backward ? pp_rank : 0,
          .splits_backward = row.splits_backward};
}

// The k-th unit that a rank runs forward; the last group may be smaller (Megatron-LM
// core/pipeline_parallel/schedules.py, get_schedule_table).
ScheduleAction forward_unit(const ScheduleShape& shape, std::int64_t group, std::int64_t k) {
  const std::int64_t first = k / (group * shape.vpp) * group;
  const std::int64_t size = std::min(group, shape.num_microbatches - first);
  const std::int64_t within = k % (group * shape.vpp);
  return {
      .kind = ActionKind::kForward, .chunk = within / size, .microbatch = first + within % size};
}

// The k-th unit that a rank runs backward: the same order with the chunks reversed.
ScheduleAction backward_unit(const ScheduleShape& shape, std::int64_t group, std::int64_t k,
                             ActionKind kind) {
  ScheduleAction action = forward_unit(shape, group, k);
  action.kind = kind;
  action.chunk = shape.vpp - 1 - action.chunk;
  return action;
}

// Calls visit(action) for the actions of a looping schedule in issue order, until `last_unit` units
// have run backward.
template <class Visit>
void visit_looping(const ScheduleShape& shape, const Pattern& pattern, std::int64_t last_unit,
                   const Visit& visit) {
  const std::int64_t units = shape.num_microbatches * shape.vpp;
  const ActionKind backward =
      pattern.splits_backward ? ActionKind::kBackwardInput : ActionKind::kBackward;
  for (std::int64_t k = 0; k < pattern.warmup_units; ++k) {
    visit(forward_unit(shape, pattern.group, k));
  }
  for (std::int64_t k = 0; k < last_unit; ++k) {
    if (k + pattern.warmup_units < units) {
      visit(forward_unit(shape, pattern.group, k + pattern.warmup_units));
    }
    visit(backward_unit(shape, pattern.group, k, backward));
    if (pattern.splits_backward && k >= pattern.delay_units) {
      visit(backward_unit(shape, pattern.group, k - pattern.delay_units,
                          ActionKind::kBackwardWeight));
    }
  }
  if (pattern.splits_backward && last_unit == units) {
    for (std::int64_t k = std::max<std::int64_t>(0, units - pattern.delay_units); k < units; ++k) {
      visit(backward_unit(shape, pattern.group, k, ActionKind::kBackwardWeight));
    }
  }
}

// Units that have run backward once nothing new can be in flight. From the first delayed weight
// gradient on the counts repeat with every round of `group` microbatches through all chunks, while
// forwards last; later actions hold no more than the same ones a round before. Where states tell
// gradients, all are made by the end of one round. Without a whole round: all units.
std::int64_t last_new_unit(const ScheduleShape& shape, const Pattern& pattern) {
  const std::int64_t units = shape.num_microbatches * shape.vpp;
  const std::int64_t round = pattern.group * shape.vpp;
  const std::int64_t last = pattern.delay_units + (shape.tells_gradients ? 2 : 1) * round;
  const bool repeats =
      shape.num_microbatches % pattern.group == 0 && last + pattern.warmup_units <= units;
  return repeats ? last : units;
}

// Counters of a rank of the V schedule: the next microbatch per kind and chunk. Microbatches beyond
// the real ones keep the pattern whole and are not visited.
template <class Visit>
class VCounters {
 public:
  VCounters(std::int64_t num_microbatches, const Visit& visit)
      : num_microbatches_(num_microbatches), visit_(visit) {}

  std::int64_t forwards(std::int64_t chunk) const { return next_[0][at(chunk)]; }
  std::int64_t inputs(std::int64_t chunk) const { return next_[1][at(chunk)]; }
  std::int64_t weights(std::int64_t chunk) const { return next_[2][at(chunk)]; }

  void forward(std::int64_t chunk) { issue(0, ActionKind::kForward, chunk); }
  void input(std::int64_t chunk) { issue(1, ActionKind::kBackwardInput, chunk); }
  void weight(std::int64_t chunk) { issue(2, ActionKind::kBackwardWeight, chunk); }
  void backward(std::int64_t chunk) {
    input(chunk);
    weight(chunk);
  }

 private:
  static std::size_t at(std::int64_t chunk) { return static_cast<std::size_t>(chunk); }
  void issue(std::size_t row, ActionKind kind, std::int64_t chunk) {
    const std::int64_t microbatch = next_[row][at(chunk)]++;
    if (microbatch < num_microbatches_) {
      visit_({.kind = kind, .chunk = chunk, .microbatch = microbatch});
    }
  }

  std::int64_t num_microbatches_;
  const Visit& visit_;
  std::array<std::array<std::int64_t, 2>, 3> next_{};
};

// Zero-bubble V (arXiv 2401.10241 section 6), in the order of torch.distributed.pipelining's
// ScheduleZBVZeroBubble: warm-up down and up the V, a steady state of F B W on either chunk, and a
// cool-down that runs input gradients first.
template <class Visit>
void visit_v(const ScheduleShape& shape, std::int64_t pp_rank, const Visit& visit) {
  const std::int64_t hops = shape.pp - pp_rank;
  const std::int64_t microbatches = std::max(2 * shape.pp - 1, shape.num_microbatches);
  VCounters<Visit> rank(shape.num_microbatches, visit);
  for (std::int64_t i = 0; i < 2 * hops - 1; ++i) { rank.forward(0); }
  for (std::int64_t i = 0; i < pp_rank; ++i) {
    rank.forward(1);
    rank.forward(0);
  }
  for (std::int64_t i = 0; i < hops; ++i) {
    rank.forward(1);
    rank.backward(1);
  }
  while (rank.forwards(1) < rank.forwards(0) || rank.forwards(0) < microbatches) {
    if (rank.forwards(0) < microbatches) {
      rank.forward(0);
    }
    rank.backward(0);
    rank.forward(1);
    rank.backward(1);
  }
  for (std::int64_t i = 0; i < pp_rank; ++i) {
    rank.input(0);
    rank.input(1);
  }
  for (std::int64_t i = 0; i < hops; ++i) { rank.backward(0); }
  while (rank.weights(1) < rank.inputs(1)) { rank.weight(1); }
  while (rank.weights(0) < rank.inputs(0)) { rank.weight(0); }
}

enum class Extent { kAll, kUntilNothingNew };

template <class Visit>
void visit_actions(const ScheduleShape& shape, std::int64_t pp_rank, Extent extent,
                   const Visit& visit) {
  if (row_of(shape.schedule).places_in_v) {
    visit_v(shape, pp_rank, visit);
    return;
  }
  const Pattern pattern = pattern_of(shape, pp_rank);
  const std::int64_t last_unit =
      extent == Extent::kAll ? shape.num_microbatches * shape.vpp : last_new_unit(shape, pattern);
  visit_looping(shape, pattern, last_unit, visit);
}

}  // namespace

bool shards_in_pipeline(const Job& job, const Plan& plan) {
  return job.profile.layout.gathers_for_pipeline && plan.zero == 3 && plan.pp > 1;
}

bool reshards_in_pipeline(const Job& job, const Plan& plan) {
  return shards_in_pipeline(job, plan) && job.profile.reshards_forward();
}

ScheduleShape schedule_shape(const Job& job, const Plan& plan) {
  return {.schedule = plan.schedule,
          .pp = plan.pp,
          .vpp = plan.vpp,
          .num_microbatches = num_microbatches(job, plan),
          .group = job.profile.microbatch_group(),
          .tells_gradients = job.profile.layout.blocks_make_gradients,
          .tells_parameters = shards_in_pipeline(job, plan),
          .reshards_forward = reshards_in_pipeline(job, plan)};
}

std::int64_t microbatch_group(const ScheduleShape& shape) {
  switch (row_of(shape.schedule).group) {
    case MicrobatchGroup::kOne: return 1;
    case MicrobatchGroup::kAll: return shape.num_microbatches;
    case MicrobatchGroup::kStages: return shape.group > 0 ? shape.group : shape.pp;
    case MicrobatchGroup::kRounds:
      return shape.group > 0 ? shape.group : microbatches_per_round(shape);
  }
  throw std::logic_error("microbatch_group: unknown group");
}

ScheduleShape shortest_equivalent(const ScheduleShape& shape) {
  ScheduleShape shorter = shape;
  shorter.group = microbatch_group(shape);
  const std::int64_t enough = 3 * shape.pp + 2 * shorter.group;
  if (shape.num_microbatches > enough) {
    shorter.num_microbatches -= (shape.num_microbatches - enough) / shorter.group * shorter.group;
  }
  return shorter;
}

std::int64_t rank_of_position(const ScheduleShape& shape, std::int64_t position) {
  const std::int64_t along = position % shape.pp;
  const bool goes_down = row_of(shape.schedule).places_in_v && position / shape.pp % 2 == 1;
  return goes_down ? shape.pp - 1 - along : along;
}

std::int64_t local_chunk_of_position(const ScheduleShape& shape, std::int64_t position) {
  return position / shape.pp;
}

std::int64_t position_of(const ScheduleShape& shape, std::int64_t pp_rank,
                         std::int64_t local_chunk) {
  const bool goes_down = row_of(shape.schedule).places_in_v && local_chunk % 2 == 1;
  return local_chunk * shape.pp + (goes_down ? shape.pp - 1 - pp_rank : pp_rank);
}

std::vector<ScheduleAction> schedule_actions(const ScheduleShape& shape, std::int64_t pp_rank) {
  std::vector<ScheduleAction> actions;
  actions.reserve(static_cast<std::size_t>(3 * shape.num_microbatches * shape.vpp));
  visit_actions(shape, pp_rank, Extent::kAll,
                [&](const ScheduleAction& action) { actions.push_back(action); });
  return actions;
}

std::vector<ScheduleAction> first_actions(const ScheduleShape& shape, std::int64_t pp_rank) {
  std::vector<ScheduleAction> actions;
  visit_actions(shortest_equivalent(shape), pp_rank, Extent::kUntilNothingNew,
                [&](const ScheduleAction& action) { actions.push_back(action); });
  return actions;
}

}  // namespace shardplan
