#include "estimator/frameworks/pieces/attention_workspace.h"

#include "estimator/plan/units.h"

namespace shardplan {

// cuDNN 9.19, plan construction for an H200: default engine an fp32 accumulator of dQ and the
// statistics; deterministic one bf16 tile pair [ceil64(sq), ceil64(skv)] per query head. With fewer
// kv heads than query heads, fp32 dK and dV are expanded to query heads.
std::int64_t cudnn_backward_workspace_bytes(const CudnnShape& shape, bool deterministic) {
  const std::int64_t heads = shape.batch * shape.query_heads;
  const std::int64_t statistics = 4 * heads * shape.query_length;
  const std::int64_t expanded =
      shape.query_heads != shape.kv_heads ? 4 * heads * shape.kv_length * shape.head_dim : 0;
  const std::int64_t gradients =
      deterministic ? 2 * heads * round_up(shape.query_length, 64) * round_up(shape.kv_length, 64)
                    : 4 * heads * shape.query_length * shape.head_dim;
  return gradients + statistics + expanded;
}

}  // namespace shardplan
