// The scan of Mamba-2 in chunks of tokens, in fp32 (transformers 5.17
// models/nemotron_h/modeling_nemotron_h.py mamba2_chunk_scan).
#pragma once

#include "estimator/frameworks/pieces/huggingface/mixers/mamba.h"

namespace shardplan::huggingface {

struct ScanInputs {
  eager::Tensor values;                   // of heads
  eager::Tensor input_rows, output_rows;  // B and C, of groups
  eager::Tensor steps;                    // of heads, in fp32
  eager::Tensor decays;                   // A, a number of every head
  eager::Tensor skip;                     // D, likewise
};

eager::Tensor mamba_scan(eager::Graph& graph, const ScanInputs& inputs, const MambaSizes& sizes);

}  // namespace shardplan::huggingface
