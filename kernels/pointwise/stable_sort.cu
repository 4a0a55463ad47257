#include "kernels/pointwise/stable_sort.h"

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

// Radix sort from the lowest digit up. One warp walks one tile in order, 32 keys at a time.
constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kTile = 512;
constexpr int kScanThreads = 1024;

std::int64_t num_tiles(std::int64_t size) {
  return (size + kTile - 1) / kTile;
}

// Calls visit(index, digit, rank, last) for every key of the warp's tile, in order: rank of this
// key among the equal digits of the tile, and whether it is the last of them among its 32.
// `counts` is where the ranks start.
template <class Visit>
__device__ void for_each_ranked(const std::int32_t* keys, int size, int shift, int* counts,
                                Visit visit) {
  const unsigned lane = threadIdx.x;
  for (int i = 0; i < kTile; i += 32) {
    const int index = static_cast<int>(blockIdx.x) * kTile + i + static_cast<int>(lane);
    const bool inside = index < size;
    // Lanes past the end get a digit of their own kind.
    const int digit = inside ? (keys[index] >> shift) & (kDigits - 1) : kDigits;
    const unsigned peers = __match_any_sync(0xffffffffU, digit);
    const int before = __popc(peers & ((1U << lane) - 1));
    if (inside) {
      visit(index, digit, counts[digit] + before);
    }
    __syncwarp();
    if (inside && before == 0) {
      counts[digit] += __popc(peers);
    }
    __syncwarp();
  }
}

// counts [kDigits, tiles]
__global__ void __launch_bounds__(32)
    count_kernel(std::int32_t* __restrict__ counts, const std::int32_t* __restrict__ keys, int size,
                 int shift) {
  __shared__ int tile_counts[kDigits];
  for (unsigned digit = threadIdx.x; digit < kDigits; digit += 32) { tile_counts[digit] = 0; }
  __syncwarp();
  for_each_ranked(keys, size, shift, tile_counts, [](int, int, int) {});
  for (unsigned digit = threadIdx.x; digit < kDigits; digit += 32) {
    counts[digit * gridDim.x + blockIdx.x] = tile_counts[digit];
  }
}

// values becomes its exclusive prefix sum. One block.
__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(std::int32_t* __restrict__ values, std::int64_t size) {
  __shared__ int warps[kScanThreads / 32];
  const unsigned lane = threadIdx.x % 32;
  const std::int64_t share = (size + kScanThreads - 1) / kScanThreads;
  const std::int64_t begin = share * threadIdx.x;
  const std::int64_t end = begin + share < size ? begin + share : size;
  int sum = 0;
  for (std::int64_t i = begin; i < end; ++i) { sum += values[i]; }
  int scan = sum;  // inclusive, over the warp
  for (unsigned offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xffffffffU, scan, offset);
    scan += lane >= offset ? other : 0;
  }
  if (lane == 31) {
    warps[threadIdx.x / 32] = scan;
  }
  __syncthreads();
  int running = scan - sum;
  for (unsigned i = 0; i < threadIdx.x / 32; ++i) { running += warps[i]; }
  for (std::int64_t i = begin; i < end; ++i) {
    const int value = values[i];
    values[i] = running;
    running += value;
  }
}

// from_order is null in the first pass: then the order is 0, 1, 2, ...
__global__ void __launch_bounds__(32)
    scatter_kernel(std::int32_t* __restrict__ to_keys, std::int32_t* __restrict__ to_order,
                   const std::int32_t* __restrict__ from_keys,
                   const std::int32_t* __restrict__ from_order,
                   const std::int32_t* __restrict__ starts, int size, int shift) {
  __shared__ int tile_starts[kDigits];
  for (unsigned digit = threadIdx.x; digit < kDigits; digit += 32) {
    tile_starts[digit] = starts[digit * gridDim.x + blockIdx.x];
  }
  __syncwarp();
  for_each_ranked(from_keys, size, shift, tile_starts, [&](int index, int, int place) {
    to_keys[place] = from_keys[index];
    to_order[place] = from_order == nullptr ? index : from_order[index];
  });
}

}  // namespace

std::int64_t stable_sort_scratch(std::int64_t size) {
  return kDigits * num_tiles(size) + 2 * size;
}

void stable_sort(std::int32_t* sorted_keys, std::int32_t* order, std::int32_t* scratch,
                 const std::int32_t* keys, std::int64_t size, std::int64_t num_keys,
                 cudaStream_t stream) {
  const std::int64_t tiles = num_tiles(size);
  std::int32_t* counts = scratch;
  std::int32_t* other_keys = counts + kDigits * tiles;
  std::int32_t* other_order = other_keys + size;
  int passes = 1;
  while (passes * kDigitBits < 31 && (num_keys - 1) >> (passes * kDigitBits) != 0) { ++passes; }
  const std::int32_t* from_keys = keys;
  const std::int32_t* from_order = nullptr;
  for (int pass = 0; pass < passes; ++pass) {
    // The last pass writes the result, so the ones before it alternate towards it.
    const bool to_result = (passes - pass) % 2 == 1;
    std::int32_t* to_keys = to_result ? sorted_keys : other_keys;
    std::int32_t* to_order = to_result ? order : other_order;
    const unsigned blocks = static_cast<unsigned>(tiles);
    const int shift = pass * kDigitBits;
    count_kernel<<<blocks, 32, 0, stream>>>(counts, from_keys, static_cast<int>(size), shift);
    CUDA_CHECK(cudaGetLastError());
    scan_kernel<<<1, kScanThreads, 0, stream>>>(counts, kDigits * tiles);
    CUDA_CHECK(cudaGetLastError());
    scatter_kernel<<<blocks, 32, 0, stream>>>(to_keys, to_order, from_keys, from_order, counts,
                                              static_cast<int>(size), shift);
    CUDA_CHECK(cudaGetLastError());
    from_keys = to_keys;
    from_order = to_order;
  }
}

}  // namespace shardplan
