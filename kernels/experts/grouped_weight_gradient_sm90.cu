#include <limits>

#include "kernels/experts/grouped_tensor_cores.h"
#include "kernels/experts/grouped_tiles_sm90.cuh"

namespace shardplan {

template <class G>
void grouped_weight_gradient_on_warpgroups(G* out, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                           const std::int32_t* offsets,
                                           const GroupedWeightShape& shape, GradientSum sum,
                                           cudaStream_t stream) {
  // How many rows the experts have, only the device knows; no box ends behind their last.
  constexpr std::int64_t kAnyRows = std::numeric_limits<std::int32_t>::max();
  const GroupedTask<G> task{.out = out,
                            .offsets = offsets,
                            .experts = static_cast<int>(shape.experts),
                            .rows = static_cast<int>(shape.rows),
                            .columns = static_cast<int>(shape.columns),
                            .sum = sum};
  start_grouped<true, true>(map_matrices(a, 1, kAnyRows, shape.rows),
                            map_matrices(b, 1, kAnyRows, shape.columns), task,
                            shape.experts * ((shape.rows + kTileRows - 1) / kTileRows), stream);
}

template void grouped_weight_gradient_on_warpgroups(float*, const __nv_bfloat16*,
                                                    const __nv_bfloat16*, const std::int32_t*,
                                                    const GroupedWeightShape&, GradientSum,
                                                    cudaStream_t);
template void grouped_weight_gradient_on_warpgroups(__nv_bfloat16*, const __nv_bfloat16*,
                                                    const __nv_bfloat16*, const std::int32_t*,
                                                    const GroupedWeightShape&, GradientSum,
                                                    cudaStream_t);

}  // namespace shardplan
