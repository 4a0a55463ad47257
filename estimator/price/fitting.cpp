// The floor of branches that leave open only how the state is kept: memory and time of one plan.
#include <algorithm>

#include "estimator/answer/blocks.h"
#include "estimator/price/branch.h"
#include "estimator/price/floor.h"

namespace shardplan {

bool opens_only_state(PriceTable& table, std::size_t freedom) {
  const PricePieces& pieces = table.pieces();
  const PriceFreedom& open = pieces.freedoms[freedom];
  return !pieces.is_wide && open.micro_batch.empty() && open.sequence_parallel.empty() &&
         open.cp_method.empty() && open.precision.empty() && open.recompute.empty() &&
         open.schedule.empty() && open.rank_order.empty();
}

namespace {

// Of a plan, before a static arena rounds every dtype's buffer up: it never rounds down.
std::int64_t fullest_rank_bytes(const PriceFreedom& open, const StatePiece& states,
                                const ActivationPiece& activations) {
  std::int64_t peak = 0;
  for (const RankActivations& rank : activations.ranks) {
    const StateBytes least = least_state(open, states.classes[rank.stage_class]);
    const StateSum state = {.one = least, .other = *rank.buffers};
    peak = std::max(peak, alive_peak_bytes(state, rank.actions));
  }
  return peak;
}

}  // namespace

// Of the plans that differ in the optimizer's dtypes the one with the smallest has the least
// memory, less what its step copies, and the least time: it stands for all. Buffers of
// Megatron-FSDP come on top of what every plan holds in a microbatch.
FittingFloor fitting_floor(PriceTable& table, const Plan& plan, std::size_t freedom,
                           std::int64_t limit_bytes, FittingQuestion question) {
  PricePieces& pieces = table.pieces();
  const PriceFreedom& open = pieces.freedoms[freedom];
  FittingFloor floor{.allocated_bytes = kNoBytes, .step_time_s = kNoTime};
  Plan at = plan;
  choose_smallest_optimizer(open, at);
  const auto visit_groups = [&] {
    if (!has_groups(pieces.job, at) || !can_run(pieces, at)) {
      return;
    }
    const Plan plain = without_buckets(pieces.job, at);
    pieces.begin(plain);
    const ScheduleShape shape = pieces.shape(plain);
    const ActivationPiece activations = pieces.activations(plain, shape);
    const auto visit = [&] {
      const StatePiece& states = pieces.state(at);
      std::int64_t bytes = fullest_rank_bytes(open, states, activations);
      if (bytes > limit_bytes) {
        return;
      }
      const double step_time_s = price_time(pieces, at, shape).total_s * kRounding;
      if (bytes >= floor.allocated_bytes && step_time_s >= floor.step_time_s) {
        return;
      }
      const bool is_late = step_time_s >= floor.step_time_s;
      const bool needs_buffers = question == FittingQuestion::kTimeAndMemory || !is_late;
      if (needs_buffers && gathers_by_unit(pieces.job, at)) {
        pieces.begin(at);
        bytes = fullest_rank_bytes(open, states, pieces.activations(at, shape));
      }
      if (bytes <= limit_bytes) {
        floor.allocated_bytes = std::min(floor.allocated_bytes, bytes);
        floor.step_time_s = std::min(floor.step_time_s, step_time_s);
      }
    };
    each(open.zero, at.zero, [&] {
      each(open.grad_dtype, at.grad_dtype, [&] { each(open.offload, at.offload, visit); });
    });
  };
  each(open.dp_replicate, at.dp_replicate, visit_groups);
  return floor;
}

}  // namespace shardplan
