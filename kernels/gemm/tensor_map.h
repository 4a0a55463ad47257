// Matrices as the copy engine of sm_90 takes them (CUDA driver API, "Tensor Map Object
// Management").
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace shardplan {

inline constexpr int kBoxRows = 64;
inline constexpr int kBoxColumns = 64;

// [batch, length, heads * head_dim] with `stride` elements from row to row, sequences one after the
// other. A box is kBoxRows rows of kBoxColumns columns of one head of one sequence; rows beyond
// `length` are zero. Coordinates: column of the head, head, row, sequence.
// Throws std::runtime_error where the driver refuses.
CUtensorMap map_heads(const __nv_bfloat16* matrix, std::int64_t head_dim, std::int64_t heads,
                      std::int64_t length, std::int64_t batch, std::int64_t stride);

// [count, rows, columns], contiguous; columns are a multiple of 8. A box is kBoxRows rows of
// kBoxColumns columns of one matrix; what lies beyond a matrix is zero. Coordinates: column, row,
// matrix.
CUtensorMap map_matrices(const __nv_bfloat16* matrices, std::int64_t count, std::int64_t rows,
                         std::int64_t columns);

}  // namespace shardplan
