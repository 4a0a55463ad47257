#include "estimator/answer/model_times.h"

#include "estimator/frameworks/framework.h"

namespace shardplan {

BlockContext block_context(const Job& job, const Plan& plan) {
  return {framework_of(job.profile).kernels, job, plan};
}

ModelTimes model_times(const Job& job, const Plan& plan) {
  return model_times(framework_of(job.profile).kernels, job, plan);
}

ModelPieces model_pieces(const Job& job, const Plan& plan) {
  return model_pieces(framework_of(job.profile).kernels, job, plan);
}

BlockTime layer_time(const Job& job, const Plan& plan, const LayerSpec& layer) {
  return layer_time(framework_of(job.profile).kernels, job, plan, layer);
}

}  // namespace shardplan
