// Seconds that one step spends, outside the pipeline, on gradients, parameters and the optimizer:
// data parallelism with ZeRO 0-3 and hybrid sharding.
#pragma once

#include "estimator/plan/job.h"
#include "estimator/time/update_times.h"

namespace shardplan {

// Bytes of a parameter as gathered and used.
double weight_bytes(const Plan& plan);

RankUpdate rank_update(const Job& job, const Plan& plan, const UpdateTimes& times,
                       const ShardingGroups& groups, const RankParameters& parameters);

// The communication of the update that stays visible, over all microbatches. ZeRO 0 reduces once; 1
// reduces once and gathers the updated parameters; 2 keeps gradients sharded, so every microbatch
// reduces; 3 gathers every block for forward and for backward and reduces, every microbatch, with
// the next block in flight (arXiv 1910.02054 section 7).
double exposed_data_parallel_s(const Job& job, const Plan& plan, const UpdateTimes& times,
                               const RankUpdate& update, std::int64_t microbatches,
                               const MicrobatchWork& work);

double optimizer_s(const Job& job, const Plan& plan, const UpdateTimes& times,
                   const ShardingGroups& groups, const RankParameters& rank);

// --- what a framework's update is made of ---

// Gathers and reductions of ZeRO 0 to 2 that stay visible, every one beside the pass that it
// belongs to; `summed_s` is what a sum of whole gradients takes, where they are not reduced in
// parts.
double exposed_below_zero_3_s(const Plan& plan, const RankUpdate& update, double microbatches,
                              const MicrobatchWork& work, std::optional<double> summed_s);
// What stays visible of ZeRO 3 in every microbatch, whose backward pass gathers parameters so often
// again: once, or never where they stay.
double exposed_every_microbatch_s(const RankUpdate& update, const MicrobatchWork& work,
                                  double again = 1);

}  // namespace shardplan
