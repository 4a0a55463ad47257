#include "kernels/gemm/quantize_fp8.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/pointwise/cuda_check.h"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {
namespace {

// --- the largest absolute value ------------------------------------------------------------------

constexpr int kAmaxThreads = 512;
constexpr int kAmaxBlocks = 1056;  // 8 for each of 132 multiprocessors
constexpr int kAmaxUnroll = 4;     // loads in flight

// Magnitudes of floats are ordered as their bits without the sign; of bf16 there are two in a word.
// No number is larger than infinity.
template <class T>
__device__ unsigned larger(unsigned a, unsigned word);
template <>
__device__ unsigned larger<float>(unsigned a, unsigned word) {
  return max(a, word & 0x7fffffffU);
}
template <>
__device__ unsigned larger<__nv_bfloat16>(unsigned a, unsigned word) {
  return __vmaxu2(a, word & 0x7fff7fffU);
}
template <class T>
__device__ unsigned float_bits(unsigned a);
template <>
__device__ unsigned float_bits<float>(unsigned a) {
  return a;
}
template <>
__device__ unsigned float_bits<__nv_bfloat16>(unsigned a) {
  return max(a & 0xffff0000U, a << 16);
}

// amax is 0 or the result of other blocks. Rows of `num_vectors` vectors.
template <class T>
__global__ void __launch_bounds__(kAmaxThreads)
    amax_kernel(unsigned* amax, const T* __restrict__ x, std::int64_t rows,
                std::int64_t num_vectors, std::int64_t stride) {
  __shared__ unsigned warps[kAmaxThreads / 32];
  unsigned best = 0;
  for (std::int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    const auto* from = reinterpret_cast<const uint4*>(x + row * stride);
    constexpr int kChunk = kAmaxThreads * kAmaxUnroll;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kChunk;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kChunk + threadIdx.x;
         first < num_vectors; first += step) {
      uint4 loaded[kAmaxUnroll];
#pragma unroll
      for (int i = 0; i < kAmaxUnroll; ++i) {
        const std::int64_t at = first + i * kAmaxThreads;
        loaded[i] = at < num_vectors ? from[at] : uint4{0, 0, 0, 0};
      }
#pragma unroll
      for (int i = 0; i < kAmaxUnroll; ++i) {
        best = larger<T>(larger<T>(best, loaded[i].x), loaded[i].y);
        best = larger<T>(larger<T>(best, loaded[i].z), loaded[i].w);
      }
    }
  }
  best = __reduce_max_sync(0xffffffffU, float_bits<T>(best));
  if (threadIdx.x % 32 == 0) {
    warps[threadIdx.x / 32] = best;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    best = threadIdx.x < kAmaxThreads / 32 ? warps[threadIdx.x] : 0;
    best = __reduce_max_sync(0xffffffffU, best);
    if (threadIdx.x == 0) {
      atomicMax(amax, best);
    }
  }
}

template <class T>
void launch_amax(float* amax, const T* x, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, cudaStream_t stream) {
  if (stride == columns) {
    columns *= rows;
    stride = columns;
    rows = 1;
  }
  const std::int64_t vectors = columns / kVectorWidth<T>;
  const std::int64_t chunk = kAmaxThreads * kAmaxUnroll;
  const std::int64_t in_row = std::min<std::int64_t>(kAmaxBlocks, (vectors + chunk - 1) / chunk);
  const std::int64_t down = std::clamp<std::int64_t>(kAmaxBlocks / in_row, 1, rows);
  CUDA_CHECK(cudaMemsetAsync(amax, 0, sizeof(float), stream));
  amax_kernel<<<dim3(static_cast<unsigned>(in_row), static_cast<unsigned>(down)), kAmaxThreads, 0,
                stream>>>(reinterpret_cast<unsigned*>(amax), x, rows, vectors, stride);
  CUDA_CHECK(cudaGetLastError());
}

// --- rounding ------------------------------------------------------------------------------------

constexpr int kTile = 128;                // rows and columns of a block
constexpr int kPatch = 8;                 // rows and columns of a thread
constexpr int kPatches = kTile / kPatch;  // in a row of the tile
constexpr int kThreads = kPatches * kPatches;

// 1.75 * 2^top is the largest value of both formats.
template <GemmType kFormat>
__device__ int scale_exponent(unsigned amax_bits) {
  constexpr int kTop = kFormat == GemmType::kE4m3 ? 8 : 15;
  constexpr unsigned kInfinityBits = 0x7f800000U;
  constexpr unsigned kMantissaOf175 = 0x600000U;
  if (amax_bits == 0 || amax_bits >= kInfinityBits) {
    return 0;
  }
  const int exponent = static_cast<int>(amax_bits >> 23) - 127;
  return min(kTop - exponent - ((amax_bits & 0x7fffffU) > kMantissaOf175 ? 1 : 0), 126);
}
__device__ float power_of_two(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

// Eight values of a row.
template <class T>
struct Eight {
  Vector<T> at[kPatch / kVectorWidth<T>];
  __device__ float operator[](int k) const {
    return to_float(at[k / kVectorWidth<T>].at[k % kVectorWidth<T>]);
  }
};
template <class T>
__device__ Eight<T> load_eight(const T* from) {
  Eight<T> eight;
#pragma unroll
  for (int k = 0; k < kPatch / kVectorWidth<T>; ++k) {
    eight.at[k] = load_vector(from + k * kVectorWidth<T>);
  }
  return eight;
}

// Of four of them, from `first` on.
template <GemmType kFormat, class T>
__device__ unsigned four_bytes(const Eight<T>& values, int first, float scale) {
  constexpr auto kKind = kFormat == GemmType::kE4m3 ? __NV_E4M3 : __NV_E5M2;
  const auto two_bytes = [&](int k) {
    return static_cast<unsigned>(__nv_cvt_float2_to_fp8x2(
        {values[k] * scale, values[k + 1] * scale}, __NV_SATFINITE, kKind));
  };
  return two_bytes(first) | (two_bytes(first + 2) << 16);
}

// Words of four rows become words of four columns.
__device__ void transpose_bytes(const unsigned* rows, unsigned* columns) {
  const unsigned low_first = __byte_perm(rows[0], rows[1], 0x5140);
  const unsigned low_last = __byte_perm(rows[2], rows[3], 0x5140);
  const unsigned high_first = __byte_perm(rows[0], rows[1], 0x7362);
  const unsigned high_last = __byte_perm(rows[2], rows[3], 0x7362);
  columns[0] = __byte_perm(low_first, low_last, 0x5410);
  columns[1] = __byte_perm(low_first, low_last, 0x7632);
  columns[2] = __byte_perm(high_first, high_last, 0x5410);
  columns[3] = __byte_perm(high_first, high_last, 0x7632);
}

// A block rounds a tile, a thread a patch of it. For the transposed copy the patches are turned in
// registers and meet in shared memory: column c keeps the eight bytes of patch row p at place
// p ^ (c / 8), so that neither side has bank conflicts. The last tiles first: their rows are what
// the search for the largest value left in the cache.
template <GemmType kFormat, bool kPlain, bool kTransposed, class T>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(Fp8Matrix out, const T* __restrict__ x, std::int64_t rows, std::int64_t columns,
                    std::int64_t stride) {
  __shared__ uint4 turned[kTransposed ? kTile * kPatches / 2 : 1];
  const int exponent = scale_exponent<kFormat>(__float_as_uint(*out.amax));
  const float scale = power_of_two(exponent);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    *out.inverse_scale = power_of_two(-exponent);
  }
  const std::int64_t tile_row = static_cast<std::int64_t>(gridDim.y - 1 - blockIdx.y) * kTile;
  const std::int64_t tile_column = static_cast<std::int64_t>(gridDim.x - 1 - blockIdx.x) * kTile;
  const int across = static_cast<int>(threadIdx.x) % kPatches;
  const int down = static_cast<int>(threadIdx.x) / kPatches;
  const std::int64_t row = tile_row + down * kPatch;
  const std::int64_t column = tile_column + across * kPatch;
  unsigned left[kPatch] = {};  // by row: columns 0 to 3, then 4 to 7
  unsigned right[kPatch] = {};
  if (row < rows && column < columns) {
    Eight<T> values[kPatch];
#pragma unroll
    for (int i = 0; i < kPatch; ++i) { values[i] = load_eight(x + (row + i) * stride + column); }
#pragma unroll
    for (int i = 0; i < kPatch; ++i) {
      left[i] = four_bytes<kFormat>(values[i], 0, scale);
      right[i] = four_bytes<kFormat>(values[i], 4, scale);
      if constexpr (kPlain) {
        *reinterpret_cast<uint2*>(out.plain + (row + i) * columns + column) = {left[i], right[i]};
      }
    }
  }
  if constexpr (kTransposed) {
    unsigned first[kPatch];  // by column: rows 0 to 3, then 4 to 7
    unsigned last[kPatch];
    transpose_bytes(left, first);
    transpose_bytes(left + 4, last);
    transpose_bytes(right, first + 4);
    transpose_bytes(right + 4, last + 4);
    auto* const halves = reinterpret_cast<uint2*>(turned);
#pragma unroll
    for (int j = 0; j < kPatch; ++j) {
      halves[(across * kPatch + j) * kPatches + (down ^ across)] = {first[j], last[j]};
    }
    __syncthreads();
    constexpr int kPieces = kPatches / 2;  // of 16 rows, in a column of the tile
#pragma unroll
    for (int i = 0; i < kTile * kPieces / kThreads; ++i) {
      const int piece = i * kThreads + static_cast<int>(threadIdx.x);
      const int at = piece / kPieces;
      const int part = piece % kPieces;
      const int turn = at / kPatch;
      const uint4 bytes = turned[at * kPieces + (part ^ (turn / 2))];
      const std::int64_t first_row = tile_row + part * 16;
      if (tile_column + at < columns && first_row < rows) {
        *reinterpret_cast<uint4*>(out.transposed + (tile_column + at) * rows + first_row) =
            turn % 2 == 0 ? bytes : uint4{bytes.z, bytes.w, bytes.x, bytes.y};
      }
    }
  }
}

template <GemmType kFormat, class T>
void launch_quantize(const Fp8Matrix& out, const T* x, std::int64_t rows, std::int64_t columns,
                     std::int64_t stride, cudaStream_t stream) {
  const auto tiles = [](std::int64_t size) {
    return static_cast<unsigned>((size + kTile - 1) / kTile);
  };
  const dim3 grid(tiles(columns), tiles(rows));
  if (out.plain != nullptr && out.transposed != nullptr) {
    quantize_kernel<kFormat, true, true>
        <<<grid, kThreads, 0, stream>>>(out, x, rows, columns, stride);
  } else if (out.plain != nullptr) {
    quantize_kernel<kFormat, true, false>
        <<<grid, kThreads, 0, stream>>>(out, x, rows, columns, stride);
  } else {
    quantize_kernel<kFormat, false, true>
        <<<grid, kThreads, 0, stream>>>(out, x, rows, columns, stride);
  }
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace

template <class T>
void quantize_fp8(const Fp8Matrix& out, GemmType format, const T* x, std::int64_t rows,
                  std::int64_t columns, std::int64_t stride, cudaStream_t stream) {
  launch_amax(out.amax, x, rows, columns, stride, stream);
  if (format == GemmType::kE4m3) {
    launch_quantize<GemmType::kE4m3>(out, x, rows, columns, stride, stream);
  } else {
    launch_quantize<GemmType::kE5m2>(out, x, rows, columns, stride, stream);
  }
}

template void quantize_fp8(const Fp8Matrix&, GemmType, const float*, std::int64_t, std::int64_t,
                           std::int64_t, cudaStream_t);
template void quantize_fp8(const Fp8Matrix&, GemmType, const __nv_bfloat16*, std::int64_t,
                           std::int64_t, std::int64_t, cudaStream_t);

}  // namespace shardplan
