#include "estimator/frameworks/transformers/timeline.h"

#include "estimator/frameworks/transformers/trainer.h"

namespace shardplan::transformers {

std::vector<AllocationEvent> timeline(const Job& job, const Plan& plan) {
  constexpr int kSteps = 3;
  return trainer_run(job, plan, kSteps).events;
}

}  // namespace shardplan::transformers
