// Which groups exist and which run collectives was read in Megatron-LM core_v0.16.1
// (core/parallel_state.py, core/distributed, core/optimizer, core/transformer/moe).
#include "estimator/frameworks/pieces/communicators.h"

#include <algorithm>
#include <span>

#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/user_buffers.h"
#include "estimator/plan/expert_routing.h"

namespace shardplan {
namespace {

Connections with_ring(Connections connections) {
  connections.ring = true;
  return connections;
}

}  // namespace

// Groups of core/parallel_state.py in the order of their creation. Every rank runs collectives on
// the world (barrier), on its gradient group, and on the group over which the gradient norm is
// reduced, even where such a group is the rank alone: dist_muon's is the world
// (layer_wise_optimizer.py, get_grad_norm). Delayed scaling in fp8 reduces the largest
// values over all ranks of the stage (get_amax_reduction_group; Transformer Engine v2.11
// pytorch/quantization.py, reduce_and_update_fp8_tensors: only where there are several), and a bias
// for the choice of experts counts their tokens there (moe/moe_utils.py, get_updated_expert_bias).
// Userbuffers meet in groups of their own
// (Transformer Engine v2.9 pytorch/module/base.py, initialize_ub, by NCCL as Megatron-core has it;
// common/comm_gemm_overlap/userbuffers/userbuffers-host.cpp: barriers of both).
std::array<Communicator, 27> megatron_communicators(const GroupGrid& grid) {
  const Plan& plan = grid.plan;
  const bool experts_apart = grid.has_experts && plan.ep > 1;
  const bool buffers = has_user_buffers(grid.job, plan);
  const bool hybrid = plan.dp_replicate > 1;
  const bool scales_later = uses_delayed_scaling(grid.job, plan);
  const ModelSpec& model = grid.job.model;
  const bool counts_tokens =
      model.moe.router_bias && std::ranges::any_of(model.layers, &LayerSpec::is_moe);
  const bool norm_by_model = plan.zero == 0 && grid.job.optimizer != OptimizerKind::kDistMuon;
  const std::int64_t stage = grid.world / plan.pp;
  const std::int64_t expert_ranks = plan.etp * plan.ep;
  const std::int64_t expert_dp = grid.size(GroupKind::kExpertDp);
  return {{
      {"world", grid.world, {.ring = true}},
      {"dp_cp", grid.dp * plan.cp, {.ring = true}},
      {"dp_cp_shard", grid.dp * plan.cp / plan.dp_replicate, {.ring = hybrid}, hybrid},
      {"dp", grid.dp, {}},
      {"cp", plan.cp, grid.context_parallel()},
      {"tp_pp", plan.tp * plan.pp, {.ring = norm_by_model}},
      {"tp", plan.tp, {.ring = plan.tp > 1 || grid.uses_tp_alone()}},
      {"pp", plan.pp, grid.pipeline()},
      grid.previous_stage(),
      grid.next_stage(),
      grid.pair("cp.previous", GroupKind::kCp, grid.ring_in_pairs()),
      grid.pair("cp.next", GroupKind::kCp, grid.ring_in_pairs()),
      {"embedding", plan.pp > 1 ? 2 : 1, {.ring = grid.embedding_is_shared()}, grid.end_stage},
      {"position_embedding", 1, {}, grid.first_stage},
      {"tp_dp_cp", stage, {.ring = counts_tokens || (scales_later && stage > 1)}},
      {"tp_dp", stage / plan.cp, {}},
      {"tp_cp", plan.tp * plan.cp, {.ring = grid.has_experts && plan.tp * plan.cp > 1}},
      {"ep", plan.ep,
       sends_tokens_once(grid.job.profile) ? Connections{} : grid.all_peers(GroupKind::kEp)},
      {"etp", plan.etp, {.ring = grid.has_experts && plan.etp > 1}},
      {"etp_ep", expert_ranks, {.ring = experts_apart}},
      {"etp_ep_pp", expert_ranks * plan.pp, {.ring = experts_apart && norm_by_model}},
      {"expert_dp", expert_dp, {.ring = experts_apart}},
      {"expert_dp_shard", expert_dp / plan.dp_replicate, {.ring = experts_apart && hybrid}, hybrid},
      {"expert_dp_replica", plan.dp_replicate, {.ring = hybrid}, hybrid},
      {"optimizer_instance", grid.world / plan.dp_replicate, {.ring = plan.zero > 0}},
      {"userbuffers_world", grid.world, {.ring = buffers}, buffers},
      {"userbuffers_tp", plan.tp, {.ring = buffers}, buffers && plan.tp < grid.world},
  }};
}

// Groups of ParallelContext (nanotron parallel/context.py), of which those of equal ranks are one,
// beside torch's default group and one more of all ranks. Each runs a collective: barriers, counts
// of parameters over tp and over pp, also where that is the rank alone, the norm over tp and pp,
// the loss over dp (trainer.py); tied weights have a group of their ranks
// (parallel/tied_parameters.py).
std::array<Communicator, 10> nanotron_communicators(const GroupGrid& grid) {
  const Plan& plan = grid.plan;
  const bool alone = plan.tp == 1 || plan.pp == 1 || grid.dp == 1;
  return {{
      {"default", grid.world, {.ring = true}},
      {"world", grid.world, {.ring = true}},
      {"tp", plan.tp, {.ring = true}, plan.tp > 1},
      {"dp", grid.dp, {.ring = true}, grid.dp > 1},
      {"pp", plan.pp, with_ring(grid.pipeline()), plan.pp > 1},
      grid.previous_stage(),
      grid.next_stage(),
      {"tp_pp", plan.tp * plan.pp, {.ring = true}, plan.tp > 1 && plan.pp > 1},
      {"embedding", 2, {.ring = true}, plan.pp > 2 && grid.embedding_is_shared()},
      {"alone", 1, {.ring = true}, alone},
  }};
}

// DeepSpeed's data-parallel group is a clone of the world (utils/groups.py, _clone_world_group);
// init_process_group gets a device, so that both have a communicator, even of one rank
// (comm/torch.py, init_process_group). The engine leaves that of the world unused; a trainer around
// it, as Hugging Face's, gathers the loss over it.
std::array<Communicator, 2> deepspeed_communicators(const GroupGrid& grid) {
  return {{{"world", grid.world, {.ring = true}}, {"dp", grid.dp, {.ring = true}}}};
}

// Groups of torchtitan (ParallelDims.build_mesh). A dimension of one rank has a fake backend, one
// of all ranks is the default process group (torch/distributed/device_mesh.py,
// _init_process_groups), and others have a communicator each, even where they have the same ranks.
// All are used: world by the broadcast of the seed (set_determinism), pp by the norm of the
// gradients (clip_grad_norm_), batch by the count of tokens, loss by the logged loss (train.py), cp
// by the all-to-all of key and value gradients (_templated_ring_attention_backward). With ep
// experts have a mesh of their own, over which their tokens move and the norm of their gradients is
// summed (distributed/utils.py, _clip_grad_norm_with_ep).
std::array<Communicator, 11> torchtitan_communicators(const GroupGrid& grid) {
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

}  // namespace shardplan
