#include "estimator/frameworks/transformers/update.h"

#include <algorithm>
#include <iterator>

#include "estimator/frameworks/pieces/data_parallel.h"
#include "estimator/frameworks/pieces/fsdp2_copies.h"
#include "estimator/frameworks/pieces/huggingface/tuned.h"
#include "estimator/frameworks/transformers/activation_copies.h"
#include "estimator/frameworks/transformers/muon.h"
#include "estimator/plan/number.h"
#include "estimator/time/host_time.h"
#include "estimator/time/sharding_time.h"

namespace shardplan::transformers {
namespace {

using huggingface::autograd_element_bytes;
using huggingface::model_elements;
using huggingface::optimizer_element_bytes;
using huggingface::trained_share;

// bf16 gradients into the bf16 input of the reduce-scatter, and its output into fp32 shards
// (_fsdp_collectives.py foreach_reduce).
constexpr KernelBytes kChunked = {.streamed = 4};
constexpr KernelBytes kReduced = {.converted = 6};
// In fp32 gradients become it on their way there, and what is reduced is the shards' gradient.
constexpr KernelBytes kChunkedWide = {.converted = 6};

bool reduces_wide(const Job& job, const Plan& plan) {
  return plan.zero > 0 && job.profile.fsdp_version == 2 &&
         job.profile.fsdp_reduce_dtype == DType::kFp32;
}

// Microbatches of a step that reduce gradients.
double num_reducing(const Job& job, double microbatches) {
  return job.profile.loop == TrainerLoop::kTrainer ? 1 : microbatches;
}

double trained_elements(const Job& job, const GroupParameters& part) {
  return number(part.elements) * trained_share(job);
}

// DDP in the type of the gradients, FSDP2 in bf16 (accelerate utils/dataclasses.py,
// set_mixed_precision: param_dtype, reduce_dtype).
double reduced_bytes(const Job& job, const Plan& plan, const GroupParameters& part) {
  return trained_elements(job, part) *
         (reduces_wide(job, plan) ? 4 : autograd_element_bytes(job, plan));
}

// Of 4-bit weights that lie in bf16 half a byte an element; in bytes they are no shards.
double gathered_bytes(const Job& job, const Plan& plan, const GroupParameters& part) {
  const bool is_packed = job.quantized.kind != Quantization::kNone;
  const double packed = is_packed ? number(part.linear) : 0;
  return (number(part.elements) - packed) * weight_bytes(plan) +
         (job.profile.float_quant_storage ? packed / 2 : 0);
}

// Each layer is a group, the embedding one, and final norm and head one; matrices of adapters that
// are groups by themselves are two of each target.
double num_collectives(const Job& job, const Plan& plan) {
  if (plan.zero == 0) {
    return 1;
  }
  const bool are_alone = job.profile.fsdp_adapters_alone && job.adapters.rank > 0;
  const auto targets = std::ranges::count(job.adapters.targets, true);
  return number(job.model.num_layers()) * (are_alone ? 1 + 2 * number(targets) : 1) + 2;
}

void add_copies(RankUpdate& total, const Job& job, const Plan& plan, const GroupParameters& part,
                const GroupShape& shard) {
  const GpuSpec& gpu = job.cluster.gpu;
  const double trained = trained_elements(job, part);
  const auto ranks = static_cast<double>(shard.size);
  if (plan.zero == 0) {
    const bool copies = ranks > 1 && !job.profile.gradient_as_bucket_view;
    const double bytes = copies ? kBucketPasses * autograd_element_bytes(job, plan) : 0;
    total.reduce_copies_s += elementwise_s(gpu, {.streamed = trained * bytes});
    return;
  }
  if (plan.offload.parameters) {
    total.part_to_host_s += trained / ranks * optimizer_element_bytes(job, plan) /
                            (gpu.pcie_bytes_per_s * gpu.constants->pcie_share);
  }
  const double whole = gathered_bytes(job, plan, part) / weight_bytes(plan);
  if (job.profile.fsdp_version == 1) {  // gathered in place; shards cast, gradients put together
    total.gather_copies_s += elementwise_s(gpu, trained / ranks * kFsdp2CastShard);
    total.reduce_copies_s +=
        elementwise_s(gpu, trained * kChunked + 1 / ranks * trained * kReduced);
    return;
  }
  total.gather_copies_s +=
      elementwise_s(gpu, whole * kFsdp2Gathered + 1 / ranks * trained * kFsdp2CastShard +
                             1 / ranks * whole * kFsdp2ShardToGather);
  total.reduce_copies_s += elementwise_s(
      gpu, reduces_wide(job, plan) ? trained * kChunkedWide
                                   : trained * kChunked + 1 / ranks * trained * kReduced);
}

// The embedding's gradient is the last that a backward pass makes, and with tied tables the head's
// as well: nothing runs beside its reduction.
double last_share(const Job& job) {
  const double table = number(job.model.vocab * job.model.hidden);
  return job.adapters.rank > 0 ? 0 : table / number(model_elements(job.model));
}

// Groups that a backward pass gathers again: all but the last, which stays gathered; none where
// layers stay (zero 2).
double gathered_again(const Job& job, const Plan& plan) {
  const double last = number((job.model.vocab + 1) * job.model.hidden);
  return plan.zero == 3 ? 1 - last / number(model_elements(job.model)) : 0;
}

// What a backward pass waits for. FSDP1's collectives run one after the other, as they are asked
// for: without prefetching a module is asked for behind the reduction of the one before it.
double backward_collectives_s(const Job& job, const BesideCost& gather, const BesideCost& reduce,
                              double work_s) {
  if (job.profile.fsdp_version == 2) {
    return beside_compute_s(gather + reduce, work_s);
  }
  switch (job.profile.fsdp_prefetch) {
    case FsdpPrefetch::kBackwardPre: return beside_compute_s(gather + reduce, work_s);
    case FsdpPrefetch::kBackwardPost: return gather.alone_s + beside_compute_s(reduce, work_s);
    case FsdpPrefetch::kNone: break;
  }
  return gather.alone_s + reduce.alone_s;
}

// A microbatch that reduces so many times, 0 or 1. Copies are work of the GPU, which fills the time
// that it waits for the host.
double fsdp_exposed_s(const Job& job, const RankUpdate& update, const MicrobatchWork& work,
                      double again, double reductions) {
  const double forward_copies_s = update.gather_copies_s;
  const double backward_copies_s =
      again * update.gather_copies_s + reductions * update.reduce_copies_s;
  const double copies_s = forward_copies_s + backward_copies_s;
  const double longer_s = std::max(0.0, copies_s - work.host_s);
  const double share = copies_s > 0 ? longer_s / copies_s : 0;
  return longer_s + beside_compute_s(update.gather, work.forward_s + share * forward_copies_s) +
         backward_collectives_s(job, again * update.gather,
                                reductions * (update.reduce + update.replica),
                                work.backward_s + share * backward_copies_s);
}

// Offloaded shards come for either pass on the stream that gathers, beside the work before them,
// and their gradients leave behind the last reduction (_fsdp_collectives.py foreach_all_gather,
// foreach_reduce).
double offload_copies_s(const RankUpdate& update, double again, double reductions,
                        const MicrobatchWork& work) {
  const double part_s = update.part_to_host_s;
  return std::max(0.0, part_s - work.forward_s) +
         std::max(0.0, (again + reductions) * part_s - work.backward_s);
}

double collectives_s(const Job& job, const Plan& plan, const RankUpdate& update,
                     double microbatches, const MicrobatchWork& work) {
  const double reducing = num_reducing(job, microbatches);
  if (plan.zero == 0) {
    // Of all but the last microbatch under no_sync nothing is reduced.
    return reducing * visible_reduction_s(update, work, last_share(job));
  }
  const double again = gathered_again(job, plan);
  const auto microbatch_s = [&](double reductions) {
    return fsdp_exposed_s(job, update, work, again, reductions) +
           offload_copies_s(update, again, reductions, work);
  };
  return (microbatches - reducing) * microbatch_s(0) + reducing * microbatch_s(1);
}

double exposed_s(const Job& job, const Plan& plan, const RankUpdate& update, double microbatches,
                 const MicrobatchWork& work) {
  return collectives_s(job, plan, update, microbatches, work) +
         microbatches * activation_copies_s(job, plan, work);
}

// The gradient for its norm, read and written as it is scaled (clip_grad_norm_), and read; moments
// and parameter read and written. In bytes an element that the rank has, trained or not.
KernelBytes step_kernels(const Job& job, const Plan& plan) {
  constexpr double kPasses = 1 + 2 + 1 + 2 * 3;
  return {.streamed = trained_share(job) * kPasses * optimizer_element_bytes(job, plan)};
}

// The host's fused AdamW behind the norm of the gradients, which it reads, and their scaling
// (ATen native/cpu/FusedAdamKernel.cpp).
double offloaded_step_s(const Job& job, const Plan& /*plan*/, const UpdatedElements& updated,
                        double on_gpu_s) {
  constexpr double kClipped = (1 + 2) * 4;
  const TimeConstants& of = *job.cluster.gpu.constants;
  const double rate = std::min(number(job.profile.host_threads) * of.host_thread_bytes_per_s,
                               job.cluster.host_memory_bytes_per_s);
  const double elements = updated.on_host * trained_share(job);
  return on_gpu_s + elements * (of.fused_host_adam_bytes + kClipped) / rate;
}

bool is_updated_one_by_one(const Job& job, const Plan& plan) {
  return plan.tp > 1 && job.profile.tensor_parallel_dtensors &&
         job.optimizer == OptimizerKind::kAdamW;
}

double one_by_one_s(const Job& job, const Plan& plan, const RankParameters& rank, double host_s) {
  const HostTable* table = host_table(job.profile);
  const double layer_s =
      table != nullptr ? host_factor(job, *table) * table->tensor_parallel_update_s : 0;
  return std::max(
      elementwise_s(job.cluster.gpu, number(rank.held.total()) * step_kernels(job, plan)),
      host_s + number(std::ssize(job.model.layers)) * layer_s);
}

std::optional<double> matrix_step_s(const Job& job, const Plan& plan,
                                    const ShardingGroups& /*groups*/, const RankParameters& rank,
                                    double host_s) {
  if (is_updated_one_by_one(job, plan)) {
    return one_by_one_s(job, plan, rank, host_s);
  }
  if (job.optimizer != OptimizerKind::kMuon && job.optimizer != OptimizerKind::kMuonClip) {
    return std::nullopt;
  }
  const double others = number(rank.held.total()) - muon_elements(job);
  return std::max(
      muon_s(job, plan) + elementwise_s(job.cluster.gpu, others * step_kernels(job, plan)), host_s);
}

}  // namespace

constinit const UpdateTimes kUpdate = {.has_wide_collectives = true,
                                       .num_collectives = num_collectives,
                                       .gathered_bytes = gathered_bytes,
                                       .reduced_bytes = reduced_bytes,
                                       .add_copies = add_copies,
                                       .exposed_s = exposed_s,
                                       .step_kernels = step_kernels,
                                       .offloaded_step_s = offloaded_step_s,
                                       .matrix_step_s = matrix_step_s};

}  // namespace shardplan::transformers
