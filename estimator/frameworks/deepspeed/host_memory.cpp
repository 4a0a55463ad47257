#include "estimator/frameworks/deepspeed/host_memory.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/pieces/memory_model.h"
#include "estimator/ledger/block_rows.h"
#include "estimator/plan/units.h"

namespace shardplan::deepspeed {
namespace {

constexpr std::int64_t kFp32 = 4;
constexpr std::int64_t kMoments = 8;  // in fp32, never page-locked

std::int64_t page_locked(std::int64_t bytes) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

std::int64_t held(const Job& job, std::int64_t bytes) {
  return job.profile.offload_pin_memory ? page_locked(bytes) : bytes;
}

// Whole tensors that a rank's share reaches into, where microbatches are added up
// (accumulated_grads_in_cpu); of the rank that has the most.
std::int64_t accumulated_bytes(const Job& job, std::span<const std::int64_t> trained,
                               std::int64_t half, std::int64_t share, std::int64_t ranks) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks), 0);
  for (const FlatRange& tensor : deepspeed_ranges(trained)) {
    for (std::int64_t rank = tensor.begin / share; rank * share < tensor.end; ++rank) {
      bytes[static_cast<std::size_t>(rank)] += held(job, half * tensor.elements());
    }
  }
  return std::ranges::max(bytes);
}

// Main parameters, gradients and moments in fp32, weights for the way back, the buffer of the
// largest tensor (temp_grad_buffer_for_cpu_offload).
std::int64_t flat_bytes(const Job& job, const Plan& plan, std::int64_t half) {
  if (plan.offload.optimizer == 0) {
    return 0;
  }
  const std::int64_t ranks = dense_shard_size(job, plan);
  const std::vector<std::int64_t> trained = trained_tensors(job, plan);
  const std::int64_t share = deepspeed_share(trained, ranks);
  const std::int64_t largest = std::ranges::max(trained);
  return 2 * held(job, kFp32 * share) + kMoments * share + held(job, half * share) +
         held(job, half * largest) +
         (num_microbatches(job, plan) > 1 ? accumulated_bytes(job, trained, half, share, ranks)
                                          : 0);
}

// By sub-groups: main parameters and moments of those on the host, gradients in fp32 of all, which
// those on the GPU had on the host first; gradients in bf16. Offloaded parameters that are trained
// lie in one tensor that is always page-locked, and lay one by one before (zero.Init), as frozen
// ones still do.
std::int64_t partitioned_bytes(const Job& job, const Plan& plan, std::int64_t half) {
  const std::int64_t ranks = dense_shard_size(job, plan);
  std::int64_t parts = 0;
  std::int64_t one_by_one = 0;
  for (const ZeroTensor& tensor : held_tensors(job, plan)) {
    const std::int64_t part = div_ceil(tensor.elements, ranks);
    const std::int64_t bytes_of_part = bytes_of(tensor.dtype) * part;
    parts += tensor.is_trained ? part : 0;
    if (job.profile.offload_pin_memory) {
      one_by_one += page_locked(bytes_of_part);
    } else if (!tensor.is_trained) {
      one_by_one += bytes_of_part;
    }
  }
  std::int64_t bytes = plan.offload.parameters ? page_locked(half * parts) + one_by_one : 0;
  if (plan.offload.optimizer == 0) {
    return bytes;
  }
  const std::vector<std::int64_t> groups = deepspeed_sub_groups(job, plan);
  const std::int64_t on_gpu = deepspeed_sub_groups_on_gpu(plan, std::ssize(groups));
  for (std::int64_t i = 0; i < std::ssize(groups); ++i) {
    const std::int64_t elements = groups[static_cast<std::size_t>(i)];
    const bool is_on_host = i >= on_gpu;
    bytes += is_on_host ? (kFp32 + kMoments) * elements : 0;
    bytes += is_on_host || job.profile.offload_pin_memory ? held(job, kFp32 * elements) : 0;
  }
  return bytes + held(job, half * parts);
}

}  // namespace

std::int64_t host_bytes(const Job& job, const Plan& plan) {
  const std::int64_t half = bytes_of(activation_dtype(plan.precision));
  return plan.zero == 3 ? partitioned_bytes(job, plan, half) : flat_bytes(job, plan, half);
}

}  // namespace shardplan::deepspeed
