#include "estimator/frameworks/megatron/dummy_gradients.h"

#include <algorithm>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/ledger/stage_tensors.h"

namespace shardplan::megatron {

std::vector<std::int64_t> dummy_gradients(const Job& job, const Plan& plan,
                                          const StageLayout& stage) {
  std::vector<std::int64_t> elements;
  if (!fuses_weight_gradients(job, plan) || !job.profile.dummy_weight_gradients) {
    return elements;
  }
  std::vector<WeightShape> seen;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    if (count_blocks(stage, kind) == 0) {
      continue;
    }
    for (WeightShape shape : updated_weight_shapes(job, plan, kind)) {
      shape.count = 1;
      if (std::ranges::find(seen, shape) == seen.end()) {
        seen.push_back(shape);
        elements.push_back(shape.rows * shape.columns);
      }
    }
  }
  return elements;
}

std::vector<std::int64_t> dummy_gradient_bytes(const Job& job, const Plan& plan,
                                               const StageLayout& stage) {
  std::vector<std::int64_t> bytes = dummy_gradients(job, plan, stage);
  for (std::int64_t& of_shape : bytes) { of_shape *= bytes_of(activation_dtype(plan.precision)); }
  return bytes;
}

}  // namespace shardplan::megatron
