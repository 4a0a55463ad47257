// NCCL communicators of one rank: which groups have one, what each has been used for, and what that
// takes of the device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "estimator/ledger/outside.h"
#include "estimator/plan/job.h"
#include "estimator/plan/layer_partition.h"
#include "estimator/plan/rank_grid.h"

namespace shardplan {

// What a communicator has been used for.
struct Connections {
  bool ring = false;               // all-reduce, all-gather, reduce-scatter
  std::int64_t near_peers = 0;     // send and receive inside the NVLink domain
  bool has_network_peers = false;  // and across it
  bool elsewhere = false;          // made for the other direction of a peer counted elsewhere
  bool any() const { return ring || near_peers > 0 || has_network_peers || elsewhere; }
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
  // Sends of the pipeline go one by one, not in batches.
  bool sends_singly = job.profile.overlap_p2p_comm && plan.vpp > 1;

  std::int64_t size(GroupKind kind) const { return group_size(job, plan, kind); }

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

  // Sends one by one go over a communicator of the two ranks, which PyTorch
  // makes where the group has none from its start (distributed/c10d/ProcessGroupNCCL.cpp,
  // pointToPoint): nanotron's (parallel/pipeline_parallel/p2p.py), those of Megatron-core that run
  // beside other chunks (core/pipeline_parallel/p2p_communication.py, _p2p_ops), and Transformer
  // Engine's ring beyond two ranks (v2.11 attention/dot_product_attention/context_parallel.py,
  // batch_p2p_comm).
  bool pipeline_in_pairs() const {
    return plan.pp > 1 && sends_singly && !job.profile.eager_communicators;
  }
  bool ring_in_pairs() const {
    return plan.cp > 2 && plan.cp_method == CpMethod::kRing && !job.profile.eager_communicators;
  }
  Communicator pair(std::string_view name, GroupKind kind, bool exists) const {
    return {name, 2, exists ? neighbours(kind, 1) : Connections{}, exists};
  }

  bool wraps_around() const {
    const ScheduleRow& row = row_of(plan.schedule);
    return row.least_chunks > 1 && !row.places_in_v;
  }
  Communicator previous_stage() const {
    return pair("pp.previous", GroupKind::kPp,
                pipeline_in_pairs() && (wraps_around() || !first_stage));
  }
  // Of two stages that wrap around Megatron-core has one direction in the world's group.
  Communicator next_stage() const {
    const bool exists = pipeline_in_pairs() && (wraps_around() || !last_stage);
    if (exists && plan.pp == 2 && wraps_around()) {
      return {"pp.next", 2, {.elsewhere = true}};
    }
    return pair("pp.next", GroupKind::kPp, exists);
  }

  Connections pipeline() const {
    if (plan.pp == 1 || pipeline_in_pairs()) {
      return {};
    }
    const bool two_sided = plan.pp > 2 && (wraps_around() || !end_stage);
    return neighbours(GroupKind::kPp, two_sided ? 2 : 1);
  }

  Connections context_parallel() const {
    if (plan.cp == 1 || ring_in_pairs()) {
      return {};
    }
    switch (plan.cp_method) {
      case CpMethod::kRing: return neighbours(GroupKind::kCp, plan.cp > 2 ? 2 : 1);
      case CpMethod::kAllGather: return {.ring = true};
      case CpMethod::kA2a: return all_peers(GroupKind::kCp);
    }
    return {};
  }

  bool embedding_is_shared() const {
    const bool shares = job.model.tied_embeddings || job.model.num_mtp_layers > 0;
    const bool holds_table = first_stage || pp_rank == head_stage(job, plan);
    return shares && size(GroupKind::kEmbedding) > 1 && holds_table;
  }
};

inline Connections with_ring(Connections connections) {
  connections.ring = true;
  return connections;
}

// Which groups have a communicator: all at start-up, or those that were used.
enum class Creation { kAll, kUsed };

// What a process of PyTorch has before it has a communicator: context and libraries.
void add_process(const Job& job, OutsideParts& parts);
// Each communicator, and what a process pays once with the first ones.
void add_communicators(const Job& job, std::span<const Communicator> communicators,
                       Creation creation, OutsideParts& parts);
// Context and libraries by themselves, and what their bytes rest on.
void add_process(std::int64_t context_bytes, Origin context, std::int64_t library_bytes,
                 Origin libraries, OutsideParts& parts);
// Bytes that were measured on this GPU, or elsewhere.
constexpr Origin origin_of(const std::optional<std::int64_t>& measured_bytes) {
  return measured_bytes ? Origin::kMeasured : Origin::kMeasuredElsewhere;
}

}  // namespace shardplan
