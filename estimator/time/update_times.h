// What follows the pipeline in a step, gradients, parameters and the optimizer, of one rank: what
// it holds and takes, and what time/ asks of a framework about it.
#pragma once

#include <cstdint>
#include <optional>

#include "estimator/plan/job.h"
#include "estimator/plan/parameters.h"
#include "estimator/plan/rank_grid.h"
#include "estimator/time/elementwise.h"
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

// What a stage holds; tables: embedding, head and a copy of the embedding, as far as it has them.
struct HeldBlocks {
  std::int64_t dense_layers = 0;
  std::int64_t moe_layers = 0;
  std::int64_t mtp_modules = 0;
  std::int64_t tables = 0;
  bool has_final_norm = false;
  friend bool operator==(const HeldBlocks&, const HeldBlocks&) = default;
};

// What a rank reduces, gathers and updates.
struct RankParameters {
  LocalParameters held;
  LocalParameters regathered = {};  // for a backward pass (UpdateTimes::regathers_layers)
  std::int64_t tied_elements = 0;   // of the embedding table that the end stages share
  HeldBlocks blocks = {};
};

// Parameters that share a group, of which so many are weights of linear layers.
struct GroupParameters {
  std::int64_t elements = 0;
  std::int64_t linear = 0;
};

// Shares of what a rank of ZeRO-3 gathers and reduces: layers twice and once for every microbatch,
// the rest, embedding and head, is gathered once a step.
struct LayerShares {
  double layers = 1;
  double first = 0;  // of a layer, which begins a forward pass or ends a backward one
  double ahead = 0;  // of it and those that are gathered ahead, behind which a backward pass begins
};

// What one rank does after the pipeline, as far as it does not depend on the work of a microbatch.
struct RankUpdate {
  BesideCost reduce;      // reduce-scatter
  BesideCost replica;     // all-reduce of the shards between replicas
  BesideCost all_reduce;  // of whole gradients: no sharding; between replicas, too
  BesideCost gather;      // of all parameters
  BesideCost regather;    // ZeRO 3: of those that a backward pass gathers again
  BesideCost add;         // of a reduced gradient to the rank's sum of those before
  LayerShares shares;     // of gather and reduce
  bool gathers_beside_forward = false;
  bool reduces_beside_backward = false;
  double gather_copies_s = 0;  // into and out of the buffers of one gather
  double reduce_copies_s = 0;
  double part_to_host_s = 0;    // of this rank's part of the weights, over PCIe
  double tied_s = 0;            // of the embedding table, reduced between the end stages
  double largest_values_s = 0;  // of fp8 weights, of which each rank has updated a part
  double optimizer_s = 0;
};

// What communication may hide behind: one microbatch.
struct MicrobatchWork {
  double forward_s = 0;
  double backward_s = 0;
  double host_s = 0;  // of these, while the GPU waits for the host

  double total_s() const { return forward_s + backward_s; }
};

// Elements of a rank's part, by who updates them.
struct UpdatedElements {
  double on_gpu = 0;
  double on_host = 0;
};

// One row a framework.
struct UpdateTimes {
  // --- gathers and reductions ---

  // Copy engines gather parameters, where they reach all members of a group.
  bool moves_by_copies = false;
  // Gathers and reductions run on NCCL's many channels, not on few.
  bool has_wide_collectives = false;
  // How many collectives gather or reduce all parameters once; none: one.
  double (*num_collectives)(const Job& job, const Plan& plan) = nullptr;
  // Bytes of gathered parameters; none: of the type that products read.
  double (*gathered_bytes)(const Job& job, const Plan& plan, const GroupParameters& part) = nullptr;
  // Bytes of reduced gradients; none: of the plan's type of gradients.
  double (*reduced_bytes)(const Job& job, const Plan& plan, const GroupParameters& part) = nullptr;
  // Adds copies around collectives, and what else comes with the parameters of one group; none:
  // nothing does.
  void (*add_copies)(RankUpdate& total, const Job& job, const Plan& plan,
                     const GroupParameters& part, const GroupShape& shard) = nullptr;
  // A backward pass under ZeRO 3 gathers layers again, and no other parameters. Without a pipeline
  // the last layer is still there.
  bool regathers_layers = false;
  // Shares of a rank that holds so many elements that are divided; none: not asked for.
  LayerShares (*layer_shares)(const Job& job, const Plan& plan, std::int64_t held) = nullptr;

  // --- what stays visible of them ---

  // Parameters are gathered once a step, and gradients reduced after the last microbatch; none:
  // under ZeRO 3 in every microbatch.
  bool (*gathers_once)(const FrameworkProfile& profile, const Plan& plan) = nullptr;
  // Whether gradients are summed whole below ZeRO 3, not in parts; none: never.
  bool (*sums_whole)(const FrameworkProfile& profile, const Plan& plan) = nullptr;
  // Seconds under ZeRO 3, over all microbatches; none: exposed_every_microbatch_s of each.
  double (*exposed_zero_3_s)(const Job& job, const Plan& plan, const RankUpdate& update,
                             double microbatches, const MicrobatchWork& work) = nullptr;
  // Whether ranks update parts of the parameters under ZeRO 0, too, and gather them; none: never.
  bool (*gathers_updated)(const Job& job, const Plan& plan) = nullptr;
  // Seconds under any ZeRO, over all microbatches; none: every collective beside the pass that it
  // belongs to (exposed_data_parallel_s).
  double (*exposed_s)(const Job& job, const Plan& plan, const RankUpdate& update,
                      double microbatches, const MicrobatchWork& work) = nullptr;

  // --- optimizer ---

  // Kernels per parameter that the GPU updates.
  KernelBytes (*step_kernels)(const Job& job, const Plan& plan);
  // Kernels per parameter held, of so many data-parallel ranks; none: no such.
  KernelBytes (*buffer_kernels)(const Job& job, const Plan& plan, std::int64_t replicas) = nullptr;
  // Kernels that write weights for products; none: the update does.
  KernelBytes (*weight_kernels)(const Job& job, const Plan& plan, const ShardingGroups& groups,
                                const LocalParameters& parameters) = nullptr;
  // Elements of a rank's part that the host updates; none: the share that the plan says.
  double (*elements_on_host)(const Job& job, const Plan& plan, double elements) = nullptr;
  // The step with what is offloaded, given its seconds without; none: nothing is.
  double (*offloaded_step_s)(const Job& job, const Plan& plan, const UpdatedElements& updated,
                             double on_gpu_s) = nullptr;
  // The whole step of an optimizer that updates matrices as such, beside so much of the host's;
  // nullopt: it goes by parameters. None: always.
  std::optional<double> (*matrix_step_s)(const Job& job, const Plan& plan,
                                         const ShardingGroups& groups, const RankParameters& rank,
                                         double host_s) = nullptr;
};

}  // namespace shardplan
