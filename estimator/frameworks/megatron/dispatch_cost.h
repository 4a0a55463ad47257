// What exchanges of tokens by DeepEP take.
#pragma once

#include <cstdint>

#include "estimator/plan/framework_profile.h"
#include "estimator/time/efficiency.h"

namespace shardplan::megatron {

// Whether a token goes once to a rank, however many of its experts are there.
inline bool sends_tokens_once(const FrameworkProfile& profile) {
  return profile.moe_dispatcher == MoeDispatcher::kDeepEp ||
         profile.moe_dispatcher == MoeDispatcher::kHybridEp;
}

// What the kernels of a dispatcher that sends a token once to a rank take and hold.
struct DispatchCost {
  // Multiprocessors: Megatron-LM core_v0.16.1 core/transformer/transformer_config.py,
  // moe_deepep_num_sms and moe_hybridep_num_sms.
  std::int64_t sms = 0;
  double start_s = 0;  // of a call: layout, counts that the host waits for
  double row_s = 0;    // of each row that a rank receives
  // Of NVLink's rate: all rows received go through the buffer, own ones, too.
  double link_share = 0;
};
inline DispatchCost dispatch_cost(const FrameworkProfile& profile) {
  if (profile.moe_dispatcher == MoeDispatcher::kDeepEp) {
    return {.sms = 20,
            .start_s = kDeepEpStart.value,
            .row_s = kDeepEpRow.value,
            .link_share = kDeepEpLink.value};
  }
  return {.sms = 16, .start_s = kHybridEpStart.value, .link_share = kHybridEpLink.value};
}

}  // namespace shardplan::megatron
