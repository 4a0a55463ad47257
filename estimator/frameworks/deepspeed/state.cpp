#include "estimator/frameworks/deepspeed/state.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/deepspeed/timeline.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_peak.h"
#include "estimator/plan/number.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
std::vector<std::int64_t> deepspeed_sub_groups(const Job& job, const Plan& plan) {
  constexpr std::int64_t kSubGroup = 1'000'000'000;
  const std::int64_t ranks = dense_shard_size(job, plan);
  std::vector<std::int64_t> groups = {0};
  for (const std::int64_t elements : trained_tensors(job, plan)) {
    if (groups.back() >= kSubGroup) {
      groups.push_back(0);
    }
    groups.back() += div_ceil(elements, ranks);
  }
  return groups;
}

std::int64_t deepspeed_sub_groups_on_gpu(const Plan& plan, std::int64_t sub_groups) {
  return static_cast<std::int64_t>((1 - plan.offload.optimizer) * number(sub_groups));
}

StageState state_of_stage(const Job& job, const Plan& plan, std::optional<std::int64_t> rank) {
  const std::vector<std::int64_t> ranks =
      rank ? std::vector<std::int64_t>{*rank} : deepspeed_full_ranks(job, plan);
  PlayedRun fullest;
  PlayedPeaks peaks;
  for (const std::int64_t each : ranks) {
    PlayedRun run = deepspeed_run(job, plan, each);
    const PlayedPeaks of_run = peaks_of(run);
    if (fullest.events.empty() || step_peak(of_run) > step_peak(peaks)) {
      fullest = std::move(run);
      peaks = of_run;
      peaks.rank = each;
    }
  }
  // Flat tensors leave blocks no ends that matter; each parameter's own copies and moments do.
  const std::optional<AllocatorKind> allocator =
      plan.zero == 0 ? std::optional(job.profile.allocator) : std::nullopt;
  StageState state = state_of_run(fullest, activation_dtype(plan.precision), allocator);
  state.played->rank = peaks.rank;
  return state;
}

}  // namespace shardplan::deepspeed
