// Widths that a layer's linear weights and what stands beside them share.
#pragma once

#include <cstdint>

#include "estimator/plan/model_spec.h"

namespace shardplan::huggingface {

// Of the projection of queries, of attention that makes its gate, too.
std::int64_t query_width(const ModelSpec& model);
// Whether heads differ from the model's, or keys are those of others.
bool has_own_attention(const LayerSpec& layer);
// Of what a state space's convolution sees.
std::int64_t mamba_channels(const MambaSpec& mamba);

}  // namespace shardplan::huggingface
