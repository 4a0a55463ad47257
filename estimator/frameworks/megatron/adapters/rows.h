// What a frozen linear layer of a Megatron block saves, and the adapter beside it: rows.
// Sources: mcore-bridge f020e47 src/mcore_bridge/tuners/lora.py, LoraParallelLinear.forward;
// Transformer Engine v2.9 pytorch/module/{linear,layernorm_linear,grouped_linear}.py: the input is
// saved where the weight has a gradient (backward_needs_input), and the norm's output of
// LayerNormLinear where it is returned, as it is to an adapter.
#pragma once

#include <cstdint>
#include <string_view>

#include "estimator/frameworks/megatron/adapters/adapters.h"
#include "estimator/frameworks/megatron/blocks.h"

namespace shardplan::megatron {

// Whether linear layers have gradients of their own weights.
inline bool trains_linears(const MegatronBlock& block) {
  return !trains_adapters(block.job);
}

// An adapter without dropout saves the input of its layer as it is; one with it what dropout left.
inline bool saves_input(const MegatronBlock& block, bool has_adapter) {
  return trains_linears(block) || (has_adapter && block.job.adapters.dropout == 0);
}
// The same of an input that is a norm's output inside the layer.
inline bool saves_normed_input(const MegatronBlock& block, bool has_adapter) {
  return trains_linears(block) || has_adapter;
}

// Kept for backward where it is `saved`, else there until its last use in forward.
void keep_where_saved(MegatronBlock& block, bool saved, std::string_view name,
                      std::int64_t elements, DType dtype, Life life, std::string_view formula);

// As add_weight_gradient, of a layer's own weight, which a frozen layer has not.
void add_linear_gradient(MegatronBlock& block, std::string_view name, std::int64_t elements,
                         Step step, std::int64_t count = 1);

// Rows of tokens as a layer with an adapter has them.
struct AdapterTokens {
  std::int64_t input = 0;   // of the layer's input
  std::int64_t low = 0;     // of A's output, which B saves
  std::int64_t output = 0;  // of the layer's output
  bool gathers = false;     // A and B gather and divide the sequence between them
};

// The adapter that the place has, if it has one, of so many tokens.
void add_adapter(MegatronBlock& block, AdapterPlace place, const AdapterTokens& tokens);
// Of a column-parallel layer, whose input lies divided over the sequence where that is, or of a
// row-parallel one, whose output does.
void add_adapter(MegatronBlock& block, AdapterPlace place);
// Of a replicated layer, which works on this rank's part of the sequence.
void add_replicated_adapter(MegatronBlock& block, AdapterPlace place);
// Of a layer that has all tokens before and behind it, and leaves collectives to its callers.
void add_whole_adapter(MegatronBlock& block, AdapterPlace place);

}  // namespace shardplan::megatron
