#include "estimator/frameworks/transformers/state.h"

#include "estimator/frameworks/transformers/trainer.h"

namespace shardplan::transformers {

StageState state_of_stage(const Job& job, const Plan& plan) {
  constexpr int kSteps = 2;  // the second meets the optimizer's state
  return state_of_run(trainer_run(job, plan, kSteps), DType::kBf16, job.profile.allocator);
}

}  // namespace shardplan::transformers
