#include "estimator/plan/job.h"

namespace shardplan {

std::int64_t data_parallel_size(const Job& job, const Plan& plan) {
  return plan.dp > 0 ? plan.dp : div_exact(job.cluster.world_size(), plan.tp * plan.cp * plan.pp);
}

std::int64_t num_microbatches(const Job& job, const Plan& plan) {
  return div_exact(job.global_batch, data_parallel_size(job, plan) * plan.micro_batch);
}

std::int64_t tokens_per_microbatch(const Job& job, const Plan& plan) {
  return div_exact(job.sequence_length, plan.cp) * plan.micro_batch;
}

std::int64_t sharded_tokens(const Job& job, const Plan& plan) {
  const std::int64_t tokens = tokens_per_microbatch(job, plan);
  return plan.tp > 1 && plan.sequence_parallel ? div_ceil(tokens, plan.tp) : tokens;
}

// Megatron-LM training/tokenizer: the vocabulary is padded to a multiple of
// make-vocab-size-divisible-by * tp. A multiple of 1 still makes it divisible by tp.
std::int64_t padded_vocab(const Job& job, const Plan& plan) {
  return round_up(job.model.vocab, job.profile.vocab_multiple * plan.tp);
}

std::int64_t dense_shard_size(const Job& job, const Plan& plan) {
  return div_exact(data_parallel_size(job, plan) * plan.cp, plan.dp_replicate);
}

// The ranks of one pipeline stage are tp * cp * dp; experts divide them by ep * etp instead.
std::int64_t expert_shard_size(const Job& job, const Plan& plan) {
  const std::int64_t stage_ranks = plan.tp * plan.cp * data_parallel_size(job, plan);
  return div_exact(div_exact(stage_ranks, plan.ep * plan.etp), plan.dp_replicate);
}

std::int64_t expert_state_shards(const Job& job, const Plan& plan) {
  return job.profile.layout.reduces_whole_experts_as_dense && plan.ep == 1
             ? dense_shard_size(job, plan)
             : expert_shard_size(job, plan);
}

SeparateNorms separate_norms(const Job& job, bool is_moe) {
  if (!job.profile.layout.fuses_norms_into_linears) {
    return {};
  }
  return {.attention = job.model.is_mla(), .ffn = is_moe};
}

bool uses_muon(const Job& job) {
  return job.optimizer == OptimizerKind::kMuon || job.optimizer == OptimizerKind::kDistMuon;
}

}  // namespace shardplan
