// What mixes the tokens of a layer: attention, a recurrence, a convolution, or two of them.
#pragma once

#include "estimator/frameworks/pieces/huggingface/layer.h"

namespace shardplan::huggingface {

// `place`: of the layer in the model.
eager::Tensor mixed(const LayerRun& run, Layer& layer, std::size_t place,
                    const SharedByLayer& shared, const eager::Tensor& input);

}  // namespace shardplan::huggingface
