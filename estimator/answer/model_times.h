// The times of a job's blocks by the kernels of its framework.
#pragma once

#include "estimator/time/block_time.h"
#include "estimator/time/block_work.h"

namespace shardplan {

BlockContext block_context(const Job& job, const Plan& plan);
ModelTimes model_times(const Job& job, const Plan& plan);
ModelPieces model_pieces(const Job& job, const Plan& plan);
BlockTime layer_time(const Job& job, const Plan& plan, const LayerSpec& layer);

}  // namespace shardplan
