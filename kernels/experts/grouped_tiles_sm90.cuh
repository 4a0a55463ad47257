// What the grouped products for sm_90a share: blocks walk over the tiles of all experts, 128 x 256
// results each. Of a block's warpgroups one copies both factors into a ring of stages, two
// multiply, 64 rows each; while one stores its results, the other goes on with what the ring still
// holds. Device code, and its launch.
#pragma once

#include <algorithm>

#include "kernels/experts/grouped_stores_sm90.cuh"
#include "kernels/experts/grouped_walk_sm90.cuh"
#include "kernels/gemm/bulk_copy.cuh"
#include "kernels/gemm/warpgroups.h"
#include "kernels/gemm/wgmma.cuh"
#include "kernels/pointwise/cuda_check.h"

namespace shardplan {

// A factor of a stage is boxes, one after the other: of a plain factor 64 of its own rows, with 64
// of the inner dimension; of a turned one 64 of the inner dimension as rows, with 64 of its
// columns.
struct GroupedShared {
  static constexpr int kStages = 4;
  static constexpr int kBoxSize = kBoxSide * kBoxSide;
  struct Stage {
    __nv_bfloat16 left[kLeftBoxes][kBoxSize];
    __nv_bfloat16 right[kRightBoxes][kBoxSize];
  };

  Stage stages[kStages];
  float strips[kConsumerThreads / 32][16 * 64];  // of each warp, on the way to memory
  Ring<kStages> ring;
  Barrier cut;
};

template <bool kTurned>
__device__ void copy_boxes(__nv_bfloat16 (*to)[GroupedShared::kBoxSize], const CUtensorMap& from,
                           int count, int outer, int inner, int matrix, Barrier* barrier) {
#pragma unroll 1
  for (int i = 0; i < count; ++i, outer += kBoxSide) {
    copy_box(to[i], from, kTurned ? outer : inner, kTurned ? inner : outer, matrix, barrier);
  }
}

// The first rows of all boxes become zero; by one warp.
__device__ inline void clear_rows(GroupedShared::Stage& stage, int rows) {
  constexpr int kVectors = kBoxSide / kChunk;
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint4* vectors = reinterpret_cast<uint4*>(&stage);
  for (int box = 0; box < kLeftBoxes + kRightBoxes; ++box, vectors += kBoxSide * kVectors) {
    for (int i = lane; i < rows * kVectors; i += 32) { vectors[i] = uint4{}; }
  }
}

// By one warp. The last box of an expert's rows as inner dimension ends where they end, so that
// nothing behind them is read; what it has of rows before them, or that were multiplied already, is
// cleared.
template <bool kLeftTurned, bool kRightTurned, class G>
__device__ void copy_tiles(GroupedShared& shared, const CUtensorMap& left, const CUtensorMap& right,
                           const GroupedTask<G>& task) {
  const bool leads = threadIdx.x % 32 == 0;
  int step = 0;
  int cuts = 0;
  for_each_tile<kLeftTurned>(task, [&](const GroupedTile& tile) {
    const int left_boxes = tile.is_low() ? 1 : kLeftBoxes;
#pragma unroll 1
    for (int inner = 0; inner < tile.inner; inner += kBoxSide, ++step) {
      GroupedShared::Stage& stage = shared.stages[step % GroupedShared::kStages];
      Barrier* full = shared.ring.wait_free(step);
      const int before = kLeftTurned ? max(0, inner + kBoxSide - tile.inner) : 0;
      Barrier* loaded = before > 0 ? &shared.cut : full;
      if (leads) {
        const int at = tile.begin + inner - before;
        arrive_expecting(loaded, (left_boxes + kRightBoxes) * GroupedShared::kBoxSize * 2);
        copy_boxes<kLeftTurned>(stage.left, left, left_boxes, tile.row, at, 0, loaded);
        copy_boxes<kRightTurned>(stage.right, right, kRightBoxes, tile.column, at,
                                 kLeftTurned ? 0 : tile.expert, loaded);
      }
      if (before > 0) {
        wait_for_phase(&shared.cut, cuts++);
        clear_rows(stage, before);
        hand_to_engines();
        __syncwarp();
        if (leads) {
          arrive(full);
        }
      }
      __syncwarp();
    }
  });
}

// All products of a tile: of the 64 rows of box `left`, and of the columns from box `right` on.
template <bool kLeftTurned, bool kRightTurned, int kBlocks>
__device__ void multiply_steps(float (&c)[kBlocks][4], GroupedShared& shared, int left, int right,
                               int inner, int& step) {
  const auto descriptor = [](const __nv_bfloat16* box, bool turned, int part) {
    return matrix_descriptor(box + part * 16 * (turned ? kBoxSide : 1),
                             2 * GroupedShared::kBoxSize);
  };
  const int first = step;
  const int end = step + (inner + kBoxSide - 1) / kBoxSide;
#pragma unroll 1
  for (; step < end; ++step) {
    GroupedShared::Stage& stage = shared.stages[step % GroupedShared::kStages];
    shared.ring.wait_full(step);
    begin_products();
#pragma unroll
    for (int part = 0; part < kBoxSide / 16; ++part) {
      add_product_once<kLeftTurned, kRightTurned>(
          c, descriptor(stage.left[left], kLeftTurned, part),
          descriptor(stage.right[right], kRightTurned, part));
    }
    close_products();
    wait_for_products<1>();
    if (step > first) {
      shared.ring.release(step - 1);
    }
  }
  wait_for_products<0>();
  hold(c);
  if (end > first) {
    shared.ring.release(end - 1);
  }
}

template <bool kLeftTurned, bool kRightTurned, int kBlocks, class G>
__device__ void compute_tile(GroupedShared& shared, const GroupedTask<G>& task,
                             const GroupedTile& tile, int left, int right, int& step) {
  float sums[kBlocks][4] = {};
  multiply_steps<kLeftTurned, kRightTurned>(sums, shared, left, right, tile.inner, step);
  const std::int64_t first_row =
      kLeftTurned ? static_cast<std::int64_t>(tile.expert) * task.rows : 0;
  const Result<G> result{task.out + first_row * task.columns, task.columns, tile.end_row,
                         task.columns, task.sum};
  const int row = tile.row + left * kGroupRows + row_of_warp();
  const int column = tile.column + right * kBoxSide;
  float* strip = shared.strips[(threadIdx.x - kWarpgroup) / 32];
  if constexpr (kLeftTurned) {
    store_sums<0>(result, sums, strip, row, column);
  } else {
    store_rounded<0>(result, sums, strip, row, column);
  }
}

template <bool kLeftTurned, bool kRightTurned, class G>
__global__ void __launch_bounds__(kGroupThreads, 1)
    grouped_kernel(const __grid_constant__ CUtensorMap left,
                   const __grid_constant__ CUtensorMap right,
                   const __grid_constant__ GroupedTask<G> task) {
  extern __shared__ __align__(1024) unsigned char memory[];
  GroupedShared& shared = *reinterpret_cast<GroupedShared*>(memory);
  if (threadIdx.x == 0) {
    shared.ring.open(1, kConsumerThreads);
    open_barrier(&shared.cut, 1);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x < 32) {
      copy_tiles<kLeftTurned, kRightTurned>(shared, left, right, task);
    }
  } else {
    take_registers<kConsumerRegisters>();
    const int group = consumer_of_warp();
    int step = 0;
    for_each_tile<kLeftTurned>(task, [&](const GroupedTile& tile) {
      if (tile.is_low()) {
        compute_tile<kLeftTurned, kRightTurned, 16>(shared, task, tile, 0,
                                                    group * (kRightBoxes / 2), step);
      } else {
        compute_tile<kLeftTurned, kRightTurned, 32>(shared, task, tile, group, 0, step);
      }
    });
  }
}

// row_tiles: at most, of all experts together.
template <bool kLeftTurned, bool kRightTurned, class G>
void start_grouped(const CUtensorMap& left, const CUtensorMap& right, GroupedTask<G> task,
                   std::int64_t row_tiles, cudaStream_t stream) {
  const auto kernel = grouped_kernel<kLeftTurned, kRightTurned, G>;
  const std::int64_t tiles = row_tiles * ((task.columns + kTileColumns - 1) / kTileColumns);
  task.blocks_at_once = num_multiprocessors();
  const std::int64_t round = std::int64_t{kTilesPerBlock} * task.blocks_at_once;
  const std::int64_t blocks = std::min(tiles, (tiles + round - 1) / round * task.blocks_at_once);
  constexpr int kBytes = sizeof(GroupedShared);
  CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<static_cast<unsigned>(blocks), kGroupThreads, kBytes, stream>>>(left, right, task);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace shardplan
