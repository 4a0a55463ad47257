#include "kernels/gemm/transpose.h"

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

constexpr int kTile = 32;
constexpr int kRowsAtOnce = 8;

// Through a tile in shared memory, so that both sides are read and written along their rows.
__global__ void __launch_bounds__(kTile* kRowsAtOnce)
    transpose_kernel(float* __restrict__ out, const float* __restrict__ in, std::int64_t rows,
                     std::int64_t columns) {
  __shared__ float tile[kTile][kTile + 1];
  const std::int64_t matrix = static_cast<std::int64_t>(blockIdx.z) * rows * columns;
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const std::int64_t first_column = static_cast<std::int64_t>(blockIdx.y) * kTile;
  for (unsigned i = threadIdx.y; i < kTile; i += kRowsAtOnce) {
    if (first_row + i < rows && first_column + threadIdx.x < columns) {
      tile[i][threadIdx.x] = in[matrix + (first_row + i) * columns + first_column + threadIdx.x];
    }
  }
  __syncthreads();
  for (unsigned i = threadIdx.y; i < kTile; i += kRowsAtOnce) {
    if (first_column + i < columns && first_row + threadIdx.x < rows) {
      out[matrix + (first_column + i) * rows + first_row + threadIdx.x] = tile[threadIdx.x][i];
    }
  }
}

}  // namespace

void transpose(float* out, const float* in, std::int64_t batch, std::int64_t rows,
               std::int64_t columns, cudaStream_t stream) {
  const auto tiles = [](std::int64_t size) {
    return static_cast<unsigned>((size + kTile - 1) / kTile);
  };
  transpose_kernel<<<dim3(tiles(rows), tiles(columns), static_cast<unsigned>(batch)),
                     dim3(kTile, kRowsAtOnce), 0, stream>>>(out, in, rows, columns);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shardplan
