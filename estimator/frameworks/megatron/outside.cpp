// Which groups exist and which run collectives was read in Megatron-LM core_v0.16.1
// (core/parallel_state.py, core/distributed, core/optimizer, core/transformer/moe).
#include "estimator/frameworks/megatron/outside.h"

#include <algorithm>
#include <array>

#include "estimator/frameworks/megatron/dispatch_buffers.h"
#include "estimator/frameworks/megatron/dispatch_cost.h"
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/shared_streams.h"
#include "estimator/frameworks/megatron/user_buffers.h"
#include "estimator/frameworks/pieces/communicators.h"
#include "estimator/frameworks/pieces/memory_model.h"

namespace shardplan::megatron {
namespace {

// Even where the tensor-parallel group is the rank alone: the trainer's broadcast of a batch
// (get_batch_on_this_tp_rank), and the sums of the vocabulary-parallel loss.
bool uses_tp_alone(const GroupGrid& grid) {
  const bool is_local = grid.job.profile.memory_model == MemoryModel::kMegatronLocal;
  return is_local ? grid.last_stage : grid.end_stage;
}

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
std::array<Communicator, 27> communicators(const GroupGrid& grid) {
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
      {"tp", plan.tp, {.ring = plan.tp > 1 || uses_tp_alone(grid)}},
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

void add_user_buffers(const Job& job, const Plan& plan, OutsideParts& parts) {
  if (!has_user_buffers(job, plan)) {
    return;
  }
  for (const UserBuffer& buffer : user_buffers(job, plan)) {
    parts.add({.prefix = "userbuffers.",
               .name = buffer.name,
               .bytes = buffer.bytes,
               .formula =
                   "b s / c h elements, fp8 where it gathers fp8, in pages of 2 MiB; what is "
                   "gathered into it stays counted in the allocator, too",
               .origin = Origin::kDocumented});
  }
}

void add_dispatch_buffer(const Job& job, const Plan& plan, OutsideParts& parts) {
  const std::int64_t bytes = dispatch_buffer_bytes(job, plan);
  if (bytes > 0) {
    parts.add({.name = "dispatch_buffer",
               .bytes = bytes,
               .formula = "of tokens on their way to experts and back, one for all layers",
               .origin = Origin::kDocumented});
  }
}

// Of the allocator's, which gives them back where it finds no other memory.
void add_shared_streams(const Job& job, const Plan& plan, std::int64_t pp_rank,
                        OutsideParts& parts) {
  const std::int64_t bytes = shared_stream_bytes(job, plan, pp_rank);
  if (bytes > 0) {
    parts.add({.component = Component::kWorkspace,
               .name = "shared_experts_streams",
               .bytes = bytes,
               .formula = "free blocks of the stream that the shared experts of each layer have, "
                          "which serve no other layer; reserved, not allocated",
               .origin = Origin::kDocumented});
  }
}

// Which layers are replayed, as one number below this.
constexpr std::int64_t kMostReplayed = 1024;
std::int64_t replayed_layers(const Recompute& recompute) {
  const bool is_full = recompute.granularity == RecomputeGranularity::kFull;
  if (is_full && recompute.method == RecomputeMethod::kBlock) {
    return 1 + std::min(recompute.num_layers, kMostReplayed - 2);
  }
  const bool is_moe =
      recompute.granularity == RecomputeGranularity::kSelective && recompute.modules.moe;
  return is_full || is_moe ? 1 : 0;
}

}  // namespace

void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts) {
  add_process(job, parts);
  add_communicators(job, communicators({.job = job, .plan = plan, .pp_rank = pp_rank}),
                    job.profile.eager_communicators ? Creation::kAll : Creation::kUsed, parts);
  add_user_buffers(job, plan, parts);
  add_dispatch_buffer(job, plan, parts);
  add_shared_streams(job, plan, pp_rank, parts);
}

// Buffers that collectives and HybridEP keep have the size of a microbatch, and so have the blocks
// of shared experts' streams, of each layer.
SeenByOutside seen_by_outside(const Job& job, const Plan& plan) {
  const bool has_buffers =
      has_user_buffers(job, plan) || job.profile.moe_dispatcher == MoeDispatcher::kHybridEp;
  const bool has_streams = has_shared_streams(job);
  const std::int64_t replayed = has_streams ? replayed_layers(plan.recompute) : 0;
  const std::int64_t sizes = 2 * plan.micro_batch + (plan.sequence_parallel ? 1 : 0);
  return {.chunks = std::min<std::int64_t>(plan.vpp, 2),
          .layers = has_streams,
          .microbatch = has_buffers || has_streams ? sizes * kMostReplayed + replayed : 0};
}

}  // namespace shardplan::megatron
