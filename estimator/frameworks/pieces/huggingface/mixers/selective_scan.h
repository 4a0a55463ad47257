// Mamba: a convolution, projections of its output that say how far states decay and what enters and
// leaves them, and a scan, by PyTorch's operators one token after the other. Source: transformers
// 5.17 models/jamba/modeling_jamba.py JambaMambaMixer, mamba_selective_scan; without mambapy.
#pragma once

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/mixers/packages.h"
#include "estimator/frameworks/pieces/huggingface/norms.h"
#include "estimator/plan/layer_spec.h"

namespace shardplan::huggingface {

struct SelectiveScan {
  Linear input;      // what is convolved, and the gate
  Linear selection;  // steps of a low rank, and both rows of states
  Linear steps;      // back from that rank
  eager::Parameter convolution, convolution_bias, decay_log, skip;
  Norm step_norm, input_norm, output_norm;
  Linear output;

  bool is_defined() const { return output.shape.inputs > 0; }
};

struct SelectiveSizes {
  std::int64_t tokens = 0;
  std::int64_t sequence = 0;
  MambaSpec widths;
  Packages packages = {};
};

// To the output projection's input.
eager::Tensor selective_scan(eager::Graph& graph, SelectiveScan& mixer, const eager::Tensor& input,
                             const SelectiveSizes& sizes);

}  // namespace shardplan::huggingface
