#include "estimator/answer/rank_tensors.h"

#include "estimator/answer/stage_state.h"
#include "estimator/frameworks/framework.h"
#include "estimator/ledger/parameter_elements.h"
#include "estimator/ledger/stage_tensors.h"
#include "estimator/plan/expert_loads.h"

namespace shardplan {

RankTensors rank_tensors(const Job& job, const Plan& plan, const StagePieces& pieces,
                         std::int64_t rank) {
  const Framework& framework = framework_of(job.profile);
  const std::int64_t shards = dense_shard_size(job, plan);
  if (framework.timeline != nullptr) {
    return {.built = {},
            .rank = pieces.state.played ? (pieces.state.played->rank + rank) % shards : 0};
  }
  RankTensors tensors{.built = {}, .rank = load_spread(job, plan) > 0 ? rank : 0};
  if (framework.built != nullptr) {
    const StageTensors of_stage = stage_tensors(job, plan, pieces.layout);
    tensors.built = framework.built(job, plan, pieces.layout, of_stage, rank % shards);
  } else {
    tensors.built.optimizer_elements = parameter_elements(job, plan, pieces.layout);
  }
  return tensors;
}

}  // namespace shardplan
