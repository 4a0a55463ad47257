// Job: what is asked and not negotiable.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "estimator/plan/cluster_spec.h"
#include "estimator/plan/framework_profile.h"
#include "estimator/plan/model_spec.h"
#include "estimator/plan/plan.h"
#include "estimator/plan/tuning.h"
#include "estimator/plan/units.h"

namespace shardplan {

// kMuon and kDistMuon: Megatron-LM's, by muon.h. Moments in 8 bits, and states in CUDA's managed
// memory (paged), are bitsandbytes'; torchao has moments in 8 and 4 bits of its own.
enum class OptimizerKind {
  kAdamW,
  kSgdMomentum,
  kMuon,
  kDistMuon,
  kSgd,
  kAdafactor,
  kAdamW8bit,
  kPagedAdamW,
  kPagedAdamW8bit,
  kTorchaoAdamW8bit,
  kTorchaoAdamW4bit,
  kLion,
  kPagedLion,
  kLion8bit,
  kPagedLion8bit,
  kGaLore,    // AdamW of gradients of matrices, projected by their singular vectors
  kApollo,    // AdamW's scale of channels, of gradients projected at random
  kAdamMini,  // one second moment a head, a row or a vector
  kBAdam,     // AdamW of one block after the other, in fp32 beside its weights
  kMuonClip,  // ms-swift's Muon, which bounds products of queries and keys
};
constexpr bool is_paged(OptimizerKind optimizer) {
  using enum OptimizerKind;
  return optimizer == kPagedAdamW || optimizer == kPagedAdamW8bit || optimizer == kPagedLion ||
         optimizer == kPagedLion8bit;
}
constexpr bool is_of_bitsandbytes(OptimizerKind optimizer) {
  using enum OptimizerKind;
  return is_paged(optimizer) || optimizer == kAdamW8bit || optimizer == kLion ||
         optimizer == kLion8bit;
}

enum class TrainedParameters { kAll, kAdapters, kNamed };
inline constexpr std::array<NamedValue<OptimizerKind>, 20> kOptimizerKinds = {{
    {.value = OptimizerKind::kAdamW, .name = "adamw"},
    {.value = OptimizerKind::kSgdMomentum, .name = "sgd_momentum"},
    {.value = OptimizerKind::kMuon, .name = "muon"},
    {.value = OptimizerKind::kDistMuon, .name = "dist_muon"},
    {.value = OptimizerKind::kSgd, .name = "sgd"},
    {.value = OptimizerKind::kAdafactor, .name = "adafactor"},
    {.value = OptimizerKind::kAdamW8bit, .name = "adamw_8bit"},
    {.value = OptimizerKind::kPagedAdamW, .name = "paged_adamw"},
    {.value = OptimizerKind::kPagedAdamW8bit, .name = "paged_adamw_8bit"},
    {.value = OptimizerKind::kTorchaoAdamW8bit, .name = "torchao_adamw_8bit"},
    {.value = OptimizerKind::kTorchaoAdamW4bit, .name = "torchao_adamw_4bit"},
    {.value = OptimizerKind::kLion, .name = "lion"},
    {.value = OptimizerKind::kPagedLion, .name = "paged_lion"},
    {.value = OptimizerKind::kLion8bit, .name = "lion_8bit"},
    {.value = OptimizerKind::kPagedLion8bit, .name = "paged_lion_8bit"},
    {.value = OptimizerKind::kGaLore, .name = "galore"},
    {.value = OptimizerKind::kApollo, .name = "apollo"},
    {.value = OptimizerKind::kAdamMini, .name = "adam_mini"},
    {.value = OptimizerKind::kBAdam, .name = "badam"},
    {.value = OptimizerKind::kMuonClip, .name = "muonclip"},
}};
inline constexpr std::array<NamedValue<TrainedParameters>, 3> kTrainedParameters = {{
    {.value = TrainedParameters::kAll, .name = "all"},
    {.value = TrainedParameters::kAdapters, .name = "adapters"},
    {.value = TrainedParameters::kNamed, .name = "named"},
}};
constexpr const auto& names_of(OptimizerKind) {
  return kOptimizerKinds;
}
constexpr const auto& names_of(TrainedParameters) {
  return kTrainedParameters;
}

struct Job {
  ModelSpec model;
  ClusterSpec cluster;
  FrameworkProfile profile;
  std::int64_t sequence_length = 0;  // tokens
  std::int64_t global_batch = 0;     // sequences per optimizer step, all data-parallel ranks
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double hidden_dropout = 0;     // after attention, FFN and embedding
  double attention_dropout = 0;  // of attention probabilities
  Adapters adapters = {};
  QuantizedWeights quantized = {};  // of frozen linear layers
  // By Hugging Face's names of parameters, without adapters: the last rule that fits a name counts,
  // a parameter that none fits is trained.
  std::vector<NameRule> name_rules = {};
};

// What the framework lets run beside what.
inline Overlaps allowed_overlaps(const Job& job) {
  const auto asked = job.profile.choices.overlaps;
  return asked != nullptr ? asked(job) : Overlaps{};
}

inline TrainedParameters trained_parameters(const Job& job) {
  return job.adapters.rank > 0     ? TrainedParameters::kAdapters
         : !job.name_rules.empty() ? TrainedParameters::kNamed
                                   : TrainedParameters::kAll;
}

// Derived sizes. They divide exactly for plans that pass why_invalid; else they throw logic_error.
std::int64_t data_parallel_size(const Job& job, const Plan& plan);  // dp, without cp
std::int64_t num_microbatches(const Job& job, const Plan& plan);    // per data-parallel rank
std::int64_t tokens_per_microbatch(const Job& job,
                                   const Plan& plan);  // s * b / cp, one rank, before SP
// Of them on each rank of a tensor-parallel group, where sequence parallelism divides them.
std::int64_t sharded_tokens(const Job& job, const Plan& plan);
std::int64_t padded_vocab(const Job& job, const Plan& plan);
// Ranks that share one copy of the optimizer state of dense parameters: dp * cp / dp_replicate.
std::int64_t dense_shard_size(const Job& job, const Plan& plan);
// The same for routed experts: world / (pp * ep * etp) / dp_replicate.
std::int64_t expert_shard_size(const Job& job, const Plan& plan);
// Ranks among which the state of experts' weights is divided: those with the same experts, unless
// the framework keeps it with the dense one.
std::int64_t expert_state_shards(const Job& job, const Plan& plan);

// The norms before attention and FFN that stand alone, whose outputs recomputation of `layernorm`
// drops. Fused ones (fuses_norms_into_linears) are those before grouped-query attention, and before
// a dense FFN.
struct SeparateNorms {
  bool attention = true;
  bool ffn = true;
};
SeparateNorms separate_norms(const Job& job, bool is_moe);

// The optimizers that update matrices by their orthogonalized momentum.
bool uses_muon(const Job& job);

}  // namespace shardplan
