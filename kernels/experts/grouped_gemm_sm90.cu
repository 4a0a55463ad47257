#include "kernels/experts/grouped_tensor_cores.h"
#include "kernels/experts/grouped_tiles_sm90.cuh"

namespace shardplan {

void grouped_gemm_on_warpgroups(__nv_bfloat16* out, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                const std::int32_t* offsets, const GroupedGemmShape& shape,
                                cudaStream_t stream) {
  const bool transposed = shape.b_layout == GemmLayout::kTransposed;
  const CUtensorMap rows = map_matrices(a, 1, shape.capacity, shape.inner);
  const CUtensorMap weights = transposed
                                  ? map_matrices(b, shape.experts, shape.columns, shape.inner)
                                  : map_matrices(b, shape.experts, shape.inner, shape.columns);
  const GroupedTask<__nv_bfloat16> task{.out = out,
                                        .offsets = offsets,
                                        .experts = static_cast<int>(shape.experts),
                                        .columns = static_cast<int>(shape.columns),
                                        .inner = static_cast<int>(shape.inner)};
  // Of an expert's tiles one at most is not full.
  const std::int64_t row_tiles = shape.capacity / kTileRows + shape.experts;
  const auto start = transposed ? start_grouped<false, false, __nv_bfloat16>
                                : start_grouped<false, true, __nv_bfloat16>;
  start(rows, weights, task, row_tiles, stream);
}

}  // namespace shardplan
