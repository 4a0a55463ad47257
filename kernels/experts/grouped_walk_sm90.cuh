// Which tiles of the grouped products for sm_90a a block computes. Device code only.
#pragma once

#include <cstdint>

#include "kernels/gemm/gradient_sum.h"
#include "kernels/gemm/wgmma.cuh"

namespace shardplan {

// A tile of results is boxes of 64 x 64.
inline constexpr int kBoxSide = 64;
inline constexpr int kLeftBoxes = kConsumers;
inline constexpr int kRightBoxes = 4;
inline constexpr int kTileRows = kLeftBoxes * kBoxSide;
inline constexpr int kTileColumns = kRightBoxes * kBoxSide;
inline constexpr int kTilesPerBlock = 8;

// G: of the result. A product with a weight has the expert's rows as rows of the result; a gradient
// has them as its inner dimension.
template <class G>
struct GroupedTask {
  G* out = nullptr;
  const std::int32_t* offsets = nullptr;
  int experts = 0;
  int rows = 0;     // of an expert's gradient
  int columns = 0;  // of the result
  int inner = 0;    // of a product with a weight
  GradientSum sum = GradientSum::kOverwrite;
  int blocks_at_once = 0;
};

struct GroupedTile {
  int expert;
  int row;
  int end_row;
  int column;
  int begin;  // of the inner dimension
  int inner;

  // At most 64 rows: divided between the consumers by columns instead.
  __device__ bool is_low() const { return end_row - row <= kGroupRows; }
};

// The tiles of all experts in order. Of an expert they go in bands of 16 rows of tiles, down the
// band first: blocks that run at the same time share factors in L2.
template <bool kGradient, class G>
class TileWalk {
 public:
  __device__ explicit TileWalk(const GroupedTask<G>& task)
      : task_(task), column_tiles_((task.columns + kTileColumns - 1) / kTileColumns) {}

  // False: there are no more. Indices ascend from call to call.
  __device__ bool find(int index, GroupedTile& tile) {
    while (index >= first_ + row_tiles_ * column_tiles_) {
      first_ += row_tiles_ * column_tiles_;
      if (++expert_ == task_.experts) {
        return false;
      }
      enter_expert();
    }
    constexpr int kBand = 16;
    const int local = index - first_;
    const int band = local / (kBand * column_tiles_);
    const int in_band = local - band * (kBand * column_tiles_);
    const int band_rows = min(kBand, row_tiles_ - band * kBand);
    const int row = (band * kBand + in_band % band_rows) * kTileRows;
    tile.expert = expert_;
    tile.row = kGradient ? row : begin_ + row;
    tile.end_row = kGradient ? task_.rows : end_;
    tile.column = in_band / band_rows * kTileColumns;
    tile.begin = kGradient ? begin_ : 0;
    tile.inner = kGradient ? end_ - begin_ : task_.inner;
    return true;
  }

 private:
  __device__ void enter_expert() {
    // By way of a shuffle, from which the compiler learns that it is the same for a warp.
    begin_ = __shfl_sync(0xffffffffU, task_.offsets[expert_], 0);
    end_ = __shfl_sync(0xffffffffU, task_.offsets[expert_ + 1], 0);
    int rows = kGradient ? task_.rows : end_ - begin_;
    if (kGradient && begin_ == end_ && task_.sum == GradientSum::kAccumulate) {
      rows = 0;  // nothing to add
    }
    row_tiles_ = (rows + kTileRows - 1) / kTileRows;
  }

  const GroupedTask<G>& task_;
  int column_tiles_;
  int expert_ = -1;
  int first_ = 0;  // tile of the expert
  int row_tiles_ = 0;
  int begin_ = 0;  // rows of the expert
  int end_ = 0;
};

// A block's tiles. Blocks that run at the same time have neighbouring ones; after kTilesPerBlock a
// block makes way for another: where a multiprocessor is late, or occupied by another kernel,
// others take over what it would have had.
template <bool kGradient, class G, class F>
__device__ void for_each_tile(const GroupedTask<G>& task, const F& f) {
  TileWalk<kGradient, G> walk(task);
  const int block = static_cast<int>(blockIdx.x);
  const int together = task.blocks_at_once;
  int index = block / together * together * kTilesPerBlock + block % together;
  GroupedTile tile;
#pragma unroll 1
  for (int i = 0; i < kTilesPerBlock && walk.find(index, tile); ++i, index += together) { f(tile); }
}

}  // namespace shardplan
