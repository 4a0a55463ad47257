// Cross-entropy over a vocabulary that may be split over ranks. Every shard reduces its columns to
// three floats a row; the gathered statistics, combined, give loss and gradient; the gradient
// overwrites the logits.
//   loss = lse - logit[target],  dlogits = (exp(logit - lse) - [column is target]) * scale
// T is float or __nv_bfloat16. width is a multiple of 8, rows * width below 2^34; pointers are
// 16-byte aligned. Columns from num_valid on are padding: not read as logits, gradient 0.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace shardplan {

struct RowStatistics {
  float max = 0;     // of the shard's logits
  float sum = 0;     // of exp(logit - max)
  float target = 0;  // the target's logit where this shard has it, else 0
};

// The shard of this rank: columns first_column to first_column + num_valid - 1 of the vocabulary.
struct VocabularyShard {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t num_valid = 0;  // 0: all padding
  std::int64_t first_column = 0;
};

// statistics [rows]         out
// logits     [rows, width]
// targets    [rows]         columns of the whole vocabulary
template <class T>
void cross_entropy_statistics(RowStatistics* statistics, const T* logits,
                              const std::int32_t* targets, const VocabularyShard& shard,
                              cudaStream_t stream);

// combined   [rows]          out
// loss       [1]             scale times the sum of the rows' losses is added to it
// statistics [shards, rows]  added in the order of the shards
void cross_entropy_combine(RowStatistics* combined, float* loss, const RowStatistics* statistics,
                           std::int64_t shards, std::int64_t rows, double scale,
                           cudaStream_t stream);

// logits   [rows, width]  in: logits, out: gradient
// combined [rows]
// targets  [rows]
template <class T>
void cross_entropy_gradient(T* logits, const RowStatistics* combined, const std::int32_t* targets,
                            const VocabularyShard& shard, float scale, cudaStream_t stream);

}  // namespace shardplan
