#include "estimator/frameworks/transformers/outside.h"

#include <array>

#include "estimator/frameworks/pieces/communicators.h"
#include "estimator/frameworks/pieces/huggingface/model.h"
#include "estimator/frameworks/transformers/optimizer.h"
#include "estimator/plan/units.h"

namespace shardplan::transformers {
namespace {

// axolotl 067b021 integrations/expert_parallel/args.py expert_parallel_num_nvl_bytes; DeepEP v1.2.1
// csrc/kernels/configs.cuh NUM_WORKSPACE_BYTES.
constexpr std::int64_t kDeepEpBuffer = 256 * kMiB;
constexpr std::int64_t kDeepEpWorkspace = 32 * kMiB;

// A model that is loaded, of which no step is played, names its tensors.
std::int64_t managed_bytes(const Job& job, const Plan& plan) {
  eager::Graph graph(job.profile.fixed_workspace_bytes, job.cluster.gpu.num_sms);
  huggingface::Holder holder(graph);
  huggingface::CausalLm model(graph, holder, job, plan);
  model.build();
  const Optimizer optimizer(graph, holder, job, plan);
  std::int64_t bytes = 0;
  for (const eager::Parameter* parameter : model.trained()) {
    bytes += optimizer.managed_bytes(*parameter);
  }
  return bytes;
}

}  // namespace

// One process group: DDP and FSDP2's mesh have all ranks (accelerate 1.15 state.py PartialState,
// accelerator.py). A process by itself makes none. LLaMA-Factory's version 1 has two meshes of two
// dimensions: of their groups one sums losses, and under FSDP2 another gathers
// (accelerator/interface.py, DistributedInterface). Ulysses exchanges in a group of its own, and
// hybrid shards have a group of shards and one of replicas. FSDP2 beside tensor parallelism or a
// ring shards over a dimension of the mesh that is laid flat of two (dp_shard_cp); tensor
// parallelism alone is the world (torch/distributed/device_mesh.py).
void add_outside(const Job& job, const Plan& plan, std::int64_t pp_rank, OutsideParts& parts) {
  add_process(job, parts);
  const GroupGrid grid = {.job = job, .plan = plan, .pp_rank = pp_rank};
  const bool has_mesh = job.profile.loop == TrainerLoop::kFactoryV1;
  const bool rings = plan.cp > 1 && plan.cp_method != CpMethod::kA2a;
  const bool has_flat_mesh = plan.zero > 0 && (plan.tp > 1 || rings);
  const std::array<Communicator, 6> world = {
      {{"world", grid.world, {.ring = true}, grid.world > 1},
       {"data", grid.world, {.ring = true}, grid.world > 1 && has_mesh},
       {"cp", plan.cp, grid.all_peers(GroupKind::kCp), plan.cp > 1},
       {"tp", plan.tp, {.ring = true}, plan.tp > 1 && plan.tp < grid.world},
       {"shards",
        grid.world / plan.tp / plan.dp_replicate,
        {.ring = true},
        plan.dp_replicate > 1 || has_flat_mesh},
       {"replicas", plan.dp_replicate, {.ring = true}, plan.dp_replicate > 1}}};
  add_communicators(job, world, Creation::kAll, parts);
  if (plan.ep > 1) {
    parts.add({.component = Component::kCommunication,
               .name = "deepep.buffer",
               .bytes = kDeepEpBuffer + kDeepEpWorkspace,
               .formula = "256 MiB of tokens on their way, and 32 MiB of DeepEP's own",
               .origin = Origin::kCounted});
  }
  if (is_paged(job.optimizer)) {
    parts.add({.component = Component::kOptimizer,
               .name = "optimizer.managed",
               .bytes = managed_bytes(job, plan),
               .formula = "Nt: two paged moments of tensors of 100,000 elements and more",
               .origin = Origin::kCounted});
  }
}

SeenByOutside seen_by_outside(const Job& /*job*/, const Plan& /*plan*/) {
  return {};
}

}  // namespace shardplan::transformers
