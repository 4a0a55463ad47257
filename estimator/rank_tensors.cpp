#include "estimator/rank_tensors.h"

#include "estimator/allocator_tails.h"
#include "estimator/expert_loads.h"
#include "estimator/megatron_state.h"
#include "estimator/nanotron_rows.h"
#include "estimator/parameter_elements.h"
#include "estimator/stage_tensors.h"

namespace shardplan {
namespace {

// Without events where rows of the state say what is built.
BuiltStage built_stage(const Job& job, const Plan& plan, const StageLayout& layout,
                       std::int64_t shard) {
  switch (job.profile.memory_model) {
    case MemoryModel::kMegatronLocal:
      return megatron_start_up(job, plan, layout, stage_tensors(job, plan, layout), shard);
    case MemoryModel::kMegatron:
      if (has_plain_optimizer(job, plan)) {
        return megatron_start_up(job, plan, layout, stage_tensors(job, plan, layout), shard);
      }
      break;
    case MemoryModel::kNanotron:
      return nanotron_start_up(job, plan, layout, stage_tensors(job, plan, layout));
    default: break;
  }
  BuiltStage built;
  built.optimizer_elements = parameter_elements(job, plan, layout);
  return built;
}

}  // namespace

RankTensors rank_tensors(const Job& job, const Plan& plan, const StagePieces& pieces,
                         std::int64_t rank) {
  const std::int64_t shards = dense_shard_size(job, plan);
  switch (job.profile.memory_model) {
    case MemoryModel::kTorchtitan: return {};
    case MemoryModel::kDeepspeed:
      return {.built = {}, .rank = (pieces.state.played.value().rank + rank) % shards};
    default:
      return {.built = built_stage(job, plan, pieces.layout, rank % shards),
              .rank = load_spread(job, plan) > 0 ? rank : 0};
  }
}

}  // namespace shardplan
