#include "estimator/frameworks/megatron/update.h"

#include <algorithm>
#include <vector>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/fsdp.h"
#include "estimator/frameworks/megatron/muon.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/frameworks/pieces/adamw_kernels.h"
#include "estimator/plan/number.h"
#include "estimator/plan/time_constants.h"
#include "estimator/time/sharding_time.h"

namespace shardplan::megatron {
namespace {

bool gathers_in_fp8(const Job& job, const Plan& plan) {
  return keeps_fp8_weights(job, plan) && !gathers_through_gradients(job, plan);
}

// Megatron-FSDP's ZeRO-3. Every backward pass begins with the head's reduction and the gathers of
// the last layers, and ends when the first layer and the embedding are reduced
// (_root_post_backward); what is gathered for the next step hides behind nothing
// (data/measured/README.md, overlaps_two_gpus_h200).
double exposed_fsdp_s(const Job& /*job*/, const Plan& /*plan*/, const RankUpdate& update,
                      double microbatches, const MicrobatchWork& work) {
  const LayerShares& of = update.shares;
  const BesideCost& gather = update.gather;
  const BesideCost reduce = update.reduce + update.replica;
  const double ends = 1 - of.layers;
  const double forward_s =
      of.first * gather.alone_s + beside_compute_s((of.layers - of.first) * gather, work.forward_s);
  const double backward_s =
      of.ahead * gather.alone_s + (ends + of.first) * reduce.alone_s +
      beside_compute_s((of.layers - of.ahead) * gather + (of.layers - of.first) * reduce,
                       work.backward_s);
  return ends * gather.alone_s + microbatches * (forward_s + backward_s);
}

double divided_bytes(const Plan& plan, std::int64_t replicas) {
  return replicas > 1 ? 2 * number(bytes_of(plan.grad_dtype)) : 0;
}

double reduced_bytes(const Job& job, const Plan& plan, const GroupParameters& part) {
  return trained_share(job) * number(part.elements * bytes_of(plan.grad_dtype));
}

// What is kept in fp8 alone is gathered so, but for mxfp8; what is frozen is not.
double gathered_bytes(const Job& job, const Plan& plan, const GroupParameters& part) {
  const double whole = trained_share(job) * number(part.elements) * weight_bytes(plan);
  return gathers_in_fp8(job, plan) ? whole - number(part.linear) * (weight_bytes(plan) - 1) : whole;
}

// No copies are counted, but the largest values of fp8 weights are reduced, one a tensor or one for
// 128 x 128 values, before they are rounded.
void add_copies(RankUpdate& total, const Job& job, const Plan& plan, const GroupParameters& part,
                const GroupShape& shard) {
  if (!gathers_in_fp8(job, plan) || part.linear == 0) {
    return;
  }
  constexpr double kFloatBytes = 4;
  constexpr double kBlock = 128.0 * 128.0;
  const bool is_blockwise = job.profile.fp8_recipe == Fp8Recipe::kBlockwise;
  total.largest_values_s += all_reduce_s(
      job.cluster, shard, kFloatBytes * (is_blockwise ? number(part.linear) / kBlock : 1));
}

// Megatron-core's gradients become fp32 where the optimizer takes no others; its norm reads them,
// and where that is above the limit, as it was in all runs measured, they are scaled; kernels over
// lists of tensors do so and update, and the weight is a copy of its own
// (core/optimizer/distrib_optimizer.py, clip_grads.py).
KernelBytes engine_step_kernels(const Job& job, const Plan& plan) {
  const OptimizerBytes bytes = optimizer_bytes(job, plan);
  const bool copies = plan.grad_dtype != DType::kFp32 && !is_precision_aware(plan);
  const double used = copies ? 4 : bytes.grad;
  return trained_share(job) *
         (at_share(job.cluster.gpu, 4 * used + 2 * (bytes.moments + bytes.master),
                   &TimeConstants::multi_tensor_share) +
          KernelBytes{.fused = bytes.master + weight_bytes(plan) + unfused_bytes(job, bytes),
                      .converted = copies ? bytes.grad + used : 0});
}

// Megatron-LM's gradient buffer, per parameter and step: zeros written; divided by the number of
// replicas where there are several (distributed/param_and_grad_buffer.py); of Megatron-FSDP's
// nothing is counted.
KernelBytes engine_buffer_kernels(const Job& job, const Plan& plan, std::int64_t replicas) {
  return plan.zero <= 1
             ? trained_share(job) * KernelBytes{.fused = number(bytes_of(plan.grad_dtype)),
                                                .streamed = divided_bytes(plan, replicas)}
             : KernelBytes{};
}

KernelBytes local_buffer_kernels(const Job& /*job*/, const Plan& plan, std::int64_t replicas) {
  return {.streamed = number(bytes_of(plan.grad_dtype)) + divided_bytes(plan, replicas)};
}

// Weights in fp8, written in every step: by their first forward pass, or by the update.
KernelBytes fp8_weight_kernels(const Job& job, const Plan& plan, const ShardingGroups& groups,
                               const LocalParameters& parameters) {
  const double dense = number(parameters.linear);
  const double expert = number(parameters.expert);
  const double updated =
      dense / number(groups.dense_shard.size) + expert / number(groups.expert_shard.size);
  return {.fused = (dense + expert) * fp8_weight_kernel_bytes(job, plan) +
                   updated * fp8_cast_kernel_bytes(job, plan)};
}

// The offloaded share crosses PCIe to the host, which updates it in its own memory, and back:
// one after the other without --overlap-cpu-optimizer-d2h-h2d, and with it little less, as the host
// takes the most (Megatron-LM core_v0.16.1 core/optimizer/cpu_offloading/hybrid_optimizer.py, step;
// the host's AdamW is torch's, core/optimizer/__init__.py).
double offloaded_step_s(const Job& job, const Plan& plan, const UpdatedElements& updated,
                        double on_gpu_s) {
  if (plan.offload.optimizer == 0) {
    return on_gpu_s;
  }
  const double moved_bytes =
      updated.on_host * (number(bytes_of(plan.grad_dtype)) + weight_bytes(plan));
  const GpuSpec& gpu = job.cluster.gpu;
  return on_gpu_s + moved_bytes / (gpu.pcie_bytes_per_s * gpu.constants->pcie_share) +
         updated.on_host * gpu.constants->host_adam_bytes / job.cluster.host_memory_bytes_per_s;
}

// How a layer spec updates parameters, and has its buffer of gradients.
struct StepKernels {
  KernelBytes (*step)(const Job& job, const Plan& plan);
  KernelBytes (*buffer)(const Job& job, const Plan& plan, std::int64_t replicas);
};

// Of matrices the norm and scaling of gradients, and the weight's copy, as AdamW's have them
// (engine_step_kernels); gathered parameters go into a flat tensor and out of it.
std::optional<double> muon_step_s(const Job& job, const Plan& plan, const ShardingGroups& groups,
                                  const RankParameters& rank, double host_s,
                                  const StepKernels& kernels) {
  constexpr double kFp32Bytes = 4;
  if (!uses_muon(job)) {
    return std::nullopt;
  }
  const std::vector<MuonTensor> tensors = muon_tensors(job, plan, rank.blocks);
  double matrices = 0;
  double others = 0;
  for (const MuonTensor& tensor : fullest_muon_tensors(job, plan, tensors)) {
    (tensor.is_matrix ? matrices : others) += number(tensor.count * tensor.elements());
  }
  const double held = number(rank.held.total());
  const std::int64_t replicas = groups.dense_shard.size * groups.dense_replica.size;
  const double copied = divides_muon(job, plan) ? matrices + others + held : 0;
  const KernelBytes of_matrices =
      at_share(job.cluster.gpu, 3 * kFp32Bytes, &TimeConstants::multi_tensor_share) +
      KernelBytes{.fused = kFp32Bytes + weight_bytes(plan)};
  const double kernels_s =
      elementwise_s(job.cluster.gpu, others * kernels.step(job, plan) + matrices * of_matrices +
                                         held * kernels.buffer(job, plan, replicas) +
                                         copied * KernelBytes{.streamed = 2 * weight_bytes(plan)});
  return std::max(kernels_s, host_s) + muon_s(job, plan, tensors);
}

std::optional<double> engine_muon_step_s(const Job& job, const Plan& plan,
                                         const ShardingGroups& groups, const RankParameters& rank,
                                         double host_s) {
  return muon_step_s(job, plan, groups, rank, host_s,
                     {.step = engine_step_kernels, .buffer = engine_buffer_kernels});
}

std::optional<double> local_muon_step_s(const Job& job, const Plan& plan,
                                        const ShardingGroups& groups, const RankParameters& rank,
                                        double host_s) {
  return muon_step_s(job, plan, groups, rank, host_s,
                     {.step = adamw_kernels, .buffer = local_buffer_kernels});
}

}  // namespace

constinit const UpdateTimes kUpdate = {.gathered_bytes = gathered_bytes,
                                       .reduced_bytes = reduced_bytes,
                                       .add_copies = add_copies,
                                       .layer_shares = fsdp_shares,
                                       .exposed_zero_3_s = exposed_fsdp_s,
                                       .gathers_updated = divides_muon,
                                       .step_kernels = engine_step_kernels,
                                       .buffer_kernels = engine_buffer_kernels,
                                       .weight_kernels = fp8_weight_kernels,
                                       .offloaded_step_s = offloaded_step_s,
                                       .matrix_step_s = engine_muon_step_s};

constinit const UpdateTimes kLocalUpdate = {.gathered_bytes = gathered_bytes,
                                            .add_copies = add_copies,
                                            .gathers_updated = divides_muon,
                                            .step_kernels = adamw_kernels,
                                            .buffer_kernels = local_buffer_kernels,
                                            .offloaded_step_s = offloaded_step_s,
                                            .matrix_step_s = local_muon_step_s};

constinit const UpdateTimes kPaperUpdate = {.gathered_bytes = gathered_bytes,
                                            .add_copies = add_copies,
                                            .gathers_updated = divides_muon,
                                            .step_kernels = engine_step_kernels,
                                            .buffer_kernels = engine_buffer_kernels,
                                            .offloaded_step_s = offloaded_step_s,
                                            .matrix_step_s = engine_muon_step_s};

}  // namespace shardplan::megatron
