#include "estimator/parameter_elements.h"

#include "estimator/block_rows.h"
#include "estimator/stage_tensors.h"

namespace shardplan {
namespace {

// FSDP2 shards every parameter by itself; an optimizer's and a block's tensors have those sizes.
std::vector<std::int64_t> sharded_elements(const Job& job, const Plan& plan,
                                           const StageLayout& stage) {
  const std::int64_t shard = plan.zero == 3 ? dense_shard_size(job, plan) : 1;
  const BlockShape s = block_shape(job, plan);
  const std::int64_t query = s.hidden * s.query_width;
  const std::int64_t key = s.hidden * s.key_value_width;
  const std::int64_t width = s.hidden * div_ceil(job.model.ffn, plan.tp);
  const std::int64_t table = s.hidden * s.local_vocab;
  std::vector<std::int64_t> tensors;
  tensors.insert(tensors.end(), count_blocks(stage, BlockKind::kEmbedding) > 0 ? 1 : 0, table);
  for (std::int64_t layer = 0; layer < stage.num_layers; ++layer) {
    tensors.insert(tensors.end(), {query, key, key, query, width, width, width});
  }
  tensors.insert(tensors.end(), stage.ends.has_head ? 1 : 0, table);
  for (std::int64_t& elements : tensors) { elements = div_ceil(elements, shard); }
  return tensors;
}

}  // namespace

std::vector<std::int64_t> parameter_elements(const Job& job, const Plan& plan,
                                             const StageLayout& stage) {
  if (job.profile.memory_model == MemoryModel::kTorchtitan) {
    return sharded_elements(job, plan, stage);
  }
  std::vector<std::int64_t> tensors;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    const BlockKind shapes = kind == BlockKind::kEmbedding ? BlockKind::kHead : kind;
    for (std::int64_t block = 0; block < count_blocks(stage, kind); ++block) {
      for (const WeightShape& shape : weight_shapes(job, plan, shapes)) {
        tensors.insert(tensors.end(), static_cast<std::size_t>(shape.count),
                       shape.rows * shape.columns);
      }
    }
  }
  return tensors;
}

}  // namespace shardplan
