// Kimi delta attention: a short convolution, a delta rule with a decay for every channel of keys,
// and a norm with a gate. Source: transformers 5.17 models/kimi_linear/modeling_kimi_linear.py
// KimiLinearDeltaAttention, KimiLinearForgetGate, KimiLinearRMSNormGated; its rule runs by fla
// alone here.
#pragma once

#include "estimator/frameworks/pieces/huggingface/mixers/delta_net.h"

namespace shardplan::huggingface {

struct KimiDelta {
  Linear query, key, value;
  eager::Parameter convolution, step_bias, decay_log;
  Linear decay_down, decay_up;  // through as many channels as a head has
  Linear rates;
  Linear gate_down, gate_up;
  Norm norm;
  Linear output;

  bool is_defined() const { return output.shape.inputs > 0; }
};

// To the output projection's input.
eager::Tensor kimi_delta(eager::Graph& graph, KimiDelta& mixer, const eager::Tensor& input,
                         const DeltaSizes& sizes);

}  // namespace shardplan::huggingface
