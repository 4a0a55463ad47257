// Which rank holds which coordinate of the parallel grid, and which groups of ranks communicate.
// Experts divide the ranks of one pipeline stage, in rank order, into etp (fastest), ep, and
// expert-dp, as Megatron-LM core/parallel_state.py does with its second RankGenerator.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "estimator/plan/job.h"

namespace shardplan {

// Communicating groups. Sizes: tp, cp, dp, pp as in the plan; the others are derived.
enum class GroupKind {
  kTp,
  kCp,
  kDp,
  kPp,
  kDpCp,  // dense gradients and ZeRO shards: dp x cp (divided by dp_replicate for the shards)
  kTpCp,
  kEmbedding,  // the pipeline stages of embedding and head, tied embeddings
  kEp,
  kEtp,
  kExperts,   // ep x etp: ranks that hold all experts together
  kExpertDp,  // world / (pp * ep * etp)
  // Parts of the gradient groups under hybrid sharding; without it (dp_replicate == 1) the shard
  // group is the whole group and the replica group is the rank alone.
  kDenseShard,     // dense_shard_size ranks that share one copy of dense optimizer state
  kDenseReplica,   // dp_replicate ranks that hold the same dense shard
  kExpertShard,    // expert_shard_size ranks
  kExpertReplica,  // dp_replicate ranks that hold the same expert shard
};
inline constexpr std::array<GroupKind, 15> kGroupKinds = {
    GroupKind::kTp,           GroupKind::kCp,          GroupKind::kDp,
    GroupKind::kPp,           GroupKind::kDpCp,        GroupKind::kTpCp,
    GroupKind::kEmbedding,    GroupKind::kEp,          GroupKind::kEtp,
    GroupKind::kExperts,      GroupKind::kExpertDp,    GroupKind::kDenseShard,
    GroupKind::kDenseReplica, GroupKind::kExpertShard, GroupKind::kExpertReplica};

struct GroupShape {
  std::int64_t size = 1;
  std::int64_t stride = 1;            // distance between neighbouring members in global rank
  std::int64_t ranks_per_domain = 1;  // members inside one NVLink domain, >= 1: every group of the
                                      // kind falls into runs of at least so many
  std::int64_t ranks_per_node = 1;    // the same for nodes
};

struct RankCoordinates {
  std::int64_t pp = 0;
  std::int64_t dp = 0;
  std::int64_t cp = 0;
  std::int64_t tp = 0;
  friend bool operator==(const RankCoordinates&, const RankCoordinates&) = default;
};

RankCoordinates coordinates_of(const Job& job, const Plan& plan, std::int64_t rank);
std::int64_t rank_of(const Job& job, const Plan& plan, const RankCoordinates& at);

// Shape of the group of this kind; every rank's group of one kind has the same shape.
GroupShape group_shape(const Job& job, const Plan& plan, GroupKind kind);
std::int64_t group_size(const Job& job, const Plan& plan, GroupKind kind);  // its size alone

// Whether every rank's groups of these two kinds, neither of them kEmbedding, have the same
// members.
bool same_members(const Job& job, const Plan& plan, GroupKind a, GroupKind b);

// Global ranks of the group that `rank` belongs to, ascending. Empty for kEmbedding on ranks of
// middle stages, which belong to none.
std::vector<std::int64_t> group_ranks(const Job& job, const Plan& plan, GroupKind kind,
                                      std::int64_t rank);

}  // namespace shardplan
