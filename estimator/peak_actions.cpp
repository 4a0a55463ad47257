#include "estimator/peak_actions.h"

#include <algorithm>

namespace shardplan {
namespace {

// Position in the actions after which every peak state has been met.
std::size_t end_of_peaks(const ScheduleShape& shape, const std::vector<ScheduleAction>& actions,
                         const std::vector<InFlightState>& peaks, std::size_t num_chunks) {
  std::vector<InFlightState> missing = peaks;
  InFlightState now = none_in_flight(num_chunks);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    begin_action(actions[i], now);
    std::erase(missing, now);
    if (missing.empty()) {
      return i + 1;
    }
    end_action(shape, actions[i], now);
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
