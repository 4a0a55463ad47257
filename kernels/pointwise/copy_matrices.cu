#include "kernels/pointwise/copy_matrices.h"

#include <algorithm>

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kUnroll = 4;
constexpr int kVectorBytes = 16;
constexpr int kParameterBytes = 4096;  // of a kernel; CUDA C++ programming guide, __global__

// What one launch copies.
constexpr int kMostCopies = kParameterBytes / static_cast<int>(sizeof(MatrixCopy));
struct Table {
  MatrixCopy at[kMostCopies];
};

// A row of blocks for every matrix.
__global__ void __launch_bounds__(kElementwiseThreads)
    copy_kernel(const __grid_constant__ Table table) {
  const MatrixCopy& copy = table.at[blockIdx.y];
  const char* from = static_cast<const char*>(copy.from);
  char* to = static_cast<char*>(copy.to);
  const unsigned width = static_cast<unsigned>(copy.row_bytes / kVectorBytes);
  const auto place = [&](std::int64_t index, std::int64_t stride) {
    const unsigned row = static_cast<unsigned>(index) / width;
    const unsigned column = static_cast<unsigned>(index) - row * width;
    return row * stride + static_cast<std::int64_t>(column) * kVectorBytes;
  };
  for_each_vector<kUnroll>(
      copy.rows * width,
      [&](std::int64_t index) { return load_bits(from + place(index, copy.from_stride_bytes)); },
      [&](std::int64_t index, uint4 bits) {
        store_bits(to + place(index, copy.to_stride_bytes), bits);
      });
}

}  // namespace

bool is_aligned(const MatrixCopy& copy) {
  const auto is_multiple = [](std::int64_t bytes) { return bytes % kVectorBytes == 0; };
  return is_multiple(reinterpret_cast<std::intptr_t>(copy.to)) &&
         is_multiple(reinterpret_cast<std::intptr_t>(copy.from)) && is_multiple(copy.row_bytes) &&
         is_multiple(copy.to_stride_bytes) && is_multiple(copy.from_stride_bytes);
}

void copy_matrices(std::span<const MatrixCopy> copies, cudaStream_t stream) {
  while (!copies.empty()) {
    const auto now = copies.first(std::min<std::size_t>(copies.size(), kMostCopies));
    copies = copies.subspan(now.size());
    Table table = {};
    std::ranges::copy(now, table.at);
    std::int64_t most_vectors = 0;
    for (const MatrixCopy& copy : now) {
      most_vectors = std::max(most_vectors, copy.rows * copy.row_bytes / kVectorBytes);
    }
    const dim3 blocks(elementwise_blocks<kUnroll>(most_vectors), static_cast<unsigned>(now.size()));
    copy_kernel<<<blocks, kElementwiseThreads, 0, stream>>>(table);
    CUDA_CHECK(cudaGetLastError());
  }
}

}  // namespace shardplan
