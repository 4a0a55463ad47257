// Queries, keys and values of classes that make them in an order of their own.
#pragma once

#include "estimator/frameworks/pieces/huggingface/layer.h"

namespace shardplan::huggingface {

// Gemma4TextAttention: queries are turned before keys are made. The last layer of each kind with
// keys of its own leaves them to those behind it.
Heads heads_with_value_norm(const LayerRun& run, Layer& layer, std::size_t place,
                            const Rotary& rotary, const eager::Tensor& input);

// Llama4TextAttention, whose heads stand behind tokens until attention.
Heads heads_behind_tokens(const LayerRun& run, Layer& layer, std::size_t place,
                          const Rotary& rotary, const eager::Tensor& input);

}  // namespace shardplan::huggingface
