#include "estimator/frameworks/torchtitan/parameters.h"

#include "estimator/plan/parameters.h"

namespace shardplan::torchtitan {

FsdpPlan fsdp_plan(const Job& job, const Plan& plan) {
  const ReshardAfterForward reshard = job.profile.reshard_after_forward;
  const bool always = reshard == ReshardAfterForward::kAlways;
  return {.is_sharded = plan.zero == 3,
          .reshards_forward = always || (reshard == ReshardAfterForward::kDefault && plan.pp == 1),
          .reshards_head = always,
          .reduces_each_backward = plan.pp == 1,
          .root_holds_ends = plan.zero == 3 && job.profile.root_holds_ends};
}

bool replicates(const Job& job, const Plan& plan) {
  return plan.zero == 0 && data_parallel_size(job, plan) > 1;
}

bool fsdp_unties_table(const Job& job, const Plan& plan) {
  const FsdpPlan fsdp = fsdp_plan(job, plan);
  return job.model.tied_embeddings && fsdp.is_sharded && !fsdp.root_holds_ends;
}

bool splits_expert_rows(const Job& job, const Plan& plan) {
  return plan.ep > 1 && expert_shard_size(job, plan) * plan.ep > job.model.moe.num_experts;
}

std::int64_t padded_experts(const Job& job, const Plan& plan, std::int64_t elements) {
  const std::int64_t experts = div_ceil(job.model.moe.num_experts, plan.ep);
  if (plan.zero != 3 || experts == 0 || splits_expert_rows(job, plan)) {
    return elements;
  }
  return elements / experts * round_up(experts, expert_shard_size(job, plan));
}

TitanParameters titan_parameters(const Job& job, const Plan& plan, bool is_moe) {
  const std::vector<ParameterTensor> layer = layer_parameters(
      job.model, {.is_moe = is_moe, .has_sinks = job.model.layers.front().has_sinks});
  // A shared table is gathered and reduced for both ends (_fsdp_init.py, _get_managed_states).
  const std::int64_t embedding = local_elements(job, plan, embedding_parameters(job.model));
  TitanParameters parameters = {
      .embedding = embedding,
      .layer = local_elements(job, plan, layer),
      .layer_norms = 2 * job.model.hidden + (job.model.qk_norm ? 2 * job.model.head_dim : 0),
      .head = local_elements(job, plan, head_parameters(job.model)) +
              (job.model.tied_embeddings ? embedding : 0),
      .experts = 0};
  std::int64_t experts = 0;
  for (const ParameterTensor& tensor : layer) {
    experts += tensor.sharding == Sharding::kExpert ? local_elements(job, plan, tensor) : 0;
  }
  // The second bias of biased experts is whole on every rank of etp.
  if (is_moe && job.model.moe.biased_experts && plan.etp > 1) {
    const std::int64_t biases = div_ceil(job.model.moe.num_experts, plan.ep) * job.model.hidden;
    const std::int64_t rest = biases - biases / plan.etp;
    experts += rest;
    parameters.layer += rest;
  }
  const std::int64_t padded = padded_experts(job, plan, experts);
  parameters.experts = plan.ep > 1 ? padded : 0;
  parameters.layer += (plan.ep > 1 ? 0 : padded) - experts;
  return parameters;
}

}  // namespace shardplan::torchtitan
