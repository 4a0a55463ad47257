// Delta rules over chunks of 64 tokens by flash-linear-attention's kernels. Sources: fla-core 0.6.0
// fla/ops/gated_delta_rule/{chunk,chunk_fwd,wy_fast}.py, fla/ops/kda/{chunk,chunk_fwd,chunk_bwd,
// chunk_intra,wy_fast}.py, fla/ops/common/{chunk_delta_h,chunk_o}.py, fla/modules/norm/l2norm.py,
// fla/utils/decorators.py input_guard. 0.4.1 keeps the same.
#pragma once

#include "estimator/frameworks/pieces/huggingface/mixers/delta_rule.h"

namespace shardplan::huggingface {

// chunk_gated_delta_rule: one decay a head. Queries and keys are of value heads.
eager::Tensor chunk_gated_delta_rule(eager::Graph& graph, const DeltaInputs& inputs,
                                     const DeltaSizes& sizes);

// chunk_kda: one decay a channel of keys.
eager::Tensor chunk_kda(eager::Graph& graph, const DeltaInputs& inputs, const DeltaSizes& sizes);

}  // namespace shardplan::huggingface
