#include "estimator/frameworks/megatron/attention_backend.h"

#include <algorithm>

namespace shardplan::megatron {

bool has_sinks(const Job& job) {
  return std::ranges::any_of(job.model.layers, &LayerSpec::has_sinks);
}

bool has_indexers(const Job& job) {
  return job.model.indexer.num_heads > 0 &&
         std::ranges::any_of(job.model.layers, &LayerSpec::has_indexer);
}

// TransformerEngine 2.8 pytorch/attention/dot_product_attention/utils.py, get_attention_backend:
// FlashAttention 2 below compute capability 9.0, cuDNN from there on where it can; on 10.0 its
// backward is not deterministic, and FlashAttention 2 has no heads with two widths and no sinks.
AttentionBackend attention_backend(const Job& job, const Plan&) {
  const AttentionBackend chosen = job.profile.attention_backend;
  const std::int64_t capability = job.cluster.gpu.compute_capability;
  const auto flash_can = [&] { return !job.model.is_mla() && !has_sinks(job); };
  if (chosen != AttentionBackend::kAuto) {
    return chosen;
  }
  if (capability >= 100 && job.profile.deterministic_attention) {
    return flash_can() ? AttentionBackend::kFlash : AttentionBackend::kUnfused;
  }
  return capability > 0 && capability < 90 && flash_can() ? AttentionBackend::kFlash
                                                          : AttentionBackend::kFused;
}

bool saves_probabilities(const Job& job, const Plan& plan) {
  const AttentionBackend backend = attention_backend(job, plan);
  return backend == AttentionBackend::kUnfused || backend == AttentionBackend::kLocal ||
         has_indexers(job);
}

}  // namespace shardplan::megatron
