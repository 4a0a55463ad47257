// Copies of several matrices by one kernel, where each alone would be over before the next one has
// been launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace shardplan {

struct MatrixCopy {
  void* to = nullptr;  // out  [rows, row_bytes], rows to_stride_bytes apart
  const void* from = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t to_stride_bytes = 0;
  std::int64_t from_stride_bytes = 0;
};

// Whether pointers and bytes are multiples of 16.
bool is_aligned(const MatrixCopy& copy);

// Any number of matrices, of sizes of their own, each aligned and below 2^36 bytes. No `to`
// overlaps another matrix.
void copy_matrices(std::span<const MatrixCopy> copies, cudaStream_t stream);

}  // namespace shardplan
