// Kernels of the Hub that transformers' use_kernels has in place of what classes of models do
// while they train: Liger's norms, and rotary embeddings that turn copies in place. Sources:
// transformers 5.14.1 integrations/hub_kernels.py _build_kernel_mapping, kernelize and decorators
// of the models' files (5.17 has the same); kernels 0.15.2 layer/layer.py; huggingface/
// kernels-community (2026-08) liger-kernels/torch-ext/liger_kernels/layers.py LigerRMSNorm,
// rotary/torch-ext/rotary/__init__.py apply_rotary_transformers; axolotl 067b021
// monkeypatch/kernelize_fixes.py.
#pragma once

#include "estimator/frameworks/pieces/eager/autograd.h"
#include "estimator/plan/model_spec.h"

namespace shardplan::huggingface {

struct HubKernels {
  bool norms = false;
  bool rotary = false;
  bool is_read = true;  // no: what they take the place of in that class was not read
};
HubKernels hub_kernels_of(const ModelSpec& model);

// A copy, turned in place; its gradient goes through as it comes, which no backward pass of the
// kernel turns.
eager::Tensor turned_copy(eager::Graph& graph, const eager::Tensor& input);

}  // namespace shardplan::huggingface
