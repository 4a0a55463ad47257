#include "estimator/time/sharding_time.h"

#include <algorithm>
#include <optional>

#include "estimator/plan/number.h"
#include "estimator/time/collective_time.h"
#include "estimator/time/host_time.h"

namespace shardplan {
namespace {

double gathered_bytes(const Job& job, const Plan& plan, const UpdateTimes& times,
                      const GroupParameters& part) {
  return times.gathered_bytes != nullptr ? times.gathered_bytes(job, plan, part)
                                         : number(part.elements) * weight_bytes(plan);
}

double reduced_bytes(const Job& job, const Plan& plan, const UpdateTimes& times,
                     const GroupParameters& part) {
  return times.reduced_bytes != nullptr ? times.reduced_bytes(job, plan, part)
                                        : number(part.elements * bytes_of(plan.grad_dtype));
}

void add(RankUpdate& total, const Job& job, const Plan& plan, const UpdateTimes& times,
         const GroupParameters& part, const GroupShape& shard, const GroupShape& replica) {
  if (part.elements == 0) {
    return;
  }
  const double grad = reduced_bytes(job, plan, times, part);
  const Carrier reducing = times.has_wide_collectives ? Carrier::kWideNccl : Carrier::kNccl;
  const Carrier gathering =
      times.has_wide_collectives ? Carrier::kWideNccl : carrier_of(times.moves_by_copies, shard);
  const double units = times.num_collectives != nullptr ? times.num_collectives(job, plan) : 1;
  const auto in_units = [&](Collective collective, double bytes, Carrier carrier) {
    return units * collective_cost(job.cluster, shard, collective, bytes / units, carrier);
  };
  const auto summed = [&](const GroupShape& group, double bytes) {
    return collective_cost(job.cluster, group, Collective::kAllReduce, bytes, reducing);
  };
  const BesideCost between_replicas = summed(replica, grad / number(shard.size));
  total.reduce = total.reduce + in_units(Collective::kReduceScatter, grad, reducing);
  total.replica = total.replica + between_replicas;
  total.gather = total.gather + in_units(Collective::kAllGather,
                                         gathered_bytes(job, plan, times, part), gathering);
  total.all_reduce = total.all_reduce + summed(shard, grad) + between_replicas;
  if (times.add_copies != nullptr) {
    times.add_copies(total, job, plan, part, shard);
  }
}

double exceeding(double cost_s, double hidden_behind_s) {
  return std::max(0.0, cost_s - hidden_behind_s);
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

double weight_bytes(const Plan& plan) {
  return plan.precision == Precision::kFp32 ? 4 : 2;
}

RankUpdate rank_update(const Job& job, const Plan& plan, const UpdateTimes& times,
                       const ShardingGroups& groups, const RankParameters& parameters) {
  const LocalParameters& held = parameters.held;
  const Overlaps overlaps = allowed_overlaps(job);
  RankUpdate update;
  update.gathers_beside_forward = overlaps.gathers;
  update.reduces_beside_backward = overlaps.reductions;
  add(update, job, plan, times, {.elements = held.dense, .linear = held.linear}, groups.dense_shard,
      groups.dense_replica);
  add(update, job, plan, times, {.elements = held.expert, .linear = held.expert},
      groups.expert_shard, groups.expert_replica);
  const auto regather = [&](const GroupShape& shard, std::int64_t elements) {
    return collective_cost(job.cluster, shard, Collective::kAllGather,
                           number(elements) * weight_bytes(plan),
                           carrier_of(times.moves_by_copies, shard));
  };
  if (times.regathers_layers) {
    update.regather = regather(groups.dense_shard, parameters.regathered.dense) +
                      regather(groups.expert_shard, parameters.regathered.expert);
  }
  if (times.layer_shares != nullptr) {  // of any ZeRO: prices share it
    update.shares = times.layer_shares(
        job, plan, held.dense + (groups.expert_shard.size > 1 ? held.expert : 0));
  }
  if (parameters.tied_elements > 0) {
    update.tied_s = all_reduce_s(job.cluster, groups.embedding,
                                 number(parameters.tied_elements * bytes_of(plan.grad_dtype)));
  }
  update.optimizer_s = optimizer_s(job, plan, times, groups, parameters);
  return update;
}

// Copies are work of the GPU, which fills the time that it waits for the host; collectives hide
// behind both, and that time hides either.
double exposed_every_microbatch_s(const RankUpdate& update, const MicrobatchWork& work,
                                  double again) {
  const double forward_copies_s = update.gather_copies_s;
  const double backward_copies_s = again * update.gather_copies_s + update.reduce_copies_s;
  const double copies_s = forward_copies_s + backward_copies_s;
  const double longer_s = exceeding(copies_s, work.host_s);
  const double share = copies_s > 0 ? longer_s / copies_s : 0;
  return longer_s + beside_compute_s(update.gather, work.forward_s + share * forward_copies_s) +
         beside_compute_s(again * update.gather + update.reduce + update.replica,
                          work.backward_s + share * backward_copies_s);
}

double exposed_below_zero_3_s(const Plan& plan, const RankUpdate& update, double microbatches,
                              const MicrobatchWork& work, std::optional<double> summed_s) {
  const double forward_s = update.gathers_beside_forward ? work.forward_s : 0;
  const double backward_s = update.reduces_beside_backward ? work.backward_s : 0;
  if (plan.zero == 0) {
    return beside_compute_s(update.all_reduce, backward_s);
  }
  const double reduced_s =
      summed_s ? *summed_s : beside_compute_s(update.reduce + update.replica, backward_s);
  const double reductions = plan.zero == 1 ? 1 : microbatches;
  return reductions * reduced_s + beside_compute_s(update.gather, forward_s);
}

namespace {

double exposed_by_zero_s(const Job& job, const Plan& plan, const UpdateTimes& times,
                         const RankUpdate& update, double microbatches,
                         const MicrobatchWork& work) {
  if (plan.zero >= 3) {
    return times.exposed_zero_3_s != nullptr
               ? times.exposed_zero_3_s(job, plan, update, microbatches, work)
               : microbatches * exposed_every_microbatch_s(update, work);
  }
  const bool sums_whole = times.sums_whole != nullptr && times.sums_whole(job.profile, plan);
  const double seconds =
      exposed_below_zero_3_s(plan, update, microbatches, work,
                             sums_whole ? std::optional(update.all_reduce.alone_s) : std::nullopt);
  const bool gathers_updated =
      plan.zero == 0 && times.gathers_updated != nullptr && times.gathers_updated(job, plan);
  return gathers_updated ? seconds + update.gather.alone_s : seconds;
}

}  // namespace

double exposed_data_parallel_s(const Job& job, const Plan& plan, const UpdateTimes& times,
                               const RankUpdate& update, std::int64_t microbatches,
                               const MicrobatchWork& work) {
  const double m = number(microbatches);
  const double seconds = times.exposed_s != nullptr
                             ? times.exposed_s(job, plan, update, m, work)
                             : exposed_by_zero_s(job, plan, times, update, m, work);
  return (seconds + update.tied_s + update.largest_values_s) * job.profile.exposed_dp_share;
}

double optimizer_s(const Job& job, const Plan& plan, const UpdateTimes& times,
                   const ShardingGroups& groups, const RankParameters& rank) {
  const double layers = number(std::ssize(job.model.layers)) / number(plan.pp);
  const double host_s = layers * host_update_s(job, plan);
  if (times.matrix_step_s != nullptr) {
    if (const std::optional<double> step_s = times.matrix_step_s(job, plan, groups, rank, host_s)) {
      return *step_s;
    }
  }
  const LocalParameters& parameters = rank.held;
  const double dense_shards = plan.zero > 0 ? number(groups.dense_shard.size) : 1;
  const double expert_shards = plan.zero > 0 ? number(groups.expert_shard.size) : 1;
  const double elements =
      number(parameters.dense) / dense_shards + number(parameters.expert) / expert_shards;
  const double on_host = times.elements_on_host != nullptr
                             ? times.elements_on_host(job, plan, elements)
                             : elements * plan.offload.optimizer;
  const UpdatedElements updated = {.on_gpu = elements - on_host, .on_host = on_host};
  const std::int64_t replicas = groups.dense_shard.size * groups.dense_replica.size;
  const double held = number(parameters.dense + parameters.expert);
  const KernelBytes of_buffer =
      times.buffer_kernels != nullptr ? times.buffer_kernels(job, plan, replicas) : KernelBytes{};
  const KernelBytes of_weights = times.weight_kernels != nullptr
                                     ? times.weight_kernels(job, plan, groups, parameters)
                                     : KernelBytes{};
  const double kernels_s =
      elementwise_s(job.cluster.gpu,
                    updated.on_gpu * times.step_kernels(job, plan) + held * of_buffer + of_weights);
  const double on_gpu_s = std::max(kernels_s, host_s);
  return times.offloaded_step_s != nullptr ? times.offloaded_step_s(job, plan, updated, on_gpu_s)
                                           : on_gpu_s;
}

}  // namespace shardplan
