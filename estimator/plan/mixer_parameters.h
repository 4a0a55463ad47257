// Parameter tensors of what mixes the tokens of a layer.
#pragma once

#include "estimator/plan/parameter_tensor.h"

namespace shardplan {

// Of attention or what stands in its place, and of what stands beside it; without the norm in
// front.
void add_mixer(ParameterTensors& tensors, const ModelSpec& model, const LayerSpec& layer);

}  // namespace shardplan
