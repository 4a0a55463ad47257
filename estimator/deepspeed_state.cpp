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

#include "estimator/block_rows.h"
#include "estimator/eager_rows.h"
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
                    .stream = overlaps_collectives(state.job) ? AllocationStream::kGather
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

// What the overflow check needs beyond what follows it.
void add_overflow_check(DeepspeedState& state, std::int64_t updated) {
  const std::int64_t check_bytes =
      deepspeed_check_bytes(state.job, state.plan, state.buckets, state.n);
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

std::vector<FlatRange> flat_ranges(const std::vector<std::int64_t>& tensors) {
  std::vector<FlatRange> ranges;
  std::int64_t begin = 0;
  for (const std::int64_t elements : tensors) {
    ranges.push_back({.begin = begin, .end = begin + elements});
    begin += elements;
  }
  return ranges;
}

// Which rank's part, `share` elements in a row, reaches into most, in whole tensors.
void set_fullest(std::span<const FlatRange> tensors, std::int64_t share,
                 DeepspeedBuckets& buckets) {
  std::size_t first = 0;
  std::size_t next = 0;
  for (std::int64_t at = 0; first < tensors.size(); at += share) {
    while (next < tensors.size() && tensors[next].begin < at + share) { ++next; }
    const std::int64_t held = tensors[next - 1].end - tensors[first].begin;
    if (held > buckets.partition) {
      buckets.partition = held;
      buckets.fullest_rank = at / share;
    }
    while (first < next && tensors[first].end <= at + share) { ++first; }
  }
}

// deepspeed_tensors in the order in which a backward pass makes their gradients; a table that both
// ends use at its end.
std::vector<std::size_t> backward_order(const ModelSpec& model) {
  constexpr std::array<std::size_t, 9> kLayer = {6, 5, 4, 8, 3, 2, 1, 0, 7};
  const std::size_t final_norm = 1 + kLayer.size() * model.layers.size();
  std::vector<std::size_t> order;
  if (!model.tied_embeddings) {
    order.push_back(final_norm + 1);
  }
  order.push_back(final_norm);
  for (std::size_t layer = model.layers.size(); layer-- > 0;) {
    for (const std::size_t i : kLayer) { order.push_back(1 + kLayer.size() * layer + i); }
  }
  order.push_back(0);
  return order;
}

struct Reduction {
  const std::vector<FlatRange>& tensors;
  std::int64_t most = 0;   // R
  std::int64_t ranks = 0;  // S
  int zero = 0;

  std::int64_t share() const { return div_ceil(tensors.back().end, ranks); }
  std::int64_t flat_copy(const std::vector<std::size_t>& bucket) const;
};

// ZeRO-3 copies every bucket but one of a single tensor that ranks divide
// (reduce_scatter_coalesced).
std::int64_t Reduction::flat_copy(const std::vector<std::size_t>& bucket) const {
  std::vector<FlatRange> ranges;
  std::int64_t padded = 0;
  for (const std::size_t i : bucket) {
    ranges.push_back(tensors[i]);
    padded += round_up(tensors[i].end - tensors[i].begin, ranks);
  }
  if (zero == 3) {
    const bool in_place = bucket.size() == 1 && padded == ranges.front().end - ranges.front().begin;
    return in_place ? 0 : padded;
  }
  std::int64_t largest = 0;
  for (const std::int64_t elements : deepspeed_flat_copies(ranges, share(), most)) {
    largest = std::max(largest, elements);
  }
  return largest;
}

// A bucket is reduced when a gradient finds no room in it, and at the end.
void set_flat_copies(const Reduction& reduction, const std::vector<std::size_t>& order,
                     DeepspeedBuckets& buckets) {
  const std::size_t head = reduction.tensors.size() - order.size();  // counts from the first
  std::vector<std::size_t> bucket;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const FlatRange& tensor = reduction.tensors[order[i]];
    const std::int64_t added = tensor.end - tensor.begin;
    if (elements + added > reduction.most && !bucket.empty()) {
      std::int64_t& flat = i < 2 + head           ? buckets.flat_in_head
                           : i + 1 < order.size() ? buckets.flat_in_layers
                                                  : buckets.flat_at_end;
      flat = std::max(flat, reduction.flat_copy(bucket));
      bucket.clear();
      elements = 0;
    }
    bucket.push_back(order[i]);
    elements += added;
  }
  buckets.flat_at_end = std::max(buckets.flat_at_end, reduction.flat_copy(bucket));
}

// reduce_gradients, tensor by tensor, of a rank: gradients are freed as they are copied into the
// bucket, what the rank keeps is made when the first of it has been reduced.
std::int64_t zero1_reduction(const Reduction& reduction, std::int64_t rank,
                             std::int64_t partition) {
  const FlatRange part = {.begin = rank * reduction.share(), .end = (rank + 1) * reduction.share()};
  std::int64_t most = 0;
  std::int64_t held = 0;
  bool has_partition = false;
  std::vector<std::size_t> bucket;
  std::int64_t elements = 0;
  const auto reduce = [&] {
    most = std::max(most, held + reduction.flat_copy(bucket));
    for (const std::size_t i : bucket) {
      const FlatRange& tensor = reduction.tensors[i];
      const bool is_kept = tensor.begin < part.end && tensor.end > part.begin;
      held += is_kept && !has_partition ? partition : 0;
      has_partition = has_partition || is_kept;
      most = std::max(most, held);
      held -= is_kept && tensor.end - tensor.begin > reduction.most ? tensor.end - tensor.begin : 0;
    }
    bucket.clear();
    elements = 0;
  };
  for (std::size_t i = 0; i < reduction.tensors.size(); ++i) {
    const std::int64_t added = reduction.tensors[i].end - reduction.tensors[i].begin;
    if (elements + added > reduction.most) {
      reduce();
    }
    bucket.push_back(i);
    elements += added;
    held -= added <= reduction.most ? added : 0;
  }
  reduce();
  return most;
}

}  // namespace

std::vector<std::int64_t> deepspeed_tensors(const ModelSpec& model) {
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

std::vector<std::int64_t> deepspeed_flat_copies(std::span<const FlatRange> tensors,
                                                std::int64_t share, std::int64_t most) {
  std::vector<std::int64_t> copies;
  std::int64_t elements = 0;
  std::int64_t runs = 0;
  std::int64_t last_rank = -1;
  const auto flush = [&] {
    if (runs > 1) {
      copies.push_back(elements);
    }
    elements = 0;
    runs = 0;
  };
  for (const FlatRange& tensor : tensors) {
    for (std::int64_t at = tensor.begin; at < tensor.end;) {
      const std::int64_t rank = at / share;
      if (rank != last_rank && elements > most) {
        flush();
      }
      const std::int64_t end = std::min(tensor.end, (rank + 1) * share);
      runs += rank != last_rank ? 1 : 0;
      elements += end - at;
      last_rank = rank;
      at = end;
    }
  }
  flush();
  return copies;
}

std::int64_t deepspeed_check_bytes(const Job& job, const Plan& plan,
                                   const DeepspeedBuckets& buckets, std::int64_t parameters) {
  constexpr std::int64_t kBytesPerElement = 4 + 1 + 1 + 1 + 4;
  const std::int64_t share = div_ceil(parameters, dense_shard_size(job, plan));
  return plan.zero == 3 ? 0 : kBytesPerElement * std::min(buckets.largest_tensor, share);
}

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

bool overlaps_collectives(const Job& job) {
  return job.profile.overlap_grad_reduce;
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

DeepspeedBuckets deepspeed_buckets(const Job& job, const Plan& plan) {
  const std::vector<std::int64_t> elements = deepspeed_tensors(job.model);
  const std::vector<FlatRange> tensors = flat_ranges(elements);
  const Reduction reduction = {.tensors = tensors,
                               .most = job.profile.reduce_bucket_elements,
                               .ranks = dense_shard_size(job, plan),
                               .zero = static_cast<int>(plan.zero)};
  const bool has_two = overlaps_collectives(job) && plan.zero < 3;
  DeepspeedBuckets buckets{.elements = (has_two ? 2 : 1) * reduction.most,
                           .largest_tensor = std::ranges::max(elements),
                           .fills = tensors.back().end > reduction.most};
  set_fullest(tensors, reduction.share(), buckets);
  set_flat_copies(reduction, backward_order(job.model), buckets);
  if (plan.zero == 1) {
    buckets.reduction =
        std::max(zero1_reduction(reduction, 0, buckets.partition),
                 zero1_reduction(reduction, buckets.fullest_rank, buckets.partition));
  }
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
