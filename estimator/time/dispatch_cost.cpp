#include "estimator/time/dispatch_cost.h"

#include "estimator/time/efficiency.h"

namespace shardplan {

DispatchCost dispatch_cost(const FrameworkProfile& profile) {
  if (profile.moe_dispatcher == MoeDispatcher::kDeepEp) {
    return {.sms = 20,
            .start_s = kDeepEpStart.value,
            .row_s = kDeepEpRow.value,
            .link_share = kDeepEpLink.value};
  }
  return {.sms = 16, .start_s = kHybridEpStart.value, .link_share = kHybridEpLink.value};
}

}  // namespace shardplan
