// Seconds that one step spends, outside the pipeline, on gradients, parameters and the optimizer:
// data parallelism with ZeRO 0-3 and hybrid sharding.
#pragma once

#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/plan/job.h"
#include "estimator/plan/parameters.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/time/overlap_time.h"

namespace shardplan {

// The groups that gradients and parameters travel in; the same for every rank of a plan.
struct ShardingGroups {
  ShardingGroups() = default;
  ShardingGroups(const Job& job, const Plan& plan);

  GroupShape dense_shard;
  GroupShape dense_replica;
  GroupShape expert_shard;
  GroupShape expert_replica;
  GroupShape embedding;
};

// What one rank does after the pipeline, as far as it does not depend on the work of a microbatch.
struct RankUpdate {
  BesideCost reduce;           // reduce-scatter
  BesideCost replica;          // all-reduce of the shards between replicas
  BesideCost all_reduce;       // of whole gradients: no sharding; between replicas, too
  BesideCost gather;           // of all parameters
  BesideCost regather;         // native, ZeRO 3: of those that a backward pass gathers again
  BesideCost add;              // of a reduced gradient to the rank's sum of those before
  FsdpShares of_fsdp;          // Megatron-FSDP's
  double gather_copies_s = 0;  // into and out of the buffers of one gather
  double reduce_copies_s = 0;
  double part_to_host_s = 0;    // DeepSpeed: of this rank's part of the weights, over PCIe
  double tied_s = 0;            // of the embedding table, reduced between the end stages
  double largest_values_s = 0;  // of fp8 weights, of which each rank has updated a part
  double optimizer_s = 0;
};

// What a rank reduces, gathers and updates.
struct RankParameters {
  LocalParameters held;
  LocalParameters regathered = {};  // our own trainer's, for a backward pass under ZeRO 3
  std::int64_t tied_elements = 0;   // of the embedding table that the end stages share
  HeldBlocks blocks = {};           // what Muon's matrices are in
};

RankUpdate rank_update(const Job& job, const Plan& plan, const ShardingGroups& groups,
                       const RankParameters& parameters);

// What communication may hide behind: one microbatch.
struct MicrobatchWork {
  double forward_s = 0;
  double backward_s = 0;
  double host_s = 0;  // of these, while the GPU waits for the host

  double total_s() const { return forward_s + backward_s; }
};

// The communication of the update that stays visible, over all microbatches.
double exposed_data_parallel_s(const Job& job, const Plan& plan, const RankUpdate& update,
                               std::int64_t microbatches, const MicrobatchWork& work);

double optimizer_s(const Job& job, const Plan& plan, const ShardingGroups& groups,
                   const RankParameters& rank);

}  // namespace shardplan
