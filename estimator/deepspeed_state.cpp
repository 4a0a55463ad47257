// Sources, read in deepspeedai/DeepSpeed at edaa7221 (0.19.6):
//   runtime/zero/stage_1_and_2.py  DeepSpeedZeroOptimizer: __init__ (bit16_groups_flat,
//       single_partition_of_fp32_groups), _release_ipg_buffers, get_flat_partition, step
//   runtime/zero/stage3.py         DeepSpeedZeroOptimizer_Stage3:
//       _create_fp16_partitions_with_defragmentation, _create_fp32_partitions,
//       _setup_for_real_optimizer (ipg_buckets, grad_partitions_flat_buffer), step
//   runtime/zero/partitioned_param_coordinator.py  fetch_sub_module, release_sub_module
//   runtime/zero/config.py         DeepSpeedZeroConfig: the defaults of the bucket sizes
// Letters: N parameters, S data-parallel ranks, R the bucket's elements.
#include "estimator/deepspeed_state.h"

#include <algorithm>
#include <utility>

#include "estimator/block_rows.h"
#include "estimator/deepspeed_buckets.h"
#include "estimator/estimate.h"
#include "estimator/units.h"

namespace shardplan {
namespace {

struct DeepspeedState {
  const Job& job;
  const Plan& plan;
  std::int64_t n = 0;
  std::int64_t share = 0;  // N/S, rounded up
  DType dtype = DType::kBf16;
  DeepspeedBuckets buckets = deepspeed_buckets(job, plan);
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

// What backward passes hold of gradients and buckets stands among the rows of blocks. ZeRO-1
// reduces when all are there; ZeRO-3 has one flat buffer and one bucket from the start.
void add_gradients(DeepspeedState& state) {
  const DeepspeedBuckets& buckets = state.buckets;
  const auto add = [&](Component component, std::string_view name, std::int64_t elements,
                       Phase first, Phase last, std::string_view formula) {
    state.rows.add({.component = component,
                    .name = name,
                    .elements = elements,
                    .dtype = state.dtype,
                    .first = first,
                    .last = last,
                    .formula = formula});
  };
  if (state.plan.zero == 3) {
    add(Component::kGradients, "gradients", state.share, Phase::kStartUp, Phase::kIdle,
        "N/S: grad_partitions_flat_buffer");
    add(Component::kCommunication, "reduce_bucket", state.job.profile.reduce_bucket_elements,
        Phase::kStartUp, Phase::kIdle, "R: contiguous ipg buffer");
    return;
  }
  if (state.plan.zero == 1) {
    add(Component::kGradients, "gradients", state.n, Phase::kReduction, Phase::kReduction,
        "N: every .grad, when the reduction begins");
    add(Component::kCommunication, "reduce_bucket", buckets.elements, Phase::kReduction,
        Phase::kReduction, "R: contiguous ipg buffer");
    add(Component::kGradients, "gradients.reduced", buckets.reduction, Phase::kReduction,
        Phase::kReduction,
        "flat copies and whole tensors that this rank's N/S reaches into, less what was freed");
  }
  add(Component::kGradients, "gradients.partition", buckets.partition, Phase::kGradientNorm,
      Phase::kOptimizer, "whole tensors that this rank's N/S reaches into: averaged_gradients");
  state.rows.rows.back().ends_before_made = true;
}

// Whether what one pass gathers stays for the next (max_reuse_distance, 1e9 elements) and leaves
// room for the embedding's table, which the first call of a backward pass then asks for: nothing
// else is missing (fetch_sub_module, __params_to_release).
bool stays_gathered(const DeepspeedState& state) {
  constexpr std::int64_t kReuseElements = 1'000'000'000;
  const ModelSpec& model = state.job.model;
  const std::int64_t kept = state.n - (model.tied_embeddings ? 0 : model.vocab * model.hidden);
  return state.job.profile.prefetch_bucket_elements > 0 &&
         kept < std::min(state.job.profile.max_live_parameters, kReuseElements);
}

// The first microbatch of all, whose calls are recorded, has one parameter gathered at a time.
void add_gathers(DeepspeedState& state) {
  const FrameworkProfile& profile = state.job.profile;
  if (state.plan.zero < 3 || state.share == state.n) {
    return;
  }
  const bool stays = stays_gathered(state);
  const bool is_alone = num_microbatches(state.job, state.plan) == 1;
  const std::int64_t gathered = stays ? state.n : std::min(state.n, profile.max_live_parameters);
  const std::int64_t at_once = std::min(gathered, state.buckets.largest_tensor);
  const auto add = [&](Component component, std::string_view name, std::int64_t elements,
                       bool is_recorded, std::string_view formula) {
    state.rows.add({.component = component,
                    .name = name,
                    .elements = elements,
                    .dtype = state.dtype,
                    .first = Phase::kForward,
                    .last = Phase::kBackward,
                    .not_in_first_step = is_recorded && is_alone,
                    .formula = formula,
                    .stream = overlaps_collectives(state.job, state.plan)
                                  ? AllocationStream::kGather
                                  : AllocationStream::kCompute});
  };
  add(Component::kParameters, "gathered_tensor", at_once, false,
      "the largest tensor: of those gathered, one at a time at least");
  add(Component::kParameters, "gathered_parameters", gathered - at_once, true,
      "min(N, stage3_max_live_parameters), N where the passes keep all: beyond that tensor");
  add(Component::kCommunication, "prefetch_bucket",
      stays ? 0 : std::min(state.n, profile.prefetch_bucket_elements), true,
      "min(N, stage3_prefetch_bucket_size): the next all-gather");
}

// Parameters that the rank updates at once.
std::int64_t updated_at_once(const DeepspeedState& state) {
  if (state.plan.zero < 3) {
    return state.share;
  }
  return std::ranges::max(deepspeed_sub_groups(state.job, state.plan));
}

// Before gradients are flattened ZeRO-1 and 2 look for infinities in one tensor's part after the
// other: an fp32 copy, masks of either kind and of both, and that in fp32 (_has_inf_or_nan). Bytes
// for the largest.
std::int64_t overflow_check_bytes(const DeepspeedState& state) {
  constexpr std::int64_t kBytesPerElement = 4 + 1 + 1 + 1 + 4;
  return state.plan.zero == 3
             ? 0
             : kBytesPerElement * std::min(state.buckets.largest_tensor, state.share);
}

// What the overflow check needs beyond what follows it.
void add_overflow_check(DeepspeedState& state, std::int64_t updated) {
  const std::int64_t check_bytes = overflow_check_bytes(state);
  const std::int64_t step_bytes = updated * (bytes_of(state.dtype) + bytes_of(DType::kFp32));
  state.rows.add({.component = Component::kTemporaries,
                  .name = "step.overflow_check",
                  .elements = std::max<std::int64_t>(0, check_bytes - step_bytes),
                  .dtype = DType::kBool,
                  .first = Phase::kOptimizer,
                  .last = Phase::kOptimizer,
                  .ends_before_made = true,
                  .formula = "11 bytes of the largest tensor's part, less the flat and the fp32 "
                             "gradients that follow"});
}

void add_step(DeepspeedState& state) {
  const std::int64_t updated = updated_at_once(state);
  state.rows.add({.component = Component::kTemporaries,
                  .name = "step.flat_gradients",
                  .elements = updated,
                  .dtype = state.dtype,
                  .first = Phase::kOptimizer,
                  .last = Phase::kOptimizer,
                  .ends_before_made = true,
                  .formula = "N/S (ZeRO-3: a sub-group): flatten(averaged_gradients)"});
  state.rows.add({.component = Component::kTemporaries,
                  .name = "step.fp32_gradients",
                  .elements = updated,
                  .dtype = DType::kFp32,
                  .first = Phase::kOptimizer,
                  .last = Phase::kOptimizer,
                  .formula = "N/S (ZeRO-3: a sub-group): gradients in fp32"});
  add_overflow_check(state, updated);
}

}  // namespace

std::vector<std::int64_t> deepspeed_sub_groups(const Job& job, const Plan& plan) {
  constexpr std::int64_t kSubGroup = 1'000'000'000;
  const std::int64_t ranks = dense_shard_size(job, plan);
  std::vector<std::int64_t> groups = {0};
  for (const std::int64_t elements : deepspeed_tensors(job.model)) {
    if (groups.back() >= kSubGroup) {
      groups.push_back(0);
    }
    groups.back() += div_ceil(elements, ranks);
  }
  return groups;
}

bool deepspeed_flattens_on_gpu(const Job& job, const Plan& plan, std::int64_t parameters) {
  const std::int64_t bytes = bytes_of(activation_dtype(plan.precision)) * parameters;
  return 2 * bytes <=
         device_capacity_bytes(job.cluster) - job.cluster.gpu.context_bytes.value_or(0);
}

std::int64_t deepspeed_left_by_start_up(const Job& job, const Plan& plan, std::int64_t parameters) {
  const std::int64_t half = bytes_of(activation_dtype(plan.precision));
  const std::int64_t share = div_ceil(parameters, dense_shard_size(job, plan));
  const std::int64_t part = (half + bytes_of(DType::kFp32)) * share;
  return part + (plan.zero == 3 || deepspeed_flattens_on_gpu(job, plan, parameters)
                     ? half * parameters
                     : 0);
}

std::vector<StateRow> deepspeed_state_rows(const Job& job, const Plan& plan,
                                           const StageTensors& tensors) {
  const std::int64_t ranks = dense_shard_size(job, plan);
  DeepspeedState state{.job = job,
                       .plan = plan,
                       .n = tensors.dense,
                       .share = div_ceil(tensors.dense, ranks),
                       .dtype = activation_dtype(plan.precision)};
  add_parameters(state);
  add_gradients(state);
  add_gathers(state);
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
