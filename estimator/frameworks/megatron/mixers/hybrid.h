// Models of layers with one part each: Mamba-2, attention, an FFN or experts alone (nemotron_h).
// Source: Megatron-LM core_v0.16.1 core/ssm/mamba_block.py, MambaStack.
#pragma once

#include <algorithm>

#include "estimator/plan/job.h"

namespace shardplan::megatron {

inline bool has_single_part(const LayerSpec& layer) {
  return layer.mixer == MixerKind::kNone || !layer.has_ffn;
}
inline bool is_hybrid(const Job& job) {
  return std::ranges::any_of(job.model.layers, has_single_part);
}

// Whether attention turns queries and keys by their positions. Layers without rotary positions
// beside others with them count as these.
inline bool turns_positions(const ModelSpec& model) {
  const auto turns = [](const LayerSpec& layer) {
    return layer.mixer == MixerKind::kAttention && layer.has_rotary;
  };
  return model.learned_positions == 0 &&
         (model.layers.empty() || std::ranges::any_of(model.layers, turns));
}

}  // namespace shardplan::megatron
