// Where the tokens of a mixture go when its router chooses evenly, and how wide they are there.
#pragma once

#include <cstdint>

#include "estimator/plan/model_spec.h"

namespace shardplan {

// Width of the tokens that routed experts see: that to which they are projected, or the whole.
inline std::int64_t routed_width(const ModelSpec& model) {
  return model.moe.latent > 0 ? model.moe.latent : model.hidden;
}

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

}  // namespace shardplan
