// Mamba-2 by PyTorch's operators, a convolution, a scan in chunks whose sums are of whole products,
// and a gated norm; or by one function of mamba_ssm. Source: transformers 5.17
// models/nemotron_h/modeling_nemotron_h.py NemotronHMamba2Mixer, mamba2_chunk_scan,
// models/bamba/modeling_bamba.py, models/falcon_h1/modeling_falcon_h1.py.
#pragma once

#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/mixers/packages.h"
#include "estimator/frameworks/pieces/huggingface/norms.h"
#include "estimator/plan/layer_spec.h"

namespace shardplan::huggingface {

struct Mamba {
  Linear input;  // gate, what is convolved, and step sizes
  eager::Parameter convolution, convolution_bias, step_bias, decay_log, skip;
  Norm norm;                    // of every group's channels; width 0: none
  eager::Tensor column_scales;  // a buffer, of what the input makes; undefined: none
  Linear output;

  bool is_defined() const { return output.shape.inputs > 0; }
};

struct MambaSizes {
  std::int64_t tokens = 0;
  std::int64_t sequence = 0;
  MambaSpec widths;
  Packages packages = {};
};

// By mamba_ssm, with the output projection.
eager::Tensor combined_mamba(eager::Graph& graph, Mamba& mixer, const eager::Tensor& input,
                             const MambaSizes& sizes);
// To the output projection's input.
eager::Tensor mamba(eager::Graph& graph, Mamba& mixer, const eager::Tensor& input,
                    const MambaSizes& sizes);

}  // namespace shardplan::huggingface
