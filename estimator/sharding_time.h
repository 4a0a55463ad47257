// Seconds that one step spends, outside the pipeline, on gradients, parameters and the optimizer:
// data parallelism with ZeRO 0-3 and hybrid sharding.
#pragma once

#include "estimator/job.h"
#include "estimator/parameters.h"
#include "estimator/rank_grid.h"

namespace shardplan {

// The groups that gradients and parameters travel in; the same for every rank of a plan.
struct ShardingGroups {
  ShardingGroups(const Job& job, const Plan& plan);

  GroupShape dense_shard;
  GroupShape dense_replica;
  GroupShape expert_shard;
  GroupShape expert_replica;
  GroupShape embedding;
};

// Of one rank. Work of one microbatch is what communication may hide behind.
struct ShardedRank {
  LocalParameters parameters;
  std::int64_t tied_elements = 0;  // embedding elements reduced between the end stages
  double forward_s = 0;
  double backward_s = 0;
};

double exposed_data_parallel_s(const Job& job, const Plan& plan, const ShardingGroups& groups,
                               const ShardedRank& rank);
double optimizer_s(const Job& job, const Plan& plan, const ShardingGroups& groups,
                   const LocalParameters& parameters);

}  // namespace shardplan
