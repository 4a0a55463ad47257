// The buffer in which blocks of PyTorch's reduction kernel leave their part of a sum.
#pragma once

#include <cstdint>

namespace shardplan::eager {

// Bytes, of the sum of `rows` rows of `columns` elements to one row, by a GPU of compute capability
// 9 with so many multiprocessors; 0: no block needs another's part. Source: PyTorch 2.11
// aten/src/ATen/native/cuda/Reduce.cuh setReduceConfig, ReduceConfig::global_memory_size.
std::int64_t column_sum_bytes(std::int64_t rows, std::int64_t columns,
                              std::int64_t multiprocessors);

}  // namespace shardplan::eager
