// Which of Transformer Engine's kernels runs the core attention of a Megatron layer.
#pragma once

#include "estimator/plan/job.h"

namespace shardplan::megatron {

// What runs, with kAuto resolved as Transformer Engine does.
AttentionBackend attention_backend(const Job& job, const Plan& plan);
// The probabilities of all pairs are written out and saved.
bool saves_probabilities(const Job& job, const Plan& plan);
// A layer has a trained score a head beside those of the keys (softmax_type learnable).
bool has_sinks(const Job& job);
// A layer's keys are chosen by an indexer.
bool has_indexers(const Job& job);
// Products, norms and attention are Megatron-core's own (get_gpt_layer_local_spec).
inline bool has_local_layers(const Job& job) {
  return job.profile.attention_backend == AttentionBackend::kLocal;
}

}  // namespace shardplan::megatron
