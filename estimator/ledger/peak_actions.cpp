#include "estimator/ledger/peak_actions.h"

#include <algorithm>

#include "estimator/plan/in_flight.h"
#include "estimator/plan/units.h"

namespace shardplan {
namespace {

// Position in the actions after which every peak state has been met.
std::size_t end_of_peaks(const ScheduleShape& shape, const std::vector<ScheduleAction>& actions,
                         const std::vector<InFlightState>& peaks, std::size_t num_chunks) {
  std::vector<InFlightState> missing = peaks;
  // Gradients are reduced at the end of every schedule, however short.
  std::erase_if(missing, [](const InFlightState& peak) {
    return peak.reduces || std::ranges::find(peak.reduced, 1) != peak.reduced.end();
  });
  InFlightState now = none_in_flight(num_chunks);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    begin_action(actions[i], now);
    std::erase_if(missing, [&](const InFlightState& peak) {
      return peak.action == now.action && peak.chunk == now.chunk && peak.saved == now.saved &&
             peak.pending_weight == now.pending_weight && peak.has_gradients == now.has_gradients;
    });
    if (missing.empty()) {
      return i + 1;
    }
    end_action(shape, actions[i], now);
  }
  return actions.size();
}

}  // namespace

std::vector<ScheduleAction> all_actions(const Job& job, const Plan& plan,
                                        const StagePieces& pieces) {
  return schedule_actions(shortest_equivalent(schedule_shape(job, plan)), pieces.layout.pp_rank);
}

std::vector<ScheduleAction> actions_to_peak(const Job& job, const Plan& plan,
                                            const StagePieces& pieces) {
  const ScheduleShape shape = shortest_equivalent(schedule_shape(job, plan));
  std::vector<ScheduleAction> actions = all_actions(job, plan, pieces);
  const std::size_t end = end_of_peaks(shape, actions, pieces.schedule, pieces.chunks.size());
  std::int64_t last_microbatch = 0;
  for (std::size_t i = 0; i < end; ++i) {
    last_microbatch = std::max(last_microbatch, actions[i].microbatch);
  }
  const std::int64_t group = microbatch_group(shape);
  if (shape.tells_parameters) {
    last_microbatch = round_up(last_microbatch + 1, group) - 1;  // so that the end is a schedule's
  }
  last_microbatch += group;
  std::erase_if(actions,
                [&](const ScheduleAction& action) { return action.microbatch > last_microbatch; });
  return actions;
}

}  // namespace shardplan
