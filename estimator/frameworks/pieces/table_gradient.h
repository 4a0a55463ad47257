// The gradient of an embedding in eager PyTorch.
#pragma once

#include <cstdint>

namespace shardplan {

// The gradient of a table from more than 3072 tokens sums parts of at most ten tokens first
// (ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu, NROWS_PER_THREAD).
std::int64_t table_workspace_bytes(std::int64_t tokens, std::int64_t rows, std::int64_t hidden);

}  // namespace shardplan
