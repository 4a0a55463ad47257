// What exchanges of tokens by DeepEP take.
#pragma once

#include <cstdint>

#include "estimator/plan/job.h"
#include "estimator/plan/time_constants.h"

namespace shardplan::megatron {

// Whether a token goes once to a rank, however many of its experts are there.
inline bool sends_tokens_once(const FrameworkProfile& profile) {
  return profile.moe_dispatcher == MoeDispatcher::kDeepEp ||
         profile.moe_dispatcher == MoeDispatcher::kHybridEp;
}

// Multiprocessors that the kernels of a dispatcher hold which sends a token once to a rank:
// Megatron-LM core_v0.16.1 core/transformer/transformer_config.py, moe_deepep_num_sms and
// moe_hybridep_num_sms.
inline std::int64_t dispatch_sms(const FrameworkProfile& profile) {
  return profile.moe_dispatcher == MoeDispatcher::kDeepEp ? 20 : 16;
}

// What such kernels take.
struct DispatchCost {
  double start_s = 0;  // of a call: layout, counts that the host waits for
  double row_s = 0;    // of each row that a rank receives
  // Of NVLink's rate: all rows received go through the buffer, own ones, too.
  double link_share = 0;
};
inline DispatchCost dispatch_cost(const Job& job) {
  const TimeConstants& of = *job.cluster.gpu.constants;
  if (job.profile.moe_dispatcher == MoeDispatcher::kDeepEp) {
    return {.start_s = of.deep_ep_start_s,
            .row_s = of.deep_ep_row_s,
            .link_share = of.deep_ep_link_share};
  }
  return {.start_s = of.hybrid_ep_start_s, .link_share = of.hybrid_ep_link_share};
}

}  // namespace shardplan::megatron
