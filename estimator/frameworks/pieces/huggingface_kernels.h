// Memory-bound kernels of Hugging Face's decoder layers, eager. e is the size of an element in
// bytes.
#pragma once

#include "estimator/time/elementwise.h"

namespace shardplan {

LayerKernels huggingface_kernels(double e);

// Qwen3RMSNorm on heads (modeling_qwen3.py).
Passes huggingface_head_norm(double e);

// Gemma's norms in place of Llama's.
Passes huggingface_gemma_norm(Passes norm, double e);
// Each of four norms in a layer in place of each of two.
Passes huggingface_four_norms(Passes norm, double e);

// Norms that multiply by their weight in fp32 (OLMo 2), LayerNorms operator by operator (Cohere)
// and LayerNorm in one kernel in place of Llama's; `computed`: bytes of what autocast casts it to.
Passes huggingface_wide_norm(Passes norm, double e);
Passes huggingface_centred_norm(Passes norm, double e);
Passes huggingface_layer_norm(double e, double computed);

// A norm whose weight is not trained.
Passes huggingface_frozen_norm(Passes norm, double e);

}  // namespace shardplan
