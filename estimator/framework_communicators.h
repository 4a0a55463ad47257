// NCCL communicators of one rank in the frameworks that are modelled: which groups have one, and
// what each has been used for.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "estimator/job.h"
#include "estimator/rank_grid.h"

namespace shardplan {

// What a communicator has been used for.
struct Connections {
  bool ring = false;               // all-reduce, all-gather, reduce-scatter
  std::int64_t near_peers = 0;     // send and receive inside the NVLink domain
  bool has_network_peers = false;  // and across it
  bool any() const { return ring || near_peers > 0 || has_network_peers; }
};

struct Communicator {
  std::string_view name;
  std::int64_t ranks = 1;
  Connections connections;
  bool exists = true;  // on this rank: groups of the pipeline's ends have no members between
};

// Sizes of the groups of one rank and what the plan does with them.
struct GroupGrid {
  const Job& job;
  const Plan& plan;
  std::int64_t pp_rank = 0;
  std::int64_t world = job.cluster.world_size();
  std::int64_t dp = data_parallel_size(job, plan);
  bool first_stage = pp_rank == 0;
  bool last_stage = pp_rank == plan.pp - 1;
  bool end_stage = first_stage || last_stage;
  bool has_experts = job.model.moe.num_experts > 0;

  std::int64_t size(GroupKind kind) const { return group_shape(job, plan, kind).size; }

  // All-to-all: every other rank is a peer, none of a group of one.
  Connections all_peers(GroupKind kind) const {
    const GroupShape shape = group_shape(job, plan, kind);
    return {.ring = false,
            .near_peers = shape.ranks_per_domain - 1,
            .has_network_peers = shape.size > shape.ranks_per_domain};
  }

  // A line or a ring of neighbours.
  Connections neighbours(GroupKind kind, std::int64_t count) const {
    const bool near = group_shape(job, plan, kind).ranks_per_domain > 1;
    return {.ring = false, .near_peers = near ? count : 0, .has_network_peers = !near};
  }

  Connections pipeline() const {
    if (plan.pp == 1) {
      return {};
    }
    const bool wraps_around = plan.schedule == Schedule::kInterleaved1F1B ||
                              plan.schedule == Schedule::kInterleavedZeroBubble;
    const bool two_sided = plan.pp > 2 && (wraps_around || !end_stage);
    return neighbours(GroupKind::kPp, two_sided ? 2 : 1);
  }

  Connections context_parallel() const {
    if (plan.cp == 1) {
      return {};
    }
    switch (plan.cp_method) {
      case CpMethod::kRing: return neighbours(GroupKind::kCp, plan.cp > 2 ? 2 : 1);
      case CpMethod::kAllGather: return {.ring = true};
      case CpMethod::kA2a: return all_peers(GroupKind::kCp);
    }
    return {};
  }

  // Even where the tensor-parallel group is the rank alone: the trainer's broadcast of a batch
  // (get_batch_on_this_tp_rank), and the sums of the vocabulary-parallel loss.
  bool uses_tp_alone() const {
    switch (job.profile.memory_model) {
      case MemoryModel::kMegatron: return end_stage;
      case MemoryModel::kMegatronLocal: return last_stage;
      default: return false;
    }
  }

  bool embedding_is_shared() const {
    const bool shares = job.model.tied_embeddings || job.model.num_mtp_layers > 0;
    return shares && size(GroupKind::kEmbedding) > 1 && end_stage;
  }
};

std::array<Communicator, 23> megatron_communicators(const GroupGrid& grid);
std::array<Communicator, 2> deepspeed_communicators(const GroupGrid& grid);
std::array<Communicator, 11> torchtitan_communicators(const GroupGrid& grid);

}  // namespace shardplan
