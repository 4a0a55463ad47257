#include "kernels/experts/grouped_weight_gradient.h"

#include <type_traits>

#include "kernels/experts/grouped_tensor_cores.h"
#include "kernels/experts/grouped_tiles.cuh"
#include "kernels/gemm/warpgroups.h"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

template <class T, class G>
__global__ void __launch_bounds__(ProductTile<T>::kThreads, 2)
    gradient_kernel(G* __restrict__ out, const T* __restrict__ a, const T* __restrict__ b,
                    const std::int32_t* __restrict__ offsets, int rows, int columns,
                    GradientSum sum) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = ProductTile<T>;
  const TilePlace place =
      tile_place(static_cast<int>(blockIdx.x), (columns + Tile::kSide - 1) / Tile::kSide);
  const int first_row = place.row * Tile::kSide;
  const int expert = static_cast<int>(blockIdx.y);
  const std::int64_t begin = offsets[expert];
  const int inner = offsets[expert + 1] - static_cast<int>(begin);
  if (first_row >= rows || (inner == 0 && sum == GradientSum::kAccumulate)) {
    return;
  }
  const Factor<T> left{a + begin * rows, rows, rows, inner};
  const Factor<T> right{b + begin * columns, columns, columns, inner};
  const Result<G> result{out + static_cast<std::int64_t>(expert) * rows * columns, columns, rows,
                         columns, sum};
  multiply_tile<true, true>(result, left, right, first_row, place.column * Tile::kSide, shared);
}

}  // namespace

template <class T, class G>
void grouped_weight_gradient_on_tensor_cores(G* out, const T* a, const T* b,
                                             const std::int32_t* offsets,
                                             const GroupedWeightShape& shape, GradientSum sum,
                                             cudaStream_t stream) {
  constexpr std::int64_t kSide = ProductTile<T>::kSide;
  const auto kernel = gradient_kernel<T, G>;
  const std::int64_t row_tiles = ((shape.rows + kSide - 1) / kSide + 15) / 16 * 16;  // whole bands
  const dim3 blocks(static_cast<unsigned>(row_tiles * ((shape.columns + kSide - 1) / kSide)),
                    static_cast<unsigned>(shape.experts));
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  ProductTile<T>::kSharedBytes));
  kernel<<<blocks, ProductTile<T>::kThreads, ProductTile<T>::kSharedBytes, stream>>>(
      out, a, b, offsets, static_cast<int>(shape.rows), static_cast<int>(shape.columns), sum);
  CUDA_CHECK(cudaGetLastError());
}

template <class T, class G>
void grouped_weight_gradient(G* out, const T* a, const T* b, const std::int32_t* offsets,
                             const GroupedWeightShape& shape, GradientSum sum,
                             cudaStream_t stream) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (has_warpgroups()) {
      grouped_weight_gradient_on_warpgroups(out, a, b, offsets, shape, sum, stream);
      return;
    }
  }
  grouped_weight_gradient_on_tensor_cores(out, a, b, offsets, shape, sum, stream);
}

#define SHARDPLAN_INSTANTIATE(T, G)                                                        \
  template void grouped_weight_gradient_on_tensor_cores(                                   \
      G*, const T*, const T*, const std::int32_t*, const GroupedWeightShape&, GradientSum, \
      cudaStream_t);                                                                       \
  template void grouped_weight_gradient(G*, const T*, const T*, const std::int32_t*,       \
                                        const GroupedWeightShape&, GradientSum, cudaStream_t);
SHARDPLAN_INSTANTIATE(float, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
