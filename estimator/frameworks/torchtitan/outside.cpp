#include "estimator/frameworks/torchtitan/outside.h"

#include <algorithm>
#include <array>
#include <span>

#include "estimator/frameworks/pieces/communicators.h"

namespace shardplan::torchtitan {
namespace {

// Groups of torchtitan (ParallelDims.build_mesh). A dimension of one rank has a fake backend, one
// of all ranks is the default process group (torch/distributed/device_mesh.py,
// _init_process_groups), and others have a communicator each, even where they have the same ranks.
// All are used: world by the broadcast of the seed (set_determinism), pp by the norm of the
// gradients (clip_grad_norm_), batch by the count of tokens, loss by the logged loss (train.py), cp
// by the all-to-all of key and value gradients (_templated_ring_attention_backward). With ep
// experts have a mesh of their own, over which their tokens move and the norm of their gradients is
// summed (distributed/utils.py, _clip_grad_norm_with_ep).
std::array<Communicator, 11> communicators(const GroupGrid& grid) {
  const Plan& plan = grid.plan;
  const std::int64_t shards = grid.dp / plan.dp_replicate * plan.cp;
  const std::int64_t etp = plan.ep > 1 ? plan.etp : 1;
  const std::int64_t expert_shards = plan.ep > 1 ? shards * plan.tp / (plan.ep * etp) : 1;
  std::array<Communicator, 11> groups = {{
      {"world", grid.world, {.ring = true}},
      {"pp", plan.pp, with_ring(grid.pipeline())},
      {"batch", grid.dp, {.ring = true}},
      {"loss", grid.dp * plan.cp, {.ring = true}},
      {"dp_replicate", plan.dp_replicate, {.ring = true}},
      {"fsdp", shards, {.ring = true}},
      {"cp", plan.cp, with_ring(grid.all_peers(GroupKind::kCp))},
      {"tp", plan.tp, {.ring = true}},
      {"ep", plan.ep, with_ring(grid.all_peers(GroupKind::kEp))},
      {"efsdp", expert_shards, {.ring = true}},
      {"etp", etp, {.ring = true}},
  }};
  for (Communicator& group : std::span(groups).subspan(1)) {
    group.exists = group.ranks > 1 && group.ranks < grid.world;
    if (group.ranks == grid.world) {
      Connections& world = groups.front().connections;
      world.near_peers = std::max(world.near_peers, group.connections.near_peers);
      world.has_network_peers |= group.connections.has_network_peers;
    }
  }
  groups.front().exists = grid.world > 1;
  return groups;
}

}  // namespace

void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts) {
  add_process(job, parts);
  add_communicators(job, communicators({.job = job, .plan = plan, .pp_rank = pp_rank}),
                    Creation::kAll, parts);
}

}  // namespace shardplan::torchtitan
