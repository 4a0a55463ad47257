// The FFN of a decoder layer, or the experts in its place.
#pragma once

#include "estimator/frameworks/pieces/huggingface/layer.h"

namespace shardplan::huggingface {

ExpertSizes expert_sizes(const LayerRun& run);
eager::Tensor outputs_of_chosen(const LayerRun& run, const Experts& experts,
                                const eager::Tensor& input, const eager::Tensor& weights,
                                const ExpertSizes& sizes);
eager::Tensor ffn(const LayerRun& run, Layer& layer, const eager::Tensor& input);

}  // namespace shardplan::huggingface
