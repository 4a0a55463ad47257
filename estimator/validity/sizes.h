// Sizes that validity rules ask for, of plans whose grid is known to be whole: tp * cp * pp divides
// the number of GPUs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "estimator/plan/job.h"

namespace shardplan {

// Data-parallel size and microbatches; job.h has the same with a check for every division.
inline std::int64_t dp_of(const Job& job, const Plan& plan) {
  return job.cluster.world_size() / (plan.tp * plan.cp * plan.pp);
}

inline std::int64_t microbatches_of(const Job& job, const Plan& plan) {
  return job.global_batch / dp_of(job, plan) / plan.micro_batch;
}

// Whether a * b * c divides `number`, in steps that cannot overflow.
constexpr bool product_divides(std::int64_t number, std::int64_t a, std::int64_t b,
                               std::int64_t c) {
  return number % a == 0 && number / a % b == 0 && number / a / b % c == 0;
}

inline bool has_experts(const Job& job) {
  return job.model.moe.num_experts > 0;
}

// Key and value heads of one tp rank, before context parallelism divides them.
inline std::int64_t kv_heads_on_rank(const Job& job, const Plan& plan) {
  return std::max<std::int64_t>(
      (job.model.is_mla() ? job.model.num_heads : job.model.num_kv_heads) / plan.tp, 1);
}

// Layers to deal out, with the ends that count as such.
inline std::int64_t layer_slots(const Job& job) {
  const CountedEnds ends = job.profile.counted_ends();
  return job.model.num_layers() + ends.embedding + ends.head;
}

// Microbatches that a chunk runs before the next one; Megatron-LM's default is pp.
inline std::int64_t interleaved_group(const Job& job, const Plan& plan) {
  const std::int64_t group = job.profile.microbatch_group();
  return group == 0 ? plan.pp : group;
}

inline std::int64_t longest_chunk(const Job& job, const Plan& plan) {
  return plan.layers_per_chunk.empty() ? layer_slots(job) / (plan.pp * plan.vpp)
                                       : std::ranges::max(plan.layers_per_chunk);
}

}  // namespace shardplan
