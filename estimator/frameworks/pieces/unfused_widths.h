// What attention adds to the elements of a token where its scores may be written out.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/validity/limits.h"

namespace shardplan {

// Pairs with all positions, in so many matrices.
inline double pairs_of_token(const Job& job, std::int64_t matrices) {
  return static_cast<double>(job.sequence_length) * static_cast<double>(matrices);
}

// No choice of kernels may leave a deterministic backward but that of unfused attention.
inline bool may_find_no_kernel(const FrameworkProfile& profile) {
  return profile.attention_backend == AttentionBackend::kAuto && profile.deterministic_attention;
}

inline OptionWidths widths_where_deterministic(const Job& job) {
  return {.pairs = pairs_of_token(job, may_find_no_kernel(job.profile) ? job.model.num_heads : 0)};
}

}  // namespace shardplan
