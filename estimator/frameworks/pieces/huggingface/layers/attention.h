// Attention of a decoder layer, from its input to its output projection.
#pragma once

#include "estimator/frameworks/pieces/huggingface/layer.h"

namespace shardplan::huggingface {

// `place`: of the layer in the model.
eager::Tensor attention(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                        const eager::Tensor& input);

}  // namespace shardplan::huggingface
