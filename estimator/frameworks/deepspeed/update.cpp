#include "estimator/frameworks/deepspeed/update.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/deepspeed/tensors.h"
#include "estimator/frameworks/pieces/adamw_kernels.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/sharding_time.h"

namespace shardplan::deepspeed {
namespace {

using huggingface::trained_share;

// What shares a gather of ZeRO-3 is copied out of its output (partition_parameters.py,
// AllGatherCoalescedHandle.wait).
constexpr KernelBytes kGathered = {.streamed = 4};

// To and from host memory, page-locked or not.
double host_link_bytes_per_s(const Job& job) {
  const GpuSpec& gpu = job.cluster.gpu;
  return job.profile.offload_pin_memory ? gpu.pcie_bytes_per_s * gpu.constants->pcie_share
                                        : gpu.constants->pageable_bytes_per_s;
}

// DeepSpeed's gradients on their way to the host and weights on theirs, in times that this rank's
// part of the weights takes one way. ZeRO-1 and 2 copy on the stream of the computation: in fp32
// behind the last microbatch (2); to add microbatches up, what the host has and the sum (2 each,
// 1 of the first; of ZeRO-1 once); the new weights (1) (stage_1_and_2.py,
// async_accumulate_grad_in_cpu_via_gpu, async_inplace_copy_grad_to_fp32_buffer_from_gpu, step).
// ZeRO-3's gradients go and come back in every microbatch, beside the backward pass with
// overlap_comm (stage3.py, partition_grads); offloaded parameters come for either pass beside the
// work before them.
double offload_copies_s(const Job& job, const Plan& plan, const RankUpdate& update,
                        double microbatches, const MicrobatchWork& work) {
  const bool offloads = plan.offload.optimizer > 0;
  const double part_s = update.part_to_host_s;
  if (plan.zero < 3) {
    const double sums = plan.zero == 2 ? 2 * microbatches - 1 : 2;
    return offloads ? part_s * (3 + (microbatches > 1 ? sums : 0)) : 0;
  }
  const double forward = plan.offload.parameters ? 1 : 0;
  const double backward = forward + (offloads ? 2 : 0);
  const double last = offloads ? 2 : 0;
  const auto exposed_s = [&](double parts, double beside_s) {
    return overlaps_collectives(job, plan) ? std::max(0.0, parts * part_s - beside_s)
                                           : parts * part_s;
  };
  return microbatches * exposed_s(forward, work.forward_s) +
         (microbatches - 1) * exposed_s(backward, work.backward_s) +
         exposed_s(backward + last, work.backward_s);
}

// ZeRO-1 and 2 gather what they have updated, ZeRO-3 all that runs.
double gathered_bytes(const Job& job, const Plan& plan, const GroupParameters& part) {
  const double share = plan.zero < 3 ? trained_share(job) : 1;
  return number(part.elements) * share * weight_bytes(plan);
}

double reduced_bytes(const Job& job, const Plan& plan, const GroupParameters& part) {
  return number(part.elements) * trained_share(job) * number(bytes_of(plan.grad_dtype));
}

// Whole gradients, summed when a backward pass has ended; of buckets with overlap_comm the last
// ones.
double exposed_sum_s(const Job& job, const Plan& plan, const RankUpdate& update,
                     double backward_s) {
  if (!overlaps_collectives(job, plan)) {
    return update.all_reduce.alone_s;
  }
  const ReducedBeside beside = reduced_beside(trained_tensors(job, plan), job.model.tied_embeddings,
                                              job.profile.reduce_bucket_elements);
  return (1 - beside.of_elements) * update.all_reduce.alone_s +
         beside_compute_s(beside.of_elements * update.all_reduce, beside.of_backward * backward_s);
}

// DeepSpeed's step before and after the update proper (stage_1_and_2.py, stage3.py: step; two bytes
// a gradient and a weight). Norm: to fp64 10, its squares 8; flat copy 4, to fp32 6, scaled 8, read
// by the update 4; weight 6.
constexpr KernelBytes kAroundUpdate = {.streamed = 8 + 4 + 8 + 4, .converted = 10 + 6 + 6};

// Without ZeRO the norm reads a copy in fp32, and nothing is put together.
constexpr KernelBytes kAroundWholeUpdate = {.streamed = 8 + 4 + 4, .converted = 6 + 6 + 6};

// Its check for overflow. By copies: to fp32 6, isnan 5, magnitude 8, comparison 5, disjunction 3,
// to fp32 5, maximum 4; by extremes read twice; ZeRO-3's, of fp16 alone (stage3.py, has_overflow):
// magnitude 4, comparison 3, isnan 3, both masks read.
KernelBytes overflow_kernels(const Job& job, const Plan& plan) {
  if (plan.zero == 3) {
    return {.streamed = plan.precision == Precision::kFp16 ? 4.0 + 3 + 3 + 2 : 0.0};
  }
  if (copies_for_overflow_check(job, plan)) {
    return {.streamed = 5 + 8 + 5 + 3 + 5 + 4, .converted = 6};
  }
  return {.streamed = job.profile.overflow_check == OverflowCheck::kByExtremes ? 4.0 : 0.0};
}

// ZeRO-1, as no ZeRO, adds every microbatch's gradients but the first's, which autograd leaves
// where the products have written them (torch/csrc/autograd/functions/accumulate_grad.h).
KernelBytes no_first_addition(double element_bytes) {
  return {.streamed = -3 * element_bytes};
}

// By as many threads as the host is given and no faster than the rank's share of the host's
// memory. ZeRO-3's weights on the GPU are converted into host memory of their own, and so are
// those on the host that the GPU updates: copy_ of tensors that differ in type and place
// (stage3.py, _reassign_or_swap_out_partitioned_parameters; ATen/native/cuda/Copy.cu).
double on_host_s(const Job& job, const Plan& plan, const UpdatedElements& updated) {
  const TimeConstants& of = *job.cluster.gpu.constants;
  const double rate = std::min(number(job.profile.host_threads) * of.host_thread_bytes_per_s,
                               job.cluster.host_memory_bytes_per_s);
  double seconds = updated.on_host * of.fused_host_adam_bytes / rate;
  if (plan.zero == 3 && !plan.offload.parameters) {
    seconds += updated.on_host * weight_bytes(plan) / of.new_pages_bytes_per_s;
  }
  if (plan.offload.parameters) {
    seconds += updated.on_gpu * number(bytes_of(plan.master_dtype)) / of.new_pages_back_bytes_per_s;
  }
  return seconds;
}

void add_copies(RankUpdate& total, const Job& job, const Plan& plan, const GroupParameters& part,
                const GroupShape& shard) {
  const double travel = plan.offload.parameters ? 1 : trained_share(job);
  total.part_to_host_s += number(part.elements) * travel / number(shard.size) * weight_bytes(plan) /
                          host_link_bytes_per_s(job);
  if (shard.size > 1) {
    const std::int64_t layers = std::ssize(job.model.layers);
    total.gather_copies_s += elementwise_s(
        job.cluster.gpu, number(layers * zero3_divided_tensors(job).elements_together) * kGathered);
  }
}

double exposed_s(const Job& job, const Plan& plan, const RankUpdate& update, double microbatches,
                 const MicrobatchWork& work) {
  const auto summed_s = [&]() -> std::optional<double> {
    const bool sums_whole = plan.zero <= job.profile.all_reduced_zero;
    return sums_whole ? std::optional(exposed_sum_s(job, plan, update, work.backward_s))
                      : std::nullopt;
  };
  if (plan.zero == 0) {  // behind the last backward pass
    return update.all_reduce.alone_s;
  }
  const double reduced_and_gathered_s =
      plan.zero < 3 ? exposed_below_zero_3_s(plan, update, microbatches, work, summed_s())
                    : microbatches * exposed_every_microbatch_s(update, work);
  return reduced_and_gathered_s + offload_copies_s(job, plan, update, microbatches, work);
}

KernelBytes step_kernels(const Job& job, const Plan& plan) {
  const OptimizerBytes bytes = optimizer_bytes(job, plan);
  return trained_share(job) *
         ((plan.zero == 0 ? kAroundWholeUpdate : kAroundUpdate) + overflow_kernels(job, plan) +
          KernelBytes{.streamed = 2 * (bytes.moments + bytes.master)});
}

KernelBytes buffer_kernels(const Job& job, const Plan& plan, std::int64_t /*replicas*/) {
  const double bytes = weight_bytes(plan);
  return plan.zero <= 1 ? trained_share(job) * (bucket_kernels(bytes) + no_first_addition(bytes))
                        : KernelBytes{};
}

// ZeRO-3 offloads by sub-groups.
double elements_on_host(const Job& job, const Plan& plan, double held) {
  const double elements = held * trained_share(job);
  if (plan.offload.optimizer == 0 || plan.zero != 3) {
    return elements * plan.offload.optimizer;
  }
  const std::vector<std::int64_t> groups = deepspeed_sub_groups(job, plan);
  const std::int64_t on_gpu = deepspeed_sub_groups_on_gpu(plan, std::ssize(groups));
  const std::int64_t all = std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
  const std::int64_t on_host =
      std::accumulate(groups.begin() + on_gpu, groups.end(), std::int64_t{0});
  return elements * number(on_host) / number(all);
}

double offloaded_step_s(const Job& job, const Plan& plan, const UpdatedElements& updated,
                        double on_gpu_s) {
  return on_gpu_s + on_host_s(job, plan, updated);
}

}  // namespace

constinit const UpdateTimes kUpdate = {.gathered_bytes = gathered_bytes,
                                       .reduced_bytes = reduced_bytes,
                                       .add_copies = add_copies,
                                       .exposed_s = exposed_s,
                                       .step_kernels = step_kernels,
                                       .buffer_kernels = buffer_kernels,
                                       .elements_on_host = elements_on_host,
                                       .offloaded_step_s = offloaded_step_s};

}  // namespace shardplan::deepspeed
