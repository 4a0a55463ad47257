// Where the tokens of a mixture go when its router chooses evenly.
#pragma once

#include <cstdint>

#include "estimator/plan/framework_profile.h"
#include "estimator/plan/model_spec.h"

namespace shardplan {

// Expected share of tokens that choose at least one of `experts` neighbours (a rank's or a node's,
// from the first on): topk of all experts, or of those of topk_groups of the num_groups into which
// they fall (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). 0 for none, 1 for all.
double share_choosing(const MoeSpec& moe, std::int64_t experts);

// Of its choices, how many are of these experts.
struct RankChoices {
  double mean = 0;
  double variance = 0;
};
RankChoices choices_of(const MoeSpec& moe, std::int64_t experts);

// Whether a token goes once to a rank, however many of its experts are there.
bool sends_tokens_once(const FrameworkProfile& profile);

// What its kernels take and hold, of a dispatcher that does so.
struct DispatchCost {
  // Multiprocessors: Megatron-LM core_v0.16.1 core/transformer/transformer_config.py,
  // moe_deepep_num_sms and moe_hybridep_num_sms.
  std::int64_t sms = 0;
  double start_s = 0;  // of a call: layout, counts that the host waits for
  double row_s = 0;    // of each row that a rank receives
  double link_share =
      0;  // of NVLink's rate: all rows received go through the buffer, own ones, too
};
DispatchCost dispatch_cost(const FrameworkProfile& profile);

}  // namespace shardplan
