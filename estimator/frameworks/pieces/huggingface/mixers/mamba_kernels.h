// State spaces by mamba_ssm's kernels. Sources: mamba_ssm 2.3.2.post1 ops/triton/{ssd_combined,
// ssd_chunk_state,ssd_state_passing,ssd_bmm,ssd_chunk_scan,layernorm_gated}.py,
// utils/determinism.py, ops/selective_scan_interface.py SelectiveScanFn,
// csrc/selective_scan/selective_scan.cpp; with causal-conv1d 1.7.0.
#pragma once

#include "estimator/frameworks/pieces/huggingface/mixers/mamba.h"
#include "estimator/frameworks/pieces/huggingface/mixers/selective_scan.h"

namespace shardplan::huggingface {

// mamba_split_conv1d_scan_combined: convolution, scan, norm with a gate and the output projection
// are one function, which saves its input and the scan's output. `rows`: what the input projection
// makes; `decay`: of each head.
eager::Tensor mamba_split_conv1d_scan_combined(eager::Graph& graph, Mamba& mixer,
                                               const eager::Tensor& rows,
                                               const eager::Tensor& decay, const MambaSizes& sizes);

// selective_scan_fn: its inputs as copies that lie channels before tokens.
struct SelectiveInputs {
  eager::Tensor values, steps, decays, input_rows, output_rows, skip, gate, step_bias;
};
eager::Tensor selective_scan_fn(eager::Graph& graph, const SelectiveInputs& inputs,
                                const SelectiveSizes& sizes);

}  // namespace shardplan::huggingface
