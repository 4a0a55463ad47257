// The tile of a matrix product that both grouped products share: 128 x 128 results of a block, on
// tensor cores in bf16, or 64 x 64 in plain float arithmetic. Device code only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/gemm/gradient_sum.h"
#include "kernels/gemm/mma.cuh"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {

// One factor of a product: `outer` is its own dimension of the result, `inner` the one that is
// summed. Plain: outer along the rows of memory; turned: inner along them.
template <class T>
struct Factor {
  const T* data;
  std::int64_t stride;
  int outer;
  int inner;
};

// Where the result goes.
template <class G>
struct Result {
  G* data;
  std::int64_t stride;
  int rows;
  int columns;
  GradientSum sum;
};

template <class T>
struct ProductTile;

// bf16: 4 warps of 64 x 64, steps of 64 along the inner dimension, two steps on their way into
// shared memory while the third is in work.
template <>
struct ProductTile<__nv_bfloat16> {
  static constexpr int kSide = 128;
  static constexpr int kInner = 64;
  static constexpr int kStages = 3;
  static constexpr int kThreads = 128;
  static constexpr int kWarpSide = 64;
  static constexpr int kFactorSize = kSide * kInner;
  static constexpr int kSharedBytes = kStages * 2 * kFactorSize * 2;
};

// float: every thread has 4 x 4 results.
template <>
struct ProductTile<float> {
  static constexpr int kSide = 64;
  static constexpr int kInner = 16;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
};

// The thread's part of the copies of one factor into shared memory.
template <bool kTurned>
class FactorCopy {
  using Tile = ProductTile<__nv_bfloat16>;

 public:
  static constexpr int kDim = kTurned ? Tile::kSide : Tile::kInner;  // of a row of the tile

  __device__ FactorCopy(const Factor<__nv_bfloat16>& factor, int first_outer)
      : base_(factor.data),
        inner_(factor.inner),
        row_(static_cast<int>(threadIdx.x) / kChunks),
        chunk_(static_cast<int>(threadIdx.x) % kChunks) {
    const std::int64_t column = chunk_ * kChunk;
    if (kTurned) {
      offset_ = row_ * factor.stride + first_outer + column;
      outer_left_ = factor.outer - first_outer - chunk_ * kChunk;
      step_ = Tile::kInner * factor.stride;
    } else {
      offset_ = (first_outer + row_) * factor.stride + column;
      outer_left_ = factor.outer - first_outer - row_;
      step_ = Tile::kInner;
    }
    pass_ = kRowsAtOnce * factor.stride;
  }

  // Step `step` of the inner dimension into `tile`.
  __device__ void copy(__nv_bfloat16* tile, int step) const {
    std::int64_t from = offset_ + step * step_;
    const int inner_left = inner_ - step * Tile::kInner - (kTurned ? row_ : chunk_ * kChunk);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const bool exists = kTurned ? outer_left_ > 0 && inner_left > i * kRowsAtOnce
                                  : outer_left_ > i * kRowsAtOnce && inner_left > 0;
      copy_chunk(tile_chunk<kDim>(tile, row_ + i * kRowsAtOnce, chunk_),
                 base_ + (exists ? from : 0), exists);
      from += pass_;
    }
  }

 private:
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kRowsAtOnce = Tile::kThreads / kChunks;
  static constexpr int kPasses = Tile::kFactorSize / kDim / kRowsAtOnce;

  const __nv_bfloat16* base_;
  std::int64_t offset_;
  std::int64_t step_;
  std::int64_t pass_;
  int inner_;
  int row_;
  int chunk_;
  int outer_left_;
};

// Outer elements first .. first + 15 of a turned tile as the first factor, inner ones 16 `step` on.
template <int kDim>
__device__ void load_factor_turned(unsigned (&a)[4], __nv_bfloat16* tile, int first, int step) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  load_matrices_transposed(a, tile_chunk<kDim>(tile, 16 * step + lane % 8 + lane / 16 * 8,
                                               first / kChunk + lane / 8 % 2));
}

template <bool kATurned, bool kBTurned>
__device__ void multiply_step(float (&sums)[4][8][4], __nv_bfloat16* a, __nv_bfloat16* b,
                              int first_row, int first_column) {
  using Tile = ProductTile<__nv_bfloat16>;
#pragma unroll
  for (int step = 0; step < Tile::kInner / 16; ++step) {
    unsigned left[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kATurned) {
        load_factor_turned<Tile::kSide>(left[i], a, first_row + 16 * i, step);
      } else {
        load_factor<Tile::kInner>(left[i], a, first_row + 16 * i, step);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      unsigned right[4];
      if constexpr (kBTurned) {
        load_inner<Tile::kSide>(right, b, 16 * step, first_column / 16 + j);
      } else {
        load_columns<Tile::kInner>(right, b, first_column + 16 * j, step);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        multiply(sums[i][2 * j], left[i], right[0], right[1]);
        multiply(sums[i][2 * j + 1], left[i], right[2], right[3]);
      }
    }
  }
}

// A strip is 16 x 64 results of a warp; in memory a lane has this many vectors of it.
template <class G>
inline constexpr int kStripVectors =
    16 * ProductTile<__nv_bfloat16>::kWarpSide / kVectorWidth<G> / 32;

// Row and column in the strip of a lane's i-th vector.
template <class G>
__device__ int2 strip_place(int i) {
  constexpr int kVectors = ProductTile<__nv_bfloat16>::kWarpSide / kVectorWidth<G>;
  const int vector = static_cast<int>(threadIdx.x % 32) + 32 * i;
  return {vector / kVectors, vector % kVectors * kVectorWidth<G>};
}

// What is in memory where a strip goes, before anything is stored: all loads are in flight at once.
template <class G>
__device__ void load_strip(uint4 (&before)[kStripVectors<G>], const Result<G>& result,
                           int first_row, int first_column) {
#pragma unroll
  for (int i = 0; i < kStripVectors<G>; ++i) {
    const int row = first_row + strip_place<G>(i).x;
    const int column = first_column + strip_place<G>(i).y;
    if (row < result.rows && column < result.columns) {
      before[i] = load_bits(result.data + row * result.stride + column);
    }
  }
}

// A strip through 4 KiB of shared memory of the warp's own, so that it leaves in 16 bytes:
// put(i, to, values) for the lane's i-th vector. The 16-byte chunks of a row are exchanged in pairs
// by the row.
template <int kFirstBlock, class G, int kBlocks, class Put>
__device__ void store_strip(const Result<G>& result, const float (&sums)[kBlocks][4], float* strip,
                            int first_row, int first_column, const Put& put) {
  const auto chunk_of = [&](int row, int chunk) {
    return strip + row * ProductTile<__nv_bfloat16>::kWarpSide + (chunk ^ ((row & 7) << 1)) * 4;
  };
  const int lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
#pragma unroll
  for (int block = 0; block < 8; ++block) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float(&own)[4] = sums[kFirstBlock + block];
      float* to = chunk_of(lane / 4 + 8 * half, 2 * block + lane % 4 / 2) + 2 * (lane % 2);
      *reinterpret_cast<float2*>(to) = {own[2 * half], own[2 * half + 1]};
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kStripVectors<G>; ++i) {
    const int row = strip_place<G>(i).x;
    const int column = strip_place<G>(i).y;
    if (first_row + row >= result.rows || first_column + column >= result.columns) {
      continue;
    }
    Floats<G> values;
#pragma unroll
    for (int k = 0; k < kVectorWidth<G>; k += 4) {
      const float4 part = *reinterpret_cast<const float4*>(chunk_of(row, (column + k) / 4));
      values.at[k] = part.x;
      values.at[k + 1] = part.y;
      values.at[k + 2] = part.z;
      values.at[k + 3] = part.w;
    }
    put(i, result.data + (first_row + row) * result.stride + first_column + column, values);
  }
}

// What is stored is added to what load_strip() found.
template <class G>
struct AddAndStore {
  const uint4 (&before)[kStripVectors<G>];
  GradientSum sum;

  __device__ void operator()(int i, G* to, Floats<G> values) const {
    if (sum == GradientSum::kAccumulate) {
      const Floats<G> old = floats_of<G>(before[i]);
#pragma unroll
      for (int k = 0; k < kVectorWidth<G>; ++k) { values.at[k] += old.at[k]; }
    }
    store_bits(to, bits_of(values));
  }
};

// The tile of the result that begins at (first_row, first_column). `shared` has kSharedBytes.
template <bool kATurned, bool kBTurned, class G>
__device__ void multiply_tile(const Result<G>& result, const Factor<__nv_bfloat16>& a,
                              const Factor<__nv_bfloat16>& b, int first_row, int first_column,
                              unsigned char* shared) {
  using Tile = ProductTile<__nv_bfloat16>;
  __nv_bfloat16* stages = reinterpret_cast<__nv_bfloat16*>(shared);
  const FactorCopy<kATurned> copy_a(a, first_row);
  const FactorCopy<kBTurned> copy_b(b, first_column);
  const int steps = (a.inner + Tile::kInner - 1) / Tile::kInner;
  const auto fetch = [&](int step) {
    if (step < steps) {
      __nv_bfloat16* stage = stages + step % Tile::kStages * (2 * Tile::kFactorSize);
      copy_a.copy(stage, step);
      copy_b.copy(stage + Tile::kFactorSize, step);
    }
    close_copies();
  };
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int warp_row = warp / 2 * Tile::kWarpSide;
  const int warp_column = warp % 2 * Tile::kWarpSide;
  float sums[4][8][4] = {};
  fetch(0);
  fetch(1);
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<1>();
    __syncthreads();  // the step is there, and all have read the one before it
    fetch(step + 2);
    __nv_bfloat16* stage = stages + step % Tile::kStages * (2 * Tile::kFactorSize);
    multiply_step<kATurned, kBTurned>(sums, stage, stage + Tile::kFactorSize, warp_row,
                                      warp_column);
  }
  wait_for_copies<0>();
  __syncthreads();
  float* strip = reinterpret_cast<float*>(shared) + warp * 16 * Tile::kWarpSide;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + warp_row + 16 * i;
    uint4 before[kStripVectors<G>] = {};
    if (result.sum == GradientSum::kAccumulate) {
      load_strip(before, result, row, first_column + warp_column);
    }
    store_strip<0>(result, sums[i], strip, row, first_column + warp_column,
                   AddAndStore<G>{before, result.sum});
  }
}

// The same in float, for parity: plain and simple.
template <bool kATurned, bool kBTurned>
__device__ void multiply_tile(const Result<float>& result, const Factor<float>& a,
                              const Factor<float>& b, int first_row, int first_column,
                              unsigned char* /*shared*/) {
  using Tile = ProductTile<float>;
  __shared__ float left[Tile::kInner][Tile::kSide + 4];
  __shared__ float right[Tile::kInner][Tile::kSide + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const auto fetch = [&](auto turned, const Factor<float>& factor, int first, int step,
                         float(&to)[Tile::kInner][Tile::kSide + 4]) {
    for (int i = thread; i < Tile::kInner * Tile::kSide; i += Tile::kThreads) {
      const int outer = turned.value ? i % Tile::kSide : i / Tile::kInner;
      const int inner = turned.value ? i / Tile::kSide : i % Tile::kInner;
      const std::int64_t row = turned.value ? step + inner : first + outer;
      const std::int64_t column = turned.value ? first + outer : step + inner;
      const bool exists = first + outer < factor.outer && step + inner < factor.inner;
      to[inner][outer] = exists ? factor.data[row * factor.stride + column] : 0.0F;
    }
  };
  float sums[4][4] = {};
  const int row = thread / 16 * 4;
  const int column = thread % 16 * 4;
  for (int step = 0; step < a.inner; step += Tile::kInner) {
    __syncthreads();
    fetch(std::bool_constant<kATurned>{}, a, first_row, step, left);
    fetch(std::bool_constant<kBTurned>{}, b, first_column, step, right);
    __syncthreads();
    for (int k = 0; k < Tile::kInner; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(&left[k][row]);
      const float4 y = *reinterpret_cast<const float4*>(&right[k][column]);
      const float xs[4] = {x.x, x.y, x.z, x.w};
      const float ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) { sums[i][j] = fmaf(xs[i], ys[j], sums[i][j]); }
      }
    }
  }
  for (int i = 0; i < 4; ++i) {
    if (first_row + row + i < result.rows && first_column + column < result.columns) {
      float* to = result.data + (first_row + row + i) * result.stride + first_column + column;
      Vector<float> out{{sums[i][0], sums[i][1], sums[i][2], sums[i][3]}};
      if (result.sum == GradientSum::kAccumulate) {
        const Vector<float> before = load_vector(to);
        for (int j = 0; j < 4; ++j) { out.at[j] += before.at[j]; }
      }
      store_vector(to, out);
    }
  }
}

// Tiles in bands of 16 rows, down the band first: what runs at the same time shares factors in L2.
struct TilePlace {
  int row;
  int column;
};
__device__ inline TilePlace tile_place(int index, int columns) {
  constexpr int kBand = 16;
  const int in_band = index % (kBand * columns);
  return {index / (kBand * columns) * kBand + in_band % kBand, in_band / kBand};
}

}  // namespace shardplan
