// Turns matrices around.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

// out [batch, columns, rows]  out; not in
// in  [batch, rows, columns]  columns at most 65535 * 32, batch at most 65535, rows any
void transpose(float* out, const float* in, std::int64_t batch, std::int64_t rows,
               std::int64_t columns, cudaStream_t stream);

}  // namespace shardplan
