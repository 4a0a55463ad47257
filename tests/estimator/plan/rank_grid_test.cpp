// The parallel grid and its groups: partitions, hand cases, NVLink domains.
#include "estimator/plan/rank_grid.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

namespace shardplan {
namespace {

Job job_on(std::int64_t nodes, std::int64_t gpus_per_node, std::int64_t nvlink_domain) {
  Job job;
  job.cluster.nodes = nodes;
  job.cluster.gpus_per_node = gpus_per_node;
  job.cluster.nvlink_domain = nvlink_domain;
  return job;
}

using Ranks = std::vector<std::int64_t>;

// Plans that fill 64 ranks in every rank order, dense and with experts.
std::vector<Plan> plans_of_64_ranks() {
  RankOrder order = {Dimension::kPp, Dimension::kDp, Dimension::kCp, Dimension::kTp};
  std::ranges::sort(order);
  std::vector<Plan> plans;
  do {
    for (const std::int64_t tp : {1, 4}) {
      for (const std::int64_t cp : {1, 2}) {
        for (const std::int64_t pp : {1, 4}) {
          for (const std::int64_t ep : {1, 4}) {
            for (const std::int64_t replicate : {1, 2}) {
              Plan plan = {.tp = tp, .cp = cp, .ep = ep, .etp = tp > 1 ? 2 : 1, .pp = pp};
              plan.schedule = pp > 1 ? Schedule::k1F1B : Schedule::kNone;
              plan.rank_order = order;
              const std::int64_t dp = 64 / (tp * cp * pp);
              plan.dp_replicate = std::min(replicate, dp);
              const std::int64_t per_copy = plan.ep * plan.etp * plan.dp_replicate;
              if (64 / pp % per_copy == 0) {
                plans.push_back(plan);
              }
            }
          }
        }
      }
    }
  } while (std::ranges::next_permutation(order).found);
  return plans;
}

TEST_CASE("rank_of and coordinates_of are inverses in every rank order") {
  const Job job = job_on(8, 8, 8);
  std::int64_t failures = 0;
  for (const Plan& plan : plans_of_64_ranks()) {
    for (std::int64_t rank = 0; rank < 64; ++rank) {
      failures += rank_of(job, plan, coordinates_of(job, plan, rank)) == rank ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

TEST_CASE("the groups of one kind partition all ranks and have the size of their shape") {
  const Job job = job_on(8, 8, 8);
  std::int64_t failures = 0;
  for (const Plan& plan : plans_of_64_ranks()) {
    for (const GroupKind kind : kGroupKinds) {
      const GroupShape shape = group_shape(job, plan, kind);
      std::set<Ranks> groups;
      for (std::int64_t rank = 0; rank < 64; ++rank) {
        const Ranks ranks = group_ranks(job, plan, kind, rank);
        const bool middle = kind == GroupKind::kEmbedding && ranks.empty();
        const bool holds_rank = std::ranges::count(ranks, rank) == 1;
        const bool right_size = static_cast<std::int64_t>(ranks.size()) == shape.size;
        failures += middle || (holds_rank && right_size) ? 0 : 1;
        groups.insert(ranks);
      }
      std::int64_t members = 0;
      for (const Ranks& ranks : groups) { members += static_cast<std::int64_t>(ranks.size()); }
      const bool two_ends = kind == GroupKind::kEmbedding && plan.pp > 1;
      failures += members == (two_ends ? 64 / plan.pp * 2 : 64) ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

TEST_CASE("two kinds have the same members where every rank's lists are the same") {
  const Job job = job_on(8, 8, 8);
  std::int64_t failures = 0;
  std::int64_t equal = 0;
  for (const Plan& plan : plans_of_64_ranks()) {
    for (const GroupKind a : kGroupKinds) {
      for (const GroupKind b : kGroupKinds) {
        if (a >= b || a == GroupKind::kEmbedding || b == GroupKind::kEmbedding) {
          continue;
        }
        bool same = true;
        for (std::int64_t rank = 0; rank < 64 && same; rank += 7) {
          same = group_ranks(job, plan, a, rank) == group_ranks(job, plan, b, rank);
        }
        failures += same_members(job, plan, a, b) == same ? 0 : 1;
        equal += same ? 1 : 0;
      }
    }
  }
  CHECK(failures == 0);
  CHECK(equal > 1000);
}

// The fewest members of any group of the kind in an aligned block that the group touches.
std::int64_t fewest_together(const Job& job, const Plan& plan, GroupKind kind, std::int64_t block) {
  std::int64_t fewest = job.cluster.world_size();
  for (std::int64_t rank = 0; rank < job.cluster.world_size(); ++rank) {
    const Ranks ranks = group_ranks(job, plan, kind, rank);
    if (ranks.empty() || ranks.front() != rank) {
      continue;  // every group once
    }
    std::map<std::int64_t, std::int64_t> together;
    for (const std::int64_t member : ranks) { ++together[member / block]; }
    for (const auto& [index, count] : together) { fewest = std::min(fewest, count); }
  }
  return fewest;
}

TEST_CASE("ranks per domain and per node are what the rank lists show, in every rank order") {
  const Job job = job_on(8, 8, 4);
  std::int64_t failures = 0;
  for (const Plan& plan : plans_of_64_ranks()) {
    for (const GroupKind kind : kGroupKinds) {
      const GroupShape shape = group_shape(job, plan, kind);
      failures += shape.ranks_per_domain == fewest_together(job, plan, kind, 4) ? 0 : 1;
      failures += shape.ranks_per_node == fewest_together(job, plan, kind, 8) ? 0 : 1;
    }
  }
  CHECK(failures == 0);
}

TEST_CASE("a tensor group of six that straddles nodes of eight has two members surely together") {
  const Job job = job_on(3, 8, 8);
  const Plan plan = {.tp = 6};
  CHECK(group_shape(job, plan, GroupKind::kTp).ranks_per_domain == 2);
  CHECK(fewest_together(job, plan, GroupKind::kTp, 8) == 2);
}

TEST_CASE("an NVLink domain of 72 holds what nodes of four divide") {
  const Job job = job_on(18, 4, 72);
  const GroupShape shape = group_shape(job, {.tp = 8}, GroupKind::kTp);
  CHECK(shape.size == 8);
  CHECK(shape.ranks_per_domain == 8);
  CHECK(shape.ranks_per_node == 4);
}

TEST_CASE("64 nodes of four lie in NVLink domains of 72 by sixteen each, and 64 experts in one") {
  const Job job = job_on(64, 4, 72);
  CHECK(job.cluster.gpus_per_domain() == 64);
  const GroupShape ep =
      group_shape(job, {.ep = 64, .pp = 4, .schedule = Schedule::kInterleaved1F1B}, GroupKind::kEp);
  CHECK(ep.size == 64);
  CHECK(ep.ranks_per_domain == 64);
  CHECK(ep.ranks_per_node == 4);
}

TEST_CASE("a job has whole nodes of an NVLink domain, equally many of every domain") {
  for (std::int64_t nodes = 1; nodes <= 200; ++nodes) {
    const ClusterSpec cluster = job_on(nodes, 4, 72).cluster;
    const std::int64_t domain = cluster.gpus_per_domain();
    CHECK(domain <= 72);
    CHECK(domain % 4 == 0);
    CHECK(cluster.world_size() % domain == 0);
    CHECK((nodes > 18 || domain == cluster.world_size()));
  }
  CHECK(job_on(36, 4, 72).cluster.gpus_per_domain() == 72);
  CHECK(job_on(16, 8, 8).cluster.gpus_per_domain() == 8);
  CHECK(job_on(16, 8, 2).cluster.gpus_per_domain() == 2);
}

TEST_CASE("sixteen ranks in the default order have the groups written by hand") {
  const Job job = job_on(2, 8, 8);
  const Plan plan = {.tp = 2, .cp = 2, .pp = 2, .schedule = Schedule::k1F1B};
  CHECK(group_ranks(job, plan, GroupKind::kTp, 5) == Ranks{4, 5});
  CHECK(group_ranks(job, plan, GroupKind::kCp, 5) == Ranks{5, 7});
  CHECK(group_ranks(job, plan, GroupKind::kDp, 5) == Ranks{1, 5});
  CHECK(group_ranks(job, plan, GroupKind::kPp, 5) == Ranks{5, 13});
  CHECK(group_ranks(job, plan, GroupKind::kDpCp, 5) == Ranks{1, 3, 5, 7});
  CHECK(group_ranks(job, plan, GroupKind::kTpCp, 5) == Ranks{4, 5, 6, 7});
  CHECK(group_ranks(job, plan, GroupKind::kEmbedding, 5) == Ranks{5, 13});
  const GroupShape pipeline = group_shape(job, plan, GroupKind::kPp);
  CHECK(pipeline.stride == 8);
  CHECK(pipeline.ranks_per_domain == 1);
}

TEST_CASE("experts divide a stage's ranks as Megatron-LM does: etp, then ep, then expert-dp") {
  const Job job = job_on(2, 8, 8);
  const Plan plan = {
      .tp = 4, .ep = 2, .etp = 2, .pp = 2, .schedule = Schedule::k1F1B};  // stage: ranks 8..15
  CHECK(group_ranks(job, plan, GroupKind::kEtp, 13) == Ranks{12, 13});
  CHECK(group_ranks(job, plan, GroupKind::kEp, 13) == Ranks{13, 15});
  CHECK(group_ranks(job, plan, GroupKind::kExpertDp, 13) == Ranks{9, 13});
}

TEST_CASE("experts of a stage skip the ranks of other stages when pp is not the slowest") {
  const Job job = job_on(1, 8, 8);
  Plan plan = {.tp = 2, .ep = 4, .pp = 2, .schedule = Schedule::k1F1B};
  plan.rank_order = {Dimension::kDp, Dimension::kPp, Dimension::kCp, Dimension::kTp};
  CHECK(group_ranks(job, plan, GroupKind::kEp, 0) == Ranks{0, 1, 4, 5});
  CHECK(group_ranks(job, plan, GroupKind::kEp, 2) == Ranks{2, 3, 6, 7});
}

TEST_CASE("hybrid sharding keeps a shard on neighbouring data-parallel ranks") {
  const Job job = job_on(2, 8, 8);
  const Plan plan = {.tp = 2, .dp_replicate = 2};
  CHECK(group_ranks(job, plan, GroupKind::kDenseShard, 3) == Ranks{1, 3, 5, 7});
  CHECK(group_ranks(job, plan, GroupKind::kDenseReplica, 3) == Ranks{3, 11});
}

TEST_CASE("the V placement keeps embedding and head on one rank") {
  const Job job = job_on(1, 8, 8);
  const Plan plan = {.pp = 4, .vpp = 2, .schedule = Schedule::kZbv};
  CHECK(group_shape(job, plan, GroupKind::kEmbedding).size == 1);
}

TEST_CASE("the embedding group leaves out middle stages") {
  const Job job = job_on(1, 8, 8);
  const Plan plan = {.pp = 4, .schedule = Schedule::k1F1B};
  CHECK(group_ranks(job, plan, GroupKind::kEmbedding, 0) == Ranks{0, 6});
  CHECK(group_ranks(job, plan, GroupKind::kEmbedding, 2).empty());
}

}  // namespace
}  // namespace shardplan
