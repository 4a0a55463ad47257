#include "kernels/experts/grouped_gemm.h"

#include <type_traits>

#include "kernels/experts/grouped_tensor_cores.h"
#include "kernels/experts/grouped_tiles.cuh"
#include "kernels/gemm/warpgroups.h"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr unsigned kAllLanes = 0xffffffffU;

// One tile of rows of one expert.
struct RowTile {
  int expert;  // below 0: there is no such tile
  int first;
  int end;  // of the expert's rows
};

// Tile `index` of all experts' tiles of `side` rows; a warp looks at 32 experts at a time.
__device__ RowTile find_tile(const std::int32_t* offsets, int experts, int side, int index) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int base = 0; base < experts; base += 32) {
    const int expert = base + lane;
    const int begin = expert < experts ? offsets[expert] : 0;
    const int end = expert < experts ? offsets[expert + 1] : 0;
    const int tiles = (end - begin + side - 1) / side;
    int scan = tiles;  // inclusive, over the lanes
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(kAllLanes, scan, offset);
      scan += lane >= offset ? other : 0;
    }
    const unsigned behind = __ballot_sync(kAllLanes, index < scan);
    if (behind != 0) {
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      const int first = begin + (index - (scan - tiles)) * side;
      return {base + owner, __shfl_sync(kAllLanes, first, owner),
              __shfl_sync(kAllLanes, end, owner)};
    }
    index -= __shfl_sync(kAllLanes, scan, 31);
  }
  return {-1, 0, 0};
}

template <class T, bool kTransposed>
__global__ void __launch_bounds__(ProductTile<T>::kThreads, 2)
    grouped_kernel(T* __restrict__ out, const T* __restrict__ a, const T* __restrict__ b,
                   const std::int32_t* __restrict__ offsets, int experts, int columns, int inner) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Tile = ProductTile<T>;
  const TilePlace place =
      tile_place(static_cast<int>(blockIdx.x), (columns + Tile::kSide - 1) / Tile::kSide);
  const RowTile tile = find_tile(offsets, experts, Tile::kSide, place.row);
  if (tile.expert < 0) {
    return;
  }
  const T* weight = b + static_cast<std::int64_t>(tile.expert) * inner * columns;
  const Factor<T> left{a, inner, tile.end, inner};
  const Factor<T> right{weight, kTransposed ? inner : columns, columns, inner};
  const Result<T> result{out, columns, tile.end, columns, GradientSum::kOverwrite};
  multiply_tile<false, !kTransposed>(result, left, right, tile.first, place.column * Tile::kSide,
                                     shared);
}

}  // namespace

template <class T>
void grouped_gemm_on_tensor_cores(T* out, const T* a, const T* b, const std::int32_t* offsets,
                                  const GroupedGemmShape& shape, cudaStream_t stream) {
  constexpr std::int64_t kSide = ProductTile<T>::kSide;
  const bool transposed = shape.b_layout == GemmLayout::kTransposed;
  const auto kernel = transposed ? grouped_kernel<T, true> : grouped_kernel<T, false>;
  // Of an expert's tiles one at most is not full; whole bands.
  const std::int64_t row_tiles = (shape.capacity / kSide + shape.experts + 15) / 16 * 16;
  const std::int64_t blocks = row_tiles * ((shape.columns + kSide - 1) / kSide);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  ProductTile<T>::kSharedBytes));
  kernel<<<static_cast<unsigned>(blocks), ProductTile<T>::kThreads, ProductTile<T>::kSharedBytes,
           stream>>>(out, a, b, offsets, static_cast<int>(shape.experts),
                     static_cast<int>(shape.columns), static_cast<int>(shape.inner));
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
void grouped_gemm(T* out, const T* a, const T* b, const std::int32_t* offsets,
                  const GroupedGemmShape& shape, cudaStream_t stream) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if (has_warpgroups()) {
      grouped_gemm_on_warpgroups(out, a, b, offsets, shape, stream);
      return;
    }
  }
  grouped_gemm_on_tensor_cores(out, a, b, offsets, shape, stream);
}

#define SHARDPLAN_INSTANTIATE(T)                                                                   \
  template void grouped_gemm_on_tensor_cores(T*, const T*, const T*, const std::int32_t*,          \
                                             const GroupedGemmShape&, cudaStream_t);               \
  template void grouped_gemm(T*, const T*, const T*, const std::int32_t*, const GroupedGemmShape&, \
                             cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
