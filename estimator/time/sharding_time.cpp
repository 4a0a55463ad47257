#include "estimator/time/sharding_time.h"

#include <algorithm>
#include <numeric>

#include "estimator/frameworks/deepspeed/buckets.h"
#include "estimator/frameworks/deepspeed/partitioned.h"
#include "estimator/frameworks/deepspeed/state.h"
#include "estimator/frameworks/megatron/fp8_weights.h"
#include "estimator/frameworks/megatron/state.h"
#include "estimator/plan/number.h"
#include "estimator/time/collective_time.h"
#include "estimator/time/efficiency.h"
#include "estimator/time/elementwise.h"
#include "estimator/time/host_time.h"

namespace shardplan {
namespace {

// Parameters as gathered and used.
double weight_bytes(const Plan& plan) {
  return plan.precision == Precision::kFp32 ? 4 : 2;
}

// Parameters that share a group, of which so many are weights of linear layers.
struct Part {
  std::int64_t elements = 0;
  std::int64_t linear = 0;
};

// Of all of them. What is kept in fp8 alone is gathered so, but for mxfp8.
double gathered_bytes(const Job& job, const Plan& plan, const Part& part) {
  const double whole = number(part.elements) * weight_bytes(plan);
  const bool in_fp8 = keeps_fp8_weights(job, plan) && !gathers_through_gradients(job, plan);
  return in_fp8 ? whole - number(part.linear) * (weight_bytes(plan) - 1) : whole;
}

// FSDP2 (torch.distributed.fsdp, _fsdp_collectives.py): fp32 shards to bf16, into the input of the
// all-gather, and out of its output into the parameters; bf16 gradients into the fp32 input of the
// reduce-scatter. Out of the output as well: what shares a gather of DeepSpeed's ZeRO-3
// (partition_parameters.py, AllGatherCoalescedHandle.wait).
constexpr KernelBytes kCastShard = {.converted = 6};
constexpr KernelBytes kShardToGather = {.converted = 4};
constexpr KernelBytes kGathered = {.streamed = 4};
constexpr KernelBytes kChunked = {.converted = 6};

// Our trainer's ZeRO 2 and 3 (validator/lower/sharding.cpp): fp32 += fp32, of the rank's part.
constexpr KernelBytes kAddedGradient = {.fused = 12};

// Collectives that gather or reduce all parameters once: FSDP2 has one for every layer, one for the
// embedding and one for head and norm, and each takes the steps of its ring (torchtitan v0.2.2
// models/llama3/infra/parallelize.py, apply_fsdp).
double units_apart(const Job& job, const Plan& plan) {
  const bool is_fsdp = job.profile.memory_model == MemoryModel::kTorchtitan && plan.zero == 3;
  return is_fsdp ? number(std::ssize(job.model.layers)) / number(plan.pp) + 2 : 1;
}

// Largest values of fp8 weights, one a tensor or one for 128 x 128 values, before they are rounded.
double largest_values_s(const Job& job, const Plan& plan, const Part& part,
                        const GroupShape& shard) {
  if (!keeps_fp8_weights(job, plan) || gathers_through_gradients(job, plan) || part.linear == 0) {
    return 0;
  }
  constexpr double kFloatBytes = 4;
  constexpr double kBlock = 128.0 * 128.0;
  const bool is_blockwise = job.profile.fp8_recipe == Fp8Recipe::kBlockwise;
  return all_reduce_s(job.cluster, shard,
                      kFloatBytes * (is_blockwise ? number(part.linear) / kBlock : 1));
}

// To and from host memory, page-locked or not.
double host_link_bytes_per_s(const Job& job) {
  return job.profile.offload_pin_memory ? job.cluster.gpu.pcie_bytes_per_s * kPcieShare.value
                                        : kPageableRate.value;
}

void add(RankUpdate& total, const Job& job, const Plan& plan, const Part& part,
         const GroupShape& shard, const GroupShape& replica) {
  const std::int64_t elements = part.elements;
  if (elements == 0) {
    return;
  }
  const double grad = number(elements * bytes_of(plan.grad_dtype));
  const bool is_fsdp = job.profile.memory_model == MemoryModel::kTorchtitan;
  const Carrier reducing = is_fsdp ? Carrier::kWideNccl : Carrier::kNccl;
  const Carrier gathering =
      is_fsdp ? Carrier::kWideNccl
              : carrier_of(job.profile.memory_model == MemoryModel::kNative, shard);
  const double units = units_apart(job, plan);
  const auto in_units = [&](Collective collective, double bytes, Carrier carrier) {
    return units * collective_cost(job.cluster, shard, collective, bytes / units, carrier);
  };
  const auto summed = [&](const GroupShape& group, double bytes) {
    return collective_cost(job.cluster, group, Collective::kAllReduce, bytes, reducing);
  };
  const BesideCost between_replicas = summed(replica, grad / number(shard.size));
  total.reduce = total.reduce + in_units(Collective::kReduceScatter, grad, reducing);
  total.replica = total.replica + between_replicas;
  total.gather =
      total.gather + in_units(Collective::kAllGather, gathered_bytes(job, plan, part), gathering);
  total.all_reduce = total.all_reduce + summed(shard, grad) + between_replicas;
  total.largest_values_s += largest_values_s(job, plan, part, shard);
  if (job.profile.memory_model == MemoryModel::kNative) {
    const double add_s =
        elementwise_s(job.cluster.gpu, number(elements) / number(shard.size) * kAddedGradient);
    total.add = total.add + beside_cost(rates_within_domain(job.cluster.gpu), {.bytes_s = add_s});
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    total.part_to_host_s +=
        number(elements) / number(shard.size) * weight_bytes(plan) / host_link_bytes_per_s(job);
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed && shard.size > 1) {
    const std::int64_t layers = std::ssize(job.model.layers);
    total.gather_copies_s += elementwise_s(
        job.cluster.gpu, number(layers * zero3_divided_tensors(job).elements_together) * kGathered);
  }
  if (plan.zero == 3 && job.profile.memory_model == MemoryModel::kTorchtitan) {
    const double whole = number(elements);
    const double mine = whole / number(shard.size);
    total.gather_copies_s +=
        elementwise_s(job.cluster.gpu, whole * kGathered + mine * (kCastShard + kShardToGather));
    total.reduce_copies_s += elementwise_s(job.cluster.gpu, whole * kChunked);
  }
}

double exceeding(double cost_s, double hidden_behind_s) {
  return std::max(0.0, cost_s - hidden_behind_s);
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
    return overlaps_collectives(job, plan) ? exceeding(parts * part_s, beside_s) : parts * part_s;
  };
  return microbatches * exposed_s(forward, work.forward_s) +
         (microbatches - 1) * exposed_s(backward, work.backward_s) +
         exposed_s(backward + last, work.backward_s);
}

// Whole gradients, summed when a backward pass has ended; of DeepSpeed's buckets with overlap_comm
// the last ones.
double exposed_sum_s(const Job& job, const Plan& plan, const RankUpdate& update,
                     double backward_s) {
  if (job.profile.memory_model != MemoryModel::kDeepspeed || !overlaps_collectives(job, plan)) {
    return update.all_reduce.alone_s;
  }
  const ReducedBeside beside =
      deepspeed_reduced_beside(job.model, job.profile.reduce_bucket_elements);
  return (1 - beside.of_elements) * update.all_reduce.alone_s +
         beside_compute_s(beside.of_elements * update.all_reduce, beside.of_backward * backward_s);
}

// Our trainer works unit by unit: embedding, layers, head. Under ZeRO 0 and 1 units are reduced
// beside the last backward pass, and updated ones gathered beside the next step's first forward
// pass; ZeRO 2 and 3 reduce and add for every microbatch and between replicas once, and 3 gathers
// beside the unit before, whatever is declared (validator/lower/sharding.cpp).
double exposed_native_s(const Job& job, const Plan& plan, const RankUpdate& update,
                        double microbatches, const MicrobatchWork& work) {
  const std::int64_t units = std::ssize(job.model.layers) / plan.pp + 2;
  const auto reduced_s = [&](const BesideCost& cost) {
    return job.profile.overlap_grad_reduce ? in_pieces_s(cost, work.backward_s, units)
                                           : cost.alone_s;
  };
  const double gathered_beside_s = in_pieces_s(update.gather, work.forward_s, units);
  const BesideCost again = plan.zero == 3 ? update.regather : BesideCost{};
  const BesideCost sum = microbatches > 1 ? update.reduce + update.add : update.reduce;
  const auto beside_backward_s = [&](const BesideCost& reduce) {
    return in_pieces_s(again + reduce, work.backward_s, units);
  };
  const double reduced_often_s =
      (microbatches - 1) * beside_backward_s(sum) + beside_backward_s(sum + update.replica);
  const double gathered_s =
      job.profile.overlap_param_gather ? gathered_beside_s : update.gather.alone_s;
  switch (plan.zero) {
    case 0: return reduced_s(update.all_reduce);
    case 1: return reduced_s(update.reduce + update.replica) + gathered_s;
    case 2: return reduced_often_s + gathered_s;
    default: return reduced_often_s + microbatches * gathered_beside_s;
  }
}

// Under ZeRO 3, of one microbatch. Copies are work of the GPU, which fills the time that it waits
// for the host; collectives hide behind both, and that time hides either.
double exposed_every_microbatch_s(const Job& job, const RankUpdate& update,
                                  const MicrobatchWork& work) {
  const double again = job.profile.reshard_after_forward == ReshardAfterForward::kNever ? 0 : 1;
  const double forward_copies_s = update.gather_copies_s;
  const double backward_copies_s = again * update.gather_copies_s + update.reduce_copies_s;
  const double copies_s = forward_copies_s + backward_copies_s;
  const double longer_s = exceeding(copies_s, work.host_s);
  const double share = copies_s > 0 ? longer_s / copies_s : 0;
  return longer_s + beside_compute_s(update.gather, work.forward_s + share * forward_copies_s) +
         beside_compute_s(again * update.gather + update.reduce + update.replica,
                          work.backward_s + share * backward_copies_s);
}

// Megatron-FSDP's ZeRO-3. Every backward pass begins with the head's reduction and the gathers of
// the last layers, and ends when the first layer and the embedding are reduced
// (_root_post_backward); what is gathered for the next step hides behind nothing
// (data/measured/README.md, overlaps_two_gpus_h200).
double exposed_megatron_fsdp_s(const RankUpdate& update, double microbatches,
                               const MicrobatchWork& work) {
  const FsdpShares& of = update.of_fsdp;
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

// DeepSpeed's step before and after the update proper (stage_1_and_2.py, stage3.py: step; two bytes
// a gradient and a weight). Norm: to fp64 10, its squares 8; flat copy 4, to fp32 6, scaled 8, read
// by the update 4; weight 6.
constexpr KernelBytes kDeepspeedStep = {.streamed = 8 + 4 + 8 + 4, .converted = 10 + 6 + 6};

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

// Megatron-core with Transformer Engine or Apex.
bool runs_engine(const Job& job) {
  return job.profile.memory_model == MemoryModel::kMegatron ||
         job.profile.memory_model == MemoryModel::kFujii2024;
}

// What one parameter's update reads and writes. Fused: the gradient for its norm, then gradient,
// moments and main parameter read, moments, main parameter and weight written (34 bytes in fp32
// with bf16 weights). torchtitan's weights are the main parameters, and its gradients are scaled
// by a kernel of their own: 4 + 8 + 28. nanotron's weights are written by a cast of their own, and
// norms and scaling are of its whole buffer. torch's foreach AdamW without: norm 4, decay 8,
// moments 12 and 8 + 12, root 8, division 8, addition 8, update 16, weight 6. Megatron-core's
// gradients become fp32 where the optimizer takes no others; its norm reads them, and where that
// is above the limit, as it was in all runs measured, they are scaled; kernels over lists of
// tensors do so and update, and the weight is a copy of its own
// (core/optimizer/distrib_optimizer.py, clip_grads.py).
KernelBytes update_kernels(const Job& job, const Plan& plan) {
  const double grad = number(bytes_of(plan.grad_dtype));
  const double moments =
      job.optimizer == OptimizerKind::kAdamW
          ? number(bytes_of(plan.exp_avg_dtype) + bytes_of(plan.exp_avg_sq_dtype))
          : number(bytes_of(plan.exp_avg_dtype));
  const double master = number(bytes_of(plan.master_dtype));
  if (job.profile.memory_model == MemoryModel::kTorchtitan) {
    return {.streamed = 4 * grad + 2 * (moments + master)};
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    return kDeepspeedStep + overflow_kernels(job, plan) +
           KernelBytes{.streamed = 2 * (moments + master)};
  }
  if (job.profile.memory_model == MemoryModel::kNanotron) {
    const double unfused = job.profile.fused_optimizer ? 0 : 14 * master;
    return {.fused = master + weight_bytes(plan),
            .streamed = grad + 2 * (moments + master) + unfused};
  }
  if (runs_engine(job)) {
    const bool copies = plan.grad_dtype != DType::kFp32 && !is_precision_aware(plan);
    const double used = copies ? 4 : grad;
    const double unfused = job.profile.fused_optimizer ? 0 : 14 * master;
    return at_share(4 * used + 2 * (moments + master), kMultiTensorShare) +
           KernelBytes{.fused = master + weight_bytes(plan) + unfused,
                       .converted = copies ? grad + used : 0};
  }
  const double fused = 2 * grad + 2 * (moments + master) + weight_bytes(plan);
  return {.fused = job.profile.fused_optimizer ? fused : fused + 14 * master};
}

// DeepSpeed's ZeRO-1 adds every microbatch's gradients (weight_gradient_kernels) but the first's,
// which autograd leaves where the products have written them (torch/csrc/autograd/functions/
// accumulate_grad.h).
KernelBytes no_first_addition(double element_bytes) {
  return {.streamed = -3 * element_bytes};
}

// Megatron-LM's gradient buffer, per parameter and step: zeros written; divided by the number of
// replicas where there are several (distributed/param_and_grad_buffer.py); of Megatron-FSDP's
// nothing is counted. nanotron's: zeros written, read for the norm, scaled; and under ZeRO-1 the
// gathered weights are copied into a list, out of the process group's flat tensor and back
// (optim/clip_grads.py, distributed.py, all_gather_coalesced).
KernelBytes buffer_kernels(const Job& job, const Plan& plan, std::int64_t replicas) {
  const double grad = number(bytes_of(plan.grad_dtype));
  if (job.profile.memory_model == MemoryModel::kDeepspeed && plan.zero == 1) {
    return deepspeed_bucket_kernels(weight_bytes(plan)) + no_first_addition(weight_bytes(plan));
  }
  if (job.profile.memory_model == MemoryModel::kNanotron) {
    const double copies = plan.zero == 1 && replicas > 1 ? 3 * 2 * weight_bytes(plan) : 0;
    return {.fused = grad, .streamed = 3 * grad + copies};
  }
  const double divided = replicas > 1 ? 2 * grad : 0;
  if (job.profile.memory_model == MemoryModel::kMegatronLocal) {
    return {.streamed = grad + divided};
  }
  return runs_engine(job) && plan.zero <= 1 ? KernelBytes{.fused = grad, .streamed = divided}
                                            : KernelBytes{};
}

}  // namespace

ShardingGroups::ShardingGroups(const Job& job, const Plan& plan)
    : dense_shard(group_shape(job, plan, GroupKind::kDenseShard)),
      dense_replica(group_shape(job, plan, GroupKind::kDenseReplica)),
      embedding(group_shape(job, plan, GroupKind::kEmbedding)) {
  if (job.model.moe.num_experts > 0) {
    expert_shard = group_shape(job, plan, GroupKind::kExpertShard);
    expert_replica = group_shape(job, plan, GroupKind::kExpertReplica);
  }
}

RankUpdate rank_update(const Job& job, const Plan& plan, const ShardingGroups& groups,
                       const RankParameters& parameters) {
  const LocalParameters& held = parameters.held;
  RankUpdate update;
  add(update, job, plan, {.elements = held.dense, .linear = held.linear}, groups.dense_shard,
      groups.dense_replica);
  add(update, job, plan, {.elements = held.expert, .linear = held.expert}, groups.expert_shard,
      groups.expert_replica);
  const auto regather = [&](const GroupShape& shard, std::int64_t elements) {
    return collective_cost(job.cluster, shard, Collective::kAllGather,
                           number(elements) * weight_bytes(plan),
                           carrier_of(job.profile.memory_model == MemoryModel::kNative, shard));
  };
  if (job.profile.memory_model == MemoryModel::kNative) {
    update.regather = regather(groups.dense_shard, parameters.regathered.dense) +
                      regather(groups.expert_shard, parameters.regathered.expert);
  }
  if (job.profile.memory_model == MemoryModel::kMegatron) {  // of any ZeRO: prices share it
    update.of_fsdp =
        fsdp_shares(job, plan, held.dense + (groups.expert_shard.size > 1 ? held.expert : 0));
  }
  if (parameters.tied_elements > 0) {
    update.tied_s = all_reduce_s(job.cluster, groups.embedding,
                                 number(parameters.tied_elements * bytes_of(plan.grad_dtype)));
  }
  update.optimizer_s = optimizer_s(job, plan, groups, parameters);
  return update;
}

// ZeRO 0 reduces once; 1 reduces once and gathers the updated parameters; 2 keeps gradients
// sharded, so every microbatch reduces; 3 gathers every block for forward and for backward and
// reduces, every microbatch, with the next block in flight (arXiv 1910.02054 section 7).
double exposed_data_parallel_s(const Job& job, const Plan& plan, const RankUpdate& update,
                               std::int64_t microbatches, const MicrobatchWork& work) {
  const double m = number(microbatches);
  const auto reduce = [&] { return update.reduce + update.replica; };
  if (job.profile.memory_model == MemoryModel::kNative) {
    return (exposed_native_s(job, plan, update, m, work) + update.tied_s) *
           job.profile.exposed_dp_share;
  }
  const double forward_s = job.profile.overlap_param_gather ? work.forward_s : 0;
  const double backward_s = job.profile.overlap_grad_reduce ? work.backward_s : 0;
  const bool sums_whole = plan.zero <= job.profile.all_reduced_zero;
  double seconds = 0;
  switch (plan.zero) {
    case 0:
      seconds = beside_compute_s(update.all_reduce, backward_s) +
                (divides_muon(job, plan) ? update.gather.alone_s : 0);
      break;
    case 1:
      seconds = (sums_whole ? exposed_sum_s(job, plan, update, work.backward_s)
                            : beside_compute_s(reduce(), backward_s)) +
                beside_compute_s(update.gather, forward_s);
      break;
    case 2:
      seconds = m * (sums_whole ? exposed_sum_s(job, plan, update, work.backward_s)
                                : beside_compute_s(reduce(), backward_s)) +
                beside_compute_s(update.gather, forward_s);
      break;
    default:
      if (is_megatron_fsdp(job, plan)) {
        seconds = exposed_megatron_fsdp_s(update, m, work);
      } else if (gathers_once(job.profile, plan)) {
        seconds = beside_compute_s(update.gather, work.forward_s) + reduce().alone_s +
                  exceeding(update.gather_copies_s + update.reduce_copies_s, m * work.host_s);
      } else {
        seconds = m * exposed_every_microbatch_s(job, update, work);
      }
  }
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    seconds += offload_copies_s(job, plan, update, m, work);
  }
  return (seconds + update.tied_s + update.largest_values_s) * job.profile.exposed_dp_share;
}

// Weights in fp8, written in every step: by their first forward pass, or by the update.
KernelBytes fp8_kernels(const Job& job, const Plan& plan, const ShardingGroups& groups,
                        const LocalParameters& parameters) {
  if (job.profile.memory_model != MemoryModel::kMegatron) {
    return {};
  }
  const double dense = number(parameters.linear);
  const double expert = number(parameters.expert);
  const double updated =
      dense / number(groups.dense_shard.size) + expert / number(groups.expert_shard.size);
  return {.fused = (dense + expert) * fp8_weight_kernel_bytes(job, plan) +
                   updated * fp8_cast_kernel_bytes(job, plan)};
}

// Of matrices the norm and scaling of gradients, and the weight's copy, as AdamW's have them
// (update_kernels); gathered parameters go into a flat tensor and out of it.
double muon_step_s(const Job& job, const Plan& plan, const ShardingGroups& groups,
                   const RankParameters& rank) {
  constexpr double kFp32Bytes = 4;
  const std::vector<MuonTensor> tensors = muon_tensors(job, plan, rank.blocks);
  double matrices = 0;
  double others = 0;
  for (const MuonTensor& tensor : fullest_muon_tensors(job, plan, tensors)) {
    (tensor.is_matrix ? matrices : others) += number(tensor.count * tensor.elements());
  }
  const double held = number(rank.held.total());
  const std::int64_t replicas = groups.dense_shard.size * groups.dense_replica.size;
  const double copied = divides_muon(job, plan) ? matrices + others + held : 0;
  const KernelBytes of_matrices = at_share(3 * kFp32Bytes, kMultiTensorShare) +
                                  KernelBytes{.fused = kFp32Bytes + weight_bytes(plan)};
  const double kernels_s =
      elementwise_s(job.cluster.gpu, others * update_kernels(job, plan) + matrices * of_matrices +
                                         held * buffer_kernels(job, plan, replicas) +
                                         copied * KernelBytes{.streamed = 2 * weight_bytes(plan)});
  const double layers = number(std::ssize(job.model.layers)) / number(plan.pp);
  return std::max(kernels_s, layers * host_update_s(job, plan)) + muon_s(job, plan, tensors);
}

// Elements of a rank's part that the host updates.
double elements_on_host(const Job& job, const Plan& plan, double elements) {
  const bool by_sub_groups = job.profile.memory_model == MemoryModel::kDeepspeed && plan.zero == 3;
  if (plan.offload.optimizer == 0 || !by_sub_groups) {
    return elements * plan.offload.optimizer;
  }
  const std::vector<std::int64_t> groups = deepspeed_sub_groups(job, plan);
  const std::int64_t on_gpu = deepspeed_sub_groups_on_gpu(plan, std::ssize(groups));
  const std::int64_t all = std::accumulate(groups.begin(), groups.end(), std::int64_t{0});
  const std::int64_t on_host =
      std::accumulate(groups.begin() + on_gpu, groups.end(), std::int64_t{0});
  return elements * number(on_host) / number(all);
}

// DeepSpeed's on the host, by as many threads as it is given and no faster than the rank's share of
// the host's memory. ZeRO-3's weights on the GPU are converted into host memory of their own, and
// so are those on the host that the GPU updates: copy_ of tensors that differ in type and place
// (stage3.py, _reassign_or_swap_out_partitioned_parameters; ATen/native/cuda/Copy.cu).
double deepspeed_on_host_s(const Job& job, const Plan& plan, double on_host, double on_gpu) {
  const double rate = std::min(number(job.profile.host_threads) * kHostThreadRate.value,
                               job.cluster.host_memory_bytes_per_s);
  double seconds = on_host * kFusedHostAdamBytes.value / rate;
  if (plan.zero == 3 && !plan.offload.parameters) {
    seconds += on_host * weight_bytes(plan) / kNewPagesRate.value;
  }
  if (plan.offload.parameters) {
    seconds += on_gpu * number(bytes_of(plan.master_dtype)) / kNewPagesBackRate.value;
  }
  return seconds;
}

// The offloaded share crosses PCIe to the host, which updates it in its own memory, and back:
// one after the other without --overlap-cpu-optimizer-d2h-h2d, and with it little less, as the host
// takes the most (Megatron-LM core_v0.16.1 core/optimizer/cpu_offloading/hybrid_optimizer.py, step;
// the host's AdamW is torch's, core/optimizer/__init__.py).
double optimizer_s(const Job& job, const Plan& plan, const ShardingGroups& groups,
                   const RankParameters& rank) {
  if (uses_muon(job)) {
    return muon_step_s(job, plan, groups, rank);
  }
  const LocalParameters& parameters = rank.held;
  const double dense_shards = plan.zero > 0 ? number(groups.dense_shard.size) : 1;
  const double expert_shards = plan.zero > 0 ? number(groups.expert_shard.size) : 1;
  const double elements =
      number(parameters.dense) / dense_shards + number(parameters.expert) / expert_shards;
  const double on_host = elements_on_host(job, plan, elements);
  const double on_gpu = elements - on_host;
  const std::int64_t replicas = groups.dense_shard.size * groups.dense_replica.size;
  const double held = number(parameters.dense + parameters.expert);
  const double kernels_s =
      elementwise_s(job.cluster.gpu, on_gpu * update_kernels(job, plan) +
                                         held * buffer_kernels(job, plan, replicas) +
                                         fp8_kernels(job, plan, groups, parameters));
  const double layers = number(std::ssize(job.model.layers)) / number(plan.pp);
  const double seconds = std::max(kernels_s, layers * host_update_s(job, plan));
  if (job.profile.memory_model == MemoryModel::kDeepspeed) {
    return seconds + deepspeed_on_host_s(job, plan, on_host, on_gpu);
  }
  if (plan.offload.optimizer == 0) {
    return seconds;
  }
  const double moved_bytes = on_host * (number(bytes_of(plan.grad_dtype)) + weight_bytes(plan));
  return seconds + moved_bytes / (job.cluster.gpu.pcie_bytes_per_s * kPcieShare.value) +
         on_host * kHostAdamBytes.value / job.cluster.host_memory_bytes_per_s;
}

}  // namespace shardplan
