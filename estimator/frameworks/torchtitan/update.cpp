#include "estimator/frameworks/torchtitan/update.h"

#include <algorithm>

#include "estimator/frameworks/pieces/adamw_kernels.h"
#include "estimator/frameworks/pieces/data_parallel.h"
#include "estimator/frameworks/pieces/fsdp2_copies.h"
#include "estimator/frameworks/torchtitan/blocks.h"
#include "estimator/frameworks/torchtitan/host.h"
#include "estimator/frameworks/torchtitan/parameters.h"
#include "estimator/plan/number.h"
#include "estimator/time/sharding_time.h"

namespace shardplan::torchtitan {
namespace {

// bf16 gradients into the fp32 input of the reduce-scatter.
constexpr KernelBytes kChunked = {.converted = 6};

// Every layer has a collective of its own, embedding one, and head and norm one, and each takes the
// steps of its ring (torchtitan v0.2.2 models/llama3/infra/parallelize.py, apply_fsdp).
double num_collectives(const Job& job, const Plan& plan) {
  return plan.zero == 3 ? number(std::ssize(job.model.layers)) / number(plan.pp) + 2 : 1;
}

void add_copies(RankUpdate& total, const Job& job, const Plan& plan, const GroupParameters& part,
                const GroupShape& shard) {
  const double whole = number(part.elements);
  if (plan.zero != 3) {
    total.reduce_copies_s +=
        replicates(job, plan)
            ? elementwise_s(job.cluster.gpu, {.streamed = kBucketPasses * 4 * whole})
            : 0;
    return;
  }
  const double mine = whole / number(shard.size);
  total.gather_copies_s += elementwise_s(
      job.cluster.gpu, whole * kFsdp2Gathered + mine * (kFsdp2CastShard + kFsdp2ShardToGather));
  total.reduce_copies_s += elementwise_s(job.cluster.gpu, whole * kChunked);
}

double exposed_zero_3_s(const Job& job, const Plan& plan, const RankUpdate& update,
                        double microbatches, const MicrobatchWork& work) {
  if (!gathers_once(job.profile, plan)) {
    const double again = job.profile.reshard_after_forward == ReshardAfterForward::kNever ? 0 : 1;
    return microbatches * exposed_every_microbatch_s(update, work, again);
  }
  const double copies_s = update.gather_copies_s + update.reduce_copies_s;
  return beside_compute_s(update.gather, work.forward_s) +
         (update.reduce + update.replica).alone_s +
         std::max(0.0, copies_s - microbatches * work.host_s);
}

// DDP reduces in every microbatch: train.py has no no_sync around the first ones. The embedding's
// gradient is the last.
double exposed_s(const Job& job, const Plan& plan, const RankUpdate& update, double microbatches,
                 const MicrobatchWork& work) {
  if (plan.zero == 3) {
    return exposed_zero_3_s(job, plan, update, microbatches, work);
  }
  const TitanParameters p = titan_parameters(job, plan, !job.model.has_dense_layers());
  const double layers = number(job.model.num_layers()) * number(p.layer + p.experts);
  const double table = number(p.embedding);
  return microbatches *
         visible_reduction_s(update, work, table / (layers + table + number(p.head)));
}

// torchtitan's weights are the main parameters, and its gradients are scaled by a kernel of their
// own: 4 + 8 + 28.
KernelBytes step_kernels(const Job& job, const Plan& plan) {
  OptimizerBytes bytes = optimizer_bytes(job, plan);
  if (layer_parameter_dtype(job.model) == DType::kBf16) {  // all but the ends
    bytes = {.grad = bytes.grad / 2, .moments = bytes.moments / 2, .master = bytes.master / 2};
  }
  return {.streamed = 4 * bytes.grad + 2 * (bytes.moments + bytes.master)};
}

}  // namespace

constinit const UpdateTimes kUpdate = {.has_wide_collectives = true,
                                       .num_collectives = num_collectives,
                                       .add_copies = add_copies,
                                       .gathers_once = gathers_once,
                                       .exposed_s = exposed_s,
                                       .step_kernels = step_kernels};

}  // namespace shardplan::torchtitan
