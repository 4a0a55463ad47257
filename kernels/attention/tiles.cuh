// What the attention kernels on tensor cores share. Device code only.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/gemm/mma.cuh"
#include "kernels/pointwise/vector_io.cuh"

namespace shardplan {

inline constexpr float kMinusInfinity = -kInfinity;

// AttentionShape with 32-bit positions, as kernels compute with them.
struct AttentionTask {
  int query_length;
  int key_length;
  int heads;
  int kv_heads;
  int query_position;
  int window;
  std::int64_t q_stride;
  std::int64_t kv_stride;
  std::int64_t o_stride;
  float scale;  // 1 / sqrt(head_dim)
};

inline AttentionTask task_of(const AttentionShape& shape) {
  return {.query_length = static_cast<int>(shape.query_length),
          .key_length = static_cast<int>(shape.key_length),
          .heads = static_cast<int>(shape.heads),
          .kv_heads = static_cast<int>(shape.kv_heads),
          .query_position = static_cast<int>(shape.query_position),
          .window = static_cast<int>(shape.window),
          .q_stride = shape.q_stride,
          .kv_stride = shape.kv_stride,
          .o_stride = shape.o_stride,
          .scale = 1.0F / sqrtf(static_cast<float>(shape.head_dim))};
}

// Whether the query in row `query` sees key `key`.
__device__ inline bool sees(const AttentionTask& task, int query, int key) {
  const int position = task.query_position + query;
  return key <= position && key < task.key_length &&
         (task.window == 0 || key > position - task.window);
}

struct Range {
  int begin;
  int end;
};

// Keys that some query of rows first .. last sees.
__device__ inline Range keys_of(const AttentionTask& task, int first, int last) {
  const int lowest = task.window == 0 ? 0 : task.query_position + first - task.window + 1;
  return {max(0, lowest), min(task.key_length, task.query_position + last + 1)};
}

// Rows of queries that see some key of first .. last.
__device__ inline Range queries_of(const AttentionTask& task, int first, int last) {
  const int end = task.window == 0 ? task.query_length : last + task.window - task.query_position;
  return {max(0, first - task.query_position), min(task.query_length, end)};
}

// Whether every query of rows first .. first + rows - 1 sees all keys from first_key on.
__device__ inline bool sees_all(const AttentionTask& task, int first, int rows, int first_key,
                                int keys) {
  const int last = task.query_position + min(first + rows, task.query_length) - 1;
  return first_key + keys <= min(task.key_length, task.query_position + first + 1) &&
         (task.window == 0 || first_key > last - task.window);
}

}  // namespace shardplan
