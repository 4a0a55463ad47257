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
// Letters: N parameters, S data-parallel ranks, R the bucket's elements.
#include "estimator/deepspeed_state.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "estimator/eager_rows.h"
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
    add(Component::kGradients, "gradients.reduced",
        std::max(buckets.first_partition, buckets.flat > buckets.elements ? buckets.flat : 0),
        Phase::kReduction, Phase::kReduction,
        "whole tensors that a first rank's N/S reaches into, or the flat copy of one beyond R; "
        "for others as much has been freed before");
  }
  add(Component::kGradients, "gradients.partition", buckets.partition, Phase::kGradientNorm,
      Phase::kOptimizer, "whole tensors that this rank's N/S reaches into: averaged_gradients");
}

// ZeRO-3 gathers on a stream of its own where it overlaps.
void add_gathers(DeepspeedState& state) {
  const FrameworkProfile& profile = state.job.profile;
  if (state.plan.zero < 3 || state.share == state.n) {
    return;
  }
  const AllocationStream stream = overlaps_collectives(state.job, state.plan)
                                      ? AllocationStream::kGather
                                      : AllocationStream::kCompute;
  state.rows.add({.component = Component::kParameters,
                  .name = "gathered_parameters",
                  .elements = std::min(state.n, profile.max_live_parameters),
                  .dtype = state.dtype,
                  .first = Phase::kForward,
                  .last = Phase::kBackward,
                  .formula = "min(N, stage3_max_live_parameters): gathered and not yet released",
                  .stream = stream});
  state.rows.add({.component = Component::kCommunication,
                  .name = "prefetch_bucket",
                  .elements = std::min(state.n, profile.prefetch_bucket_elements),
                  .dtype = state.dtype,
                  .first = Phase::kForward,
                  .last = Phase::kBackward,
                  .formula = "min(N, stage3_prefetch_bucket_size): the next all-gather",
                  .stream = stream});
}

// Parameters that the rank updates at once. ZeRO-3 goes from one sub-group to the next (stage3.py,
// step), each closed by the tensor with which its parts on this rank reach sub_group_size elements
// (_create_fp16_sub_groups): the default of config.py, and at most the table beyond it.
std::int64_t updated_at_once(const DeepspeedState& state) {
  constexpr std::int64_t kSubGroup = 1'000'000'000;
  const std::int64_t ranks = div_ceil(state.n, state.share);
  const std::int64_t table = div_ceil(state.job.model.vocab * state.job.model.hidden, ranks);
  return state.plan.zero >= 3 ? std::min(state.share, kSubGroup + table) : state.share;
}

// What the overflow check needs beyond what follows it.
void add_overflow_check(DeepspeedState& state, std::int64_t updated) {
  const std::int64_t check_bytes =
      deepspeed_check(state.job, state.plan, state.buckets, state.n).peak_bytes();
  const std::int64_t step_bytes = updated * (bytes_of(state.dtype) + bytes_of(DType::kFp32));
  state.rows.add({.component = Component::kTemporaries,
                  .name = kOverflowCheckRow,
                  .elements = std::max<std::int64_t>(0, check_bytes - step_bytes),
                  .dtype = DType::kBool,
                  .first = Phase::kOptimizer,
                  .last = Phase::kOptimizer,
                  .formula =
                      "11 bytes of the largest tensor's part (ZeRO-1: and the buckets), less "
                      "the flat and the fp32 gradients that follow"});
}

void add_step(DeepspeedState& state) {
  const std::int64_t updated = updated_at_once(state);
  state.rows.add({.component = Component::kTemporaries,
                  .name = "step.flat_gradients",
                  .elements = updated,
                  .dtype = state.dtype,
                  .first = Phase::kOptimizer,
                  .last = Phase::kOptimizer,
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

// The model's tensors in the order in which the optimizer has them in one flat tensor.
std::vector<std::int64_t> tensors_in_order(const ModelSpec& model) {
  const std::int64_t query = model.hidden * model.num_heads * model.head_dim;
  const std::int64_t key = model.hidden * model.num_kv_heads * model.head_dim;
  const std::int64_t ffn = model.hidden * model.ffn;
  const std::array layer = {query, key, key, query, ffn, ffn, ffn, model.hidden, model.hidden};
  const std::int64_t table = model.vocab * model.hidden;
  std::vector<std::int64_t> tensors = {table};
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    tensors.insert(tensors.end(), layer.begin(), layer.end());
  }
  tensors.push_back(model.hidden);
  if (!model.tied_embeddings) {
    tensors.push_back(table);
  }
  return tensors;
}

// What whole tensors have that a rank's part, `share` elements in a row, reaches into.
void set_partitions(const std::vector<std::int64_t>& tensors, std::int64_t share,
                    DeepspeedBuckets& buckets) {
  std::int64_t held = 0;   // of tensors [first, next)
  std::int64_t begin = 0;  // where tensor `first` begins
  std::int64_t end = 0;    // where tensor `next` begins
  std::size_t first = 0;
  std::size_t next = 0;
  for (std::int64_t at = 0; first < tensors.size(); at += share) {
    while (next < tensors.size() && end < at + share) {
      held += tensors[next];
      end += tensors[next++];
    }
    buckets.partition = std::max(buckets.partition, held);
    buckets.first_partition = first == 0 ? buckets.partition : buckets.first_partition;
    while (first < next && begin + tensors[first] <= at + share) {
      held -= tensors[first];
      begin += tensors[first++];
    }
  }
}

}  // namespace

DeepspeedCheck deepspeed_check(const Job& job, const Plan& plan, const DeepspeedBuckets& buckets,
                               std::int64_t parameters) {
  if (plan.zero == 3) {
    return {};
  }
  const std::int64_t share = div_ceil(parameters, dense_shard_size(job, plan));
  const bool holds_buckets = plan.zero == 1 && share < parameters;
  return {.elements = std::min(buckets.largest_tensor, share),
          .buckets_bytes =
              holds_buckets ? buckets.elements * bytes_of(activation_dtype(plan.precision)) : 0};
}

bool overlaps_collectives(const Job& job, const Plan& plan) {
  return job.profile.overlap_grad_reduce || plan.zero == 3;
}

DeepspeedBuckets deepspeed_buckets(const Job& job, const Plan& plan) {
  const std::vector<std::int64_t> tensors = tensors_in_order(job.model);
  const std::int64_t n = std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0});
  const std::int64_t bucket = job.profile.reduce_bucket_elements;
  const bool has_two = job.profile.overlap_grad_reduce && plan.zero < 3;
  DeepspeedBuckets buckets{.elements = (has_two ? 2 : 1) * bucket,
                           .flat = std::max(std::min(bucket, n), std::ranges::max(tensors)),
                           .largest_tensor = std::ranges::max(tensors),
                           .fills = n > bucket};
  set_partitions(tensors, div_ceil(n, dense_shard_size(job, plan)), buckets);
  return buckets;
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
