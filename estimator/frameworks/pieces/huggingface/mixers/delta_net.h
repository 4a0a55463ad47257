// The gated delta net of Qwen3-Next and Qwen3.5: a short convolution, and the delta rule in chunks
// of tokens, by PyTorch's operators or by the packages fla and causal_conv1d. The norm behind is
// PyTorch's either way. Source: transformers 5.17 models/qwen3_5/modeling_qwen3_5.py
// Qwen3_5GatedDeltaNet, torch_chunk_gated_delta_rule, models/qwen3_next/modeling_qwen3_next.py.
#pragma once

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/mixers/packages.h"
#include "estimator/frameworks/pieces/huggingface/norms.h"
#include "estimator/plan/layer_spec.h"

namespace shardplan::huggingface {

struct DeltaNet {
  Linear queries_keys_values, gates, rates, decays;  // rates: beta
  Linear joint, joint_scalars;  // in place of them: all but the last two, and these (Qwen3-Next)
  eager::Parameter convolution, step_bias, decay_log;
  Norm norm;
  bool has_norm_kernel = false;  // axolotl's, of the norm and its gate
  Linear output;

  bool is_defined() const { return output.shape.inputs > 0; }
};

struct DeltaSizes {
  std::int64_t tokens = 0;
  std::int64_t sequence = 0;
  DeltaSpec widths;
  Packages packages = {};
};

// To the output projection's input.
eager::Tensor delta_net(eager::Graph& graph, DeltaNet& net, const eager::Tensor& input,
                        const DeltaSizes& sizes);

}  // namespace shardplan::huggingface
