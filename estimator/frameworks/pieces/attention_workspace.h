// What cuDNN's attention takes of the allocator besides its tensors.
#pragma once

#include <cstdint>

namespace shardplan {

// Workspace of cuDNN 9 scaled-dot-product attention backward, bytes, closed form: batch, query
// heads and kv heads on this rank, lengths, head dimension.
struct CudnnShape {
  std::int64_t batch = 1;
  std::int64_t query_heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t query_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t head_dim = 128;
};
std::int64_t cudnn_backward_workspace_bytes(const CudnnShape& shape, bool deterministic);

}  // namespace shardplan
