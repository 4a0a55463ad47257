#include "estimator/ledger/parameter_elements.h"

#include "estimator/ledger/stage_tensors.h"

namespace shardplan {

std::vector<std::int64_t> parameter_elements(const Job& job, const Plan& plan,
                                             const StageLayout& stage, BlockKind kind) {
  const BlockKind shapes = kind == BlockKind::kEmbedding ? BlockKind::kHead : kind;
  std::vector<std::int64_t> tensors;
  for (std::int64_t block = 0; block < count_blocks(stage, kind); ++block) {
    for (const WeightShape& shape : weight_shapes(job, plan, shapes)) {
      tensors.insert(tensors.end(), static_cast<std::size_t>(shape.count),
                     shape.rows * shape.columns);
    }
  }
  return tensors;
}

std::vector<std::int64_t> parameter_elements(const Job& job, const Plan& plan,
                                             const StageLayout& stage) {
  std::vector<std::int64_t> tensors;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const std::vector<std::int64_t> of_kind =
        parameter_elements(job, plan, stage, static_cast<BlockKind>(i));
    tensors.insert(tensors.end(), of_kind.begin(), of_kind.end());
  }
  return tensors;
}

}  // namespace shardplan
