#include "estimator/peak_actions.h"

#include <algorithm>

namespace shardplan {
namespace {

// Position in the actions after which every peak state has been met.
std::size_t end_of_peaks(const ScheduleShape& shape, const std::vector<ScheduleAction>& actions,
                         const std::vector<InFlightState>& peaks, std::size_t num_chunks) {
  std::vector<InFlightState> missing = peaks;
  InFlightState now;
  now.saved.assign(num_chunks, 0);
  now.pending_weight.assign(num_chunks, 0);
  now.has_gradients.assign(num_chunks, 0);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const std::size_t chunk = static_cast<std::size_t>(actions[i].chunk);
    const ActionKind kind = actions[i].kind;
    const bool ends_saving = kind == ActionKind::kBackward || kind == ActionKind::kBackwardInput;
    now.action = kind;
    now.chunk = actions[i].chunk;
    now.saved[chunk] -= ends_saving ? 1 : 0;
    now.pending_weight[chunk] -= kind == ActionKind::kBackwardWeight ? 1 : 0;
    std::erase(missing, now);
    if (missing.empty()) {
      return i + 1;
    }
    now.saved[chunk] += kind == ActionKind::kForward ? 1 : 0;
    now.pending_weight[chunk] += kind == ActionKind::kBackwardInput ? 1 : 0;
    now.has_gradients[chunk] |= makes_gradients(shape, kind) ? 1 : 0;
  }
  return actions.size();
}

}  // namespace

std::vector<ScheduleAction> actions_to_peak(const Job& job, const Plan& plan,
                                            const StagePieces& pieces) {
  const ScheduleShape shape = shortest_equivalent(schedule_shape(job, plan));
  std::vector<ScheduleAction> actions = schedule_actions(shape, pieces.layout.pp_rank);
  const std::size_t end = end_of_peaks(shape, actions, pieces.schedule, pieces.chunks.size());
  std::int64_t last_microbatch = 0;
  for (std::size_t i = 0; i < end; ++i) {
    last_microbatch = std::max(last_microbatch, actions[i].microbatch);
  }
  last_microbatch += microbatch_group(shape);
  std::erase_if(actions,
                [&](const ScheduleAction& action) { return action.microbatch > last_microbatch; });
  return actions;
}

}  // namespace shardplan
