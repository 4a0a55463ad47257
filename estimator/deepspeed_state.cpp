// What a rank of DeepSpeed holds besides activations. Sources, read in deepspeedai/DeepSpeed at
// edaa7221 (0.19.6):
//   runtime/zero/stage_1_and_2.py  DeepSpeedZeroOptimizer: __init__ (bit16_groups_flat,
//       single_partition_of_fp32_groups), setup_buckets, _release_ipg_buffers, get_flat_partition,
//       step
//   runtime/zero/stage3.py         DeepSpeedZeroOptimizer_Stage3:
//       _create_fp16_partitions_with_defragmentation, _create_fp32_partitions,
//       _setup_for_real_optimizer (ipg_buckets, grad_partitions_flat_buffer), step
//   runtime/zero/partitioned_param_coordinator.py  fetch_sub_module, release_sub_module
//   runtime/zero/config.py         DeepSpeedZeroConfig: the defaults of the bucket sizes
// Letters: N parameters, S data-parallel ranks.
#include <algorithm>
#include <utility>

#include "estimator/eager_rows.h"
#include "estimator/units.h"

namespace shardplan {
namespace {

struct DeepspeedState {
  const Job& job;
  const Plan& plan;
  std::int64_t n = 0;
  std::int64_t share = 0;          // N/S, rounded up
  std::int64_t largest_layer = 0;  // parameters
  DType dtype = DType::kBf16;
  StateRowList rows = {};
};

void add_parameters(DeepspeedState& state) {
  const bool shards = state.plan.zero >= 3;
  state.rows.add({.component = Component::kParameters,
                  .name = "parameters",
                  .elements = shards ? state.share : state.n,
                  .dtype = state.dtype,
                  .first = Phase::kStartUp,
                  .formula = "N (N/S under ZeRO-3): one flat bit16 tensor, parameters are views"});
  state.rows.add({.component = Component::kOptimizer,
                  .name = "optimizer.fp32_partition",
                  .elements = state.share,
                  .dtype = DType::kFp32,
                  .first = Phase::kStartUp,
                  .formula = "N/S: clone of this rank's partition in fp32"});
  for (const char* name : {"optimizer.exp_avg", "optimizer.exp_avg_sq"}) {
    state.rows.add({.component = Component::kOptimizer,
                    .name = name,
                    .elements = state.share,
                    .dtype = DType::kFp32,
                    .made_by_first_step = true,
                    .formula = "N/S: of FusedAdam, made by its first step"});
  }
}

// ZeRO-1 keeps every .grad until the step; ZeRO-2 this rank's part of them (grads_in_partition);
// ZeRO-3 one flat buffer from the start.
void add_gradients(DeepspeedState& state) {
  const std::int64_t zero = state.plan.zero;
  const Phase first = zero >= 3 ? Phase::kStartUp : Phase::kBackward;
  state.rows.add({.component = Component::kGradients,
                  .name = "gradients",
                  .elements = zero >= 2 ? state.share : state.n,
                  .dtype = state.dtype,
                  .first = first,
                  .last = zero >= 3 ? Phase::kIdle : Phase::kOptimizer,
                  .formula = "N under ZeRO-1, N/S under ZeRO-2 and 3"});
  state.rows.add({.component = Component::kGradients,
                  .name = "gradients.of_one_layer",
                  .elements = zero >= 2 ? state.largest_layer : 0,
                  .dtype = state.dtype,
                  .first = Phase::kBackward,
                  .last = Phase::kBackward,
                  .formula = "n: .grad of the layer whose backward runs, before the bucket"});
}

void add_buckets(DeepspeedState& state) {
  const FrameworkProfile& profile = state.job.profile;
  const bool whole_step = state.plan.zero >= 3;
  const bool contiguous = state.plan.zero >= 2;
  state.rows.add({.component = Component::kCommunication,
                  .name = "reduce_bucket",
                  .elements = contiguous ? profile.reduce_bucket_elements : 0,
                  .dtype = state.dtype,
                  .copies = profile.overlap_grad_reduce && !whole_step ? 2 : 1,
                  .first = whole_step ? Phase::kStartUp : Phase::kBackward,
                  .last = whole_step ? Phase::kIdle : Phase::kReduction,
                  .formula = "reduce_bucket_size: contiguous ipg buffer, twice with overlap_comm "
                             "(ZeRO-3: one, for good)"});
  state.rows.add({.component = Component::kCommunication,
                  .name = "reduce_bucket",
                  .elements = contiguous ? 0 : std::min(profile.reduce_bucket_elements, state.n),
                  .dtype = state.dtype,
                  .first = Phase::kReduction,
                  .last = Phase::kReduction,
                  .formula = "min(reduce_bucket_size, N): gradients flattened to be reduced"});
  if (!whole_step) {
    return;
  }
  state.rows.add({.component = Component::kParameters,
                  .name = "gathered_parameters",
                  .elements = std::min(state.n, profile.max_live_parameters),
                  .dtype = state.dtype,
                  .first = Phase::kForward,
                  .last = Phase::kBackward,
                  .formula = "min(N, stage3_max_live_parameters): gathered and not yet released"});
  state.rows.add({.component = Component::kCommunication,
                  .name = "prefetch_bucket",
                  .elements = std::min(state.n, profile.prefetch_bucket_elements),
                  .dtype = state.dtype,
                  .first = Phase::kForward,
                  .last = Phase::kBackward,
                  .formula = "min(N, stage3_prefetch_bucket_size): the next all-gather"});
}

void add_step(DeepspeedState& state) {
  const bool flattens = state.plan.zero <= 2;
  state.rows.add({.component = Component::kTemporaries,
                  .name = "step.flat_gradients",
                  .elements = flattens ? state.share : 0,
                  .dtype = state.dtype,
                  .first = Phase::kOptimizer,
                  .last = Phase::kOptimizer,
                  .formula = "N/S: flatten(averaged_gradients)"});
  state.rows.add({.component = Component::kTemporaries,
                  .name = "step.fp32_gradients",
                  .elements = state.share,
                  .dtype = DType::kFp32,
                  .first = Phase::kOptimizer,
                  .last = Phase::kOptimizer,
                  .formula = "N/S: single_grad_partition, gradients in fp32"});
}

}  // namespace

std::vector<StateRow> deepspeed_state_rows(const Job& job, const Plan& plan,
                                           const StageTensors& tensors) {
  const std::int64_t ranks = dense_shard_size(job, plan);
  DeepspeedState state{.job = job,
                       .plan = plan,
                       .n = tensors.dense,
                       .share = div_ceil(tensors.dense, ranks),
                       .largest_layer = tensors.largest_layer_dense,
                       .dtype = activation_dtype(plan.precision)};
  add_parameters(state);
  add_gradients(state);
  add_buckets(state);
  add_step(state);
  state.rows.add({.component = Component::kWorkspace,
                  .name = "cublas_workspace",
                  .elements = job.profile.fixed_workspace_bytes,
                  .dtype = DType::kBool,
                  .copies = 2,
                  .formula = "one of the forward's thread, one of autograd's"});
  return std::move(state.rows.rows);
}

}  // namespace shardplan
