// What follows the pipeline by the update of a job's framework.
#pragma once

#include "estimator/frameworks/framework.h"
#include "estimator/time/sharding_time.h"

namespace shardplan {

inline RankUpdate rank_update(const Job& job, const Plan& plan, const RankParameters& parameters) {
  return rank_update(job, plan, framework_of(job.profile).update, ShardingGroups(job, plan),
                     parameters);
}

inline double optimizer_s(const Job& job, const Plan& plan, const RankParameters& parameters) {
  return optimizer_s(job, plan, framework_of(job.profile).update, ShardingGroups(job, plan),
                     parameters);
}

inline double exposed_data_parallel_s(const Job& job, const Plan& plan, const RankUpdate& update,
                                      std::int64_t microbatches, const MicrobatchWork& work) {
  return exposed_data_parallel_s(job, plan, framework_of(job.profile).update, update, microbatches,
                                 work);
}

}  // namespace shardplan
