#include "kernels/pointwise/embedding.h"

#include "kernels/pointwise/elementwise.cuh"
#include "kernels/pointwise/stable_sort.h"

namespace shardplan {
namespace {

constexpr int kUnroll = 4;
constexpr int kOwnerThreads = 128;
constexpr int kRun = 4;  // rows of one token in flight at once

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    forward_kernel(T* __restrict__ out, const T* __restrict__ table,
                   const std::int32_t* __restrict__ tokens, std::int64_t num_vectors,
                   unsigned row_vectors, std::int64_t first_token, std::int64_t num_tokens) {
  constexpr int kWidth = kVectorWidth<T>;
  for_each_vector<kUnroll>(
      num_vectors,
      [&](std::int64_t index) {
        const unsigned row = static_cast<unsigned>(index) / row_vectors;
        const std::int64_t column = index - static_cast<std::int64_t>(row) * row_vectors;
        const std::int64_t token = tokens[row] - first_token;
        return token < 0 || token >= num_tokens
                   ? Vector<T>{}
                   : load_vector(table + (token * row_vectors + column) * kWidth);
      },
      [&](std::int64_t index, const Vector<T>& value) {
        store_vector(out + index * kWidth, value);
      });
}

// Tokens of other shards get the key num_tokens, and so stand last.
__global__ void __launch_bounds__(kElementwiseThreads)
    keys_kernel(std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ tokens,
                std::int64_t rows, std::int64_t first_token, std::int64_t num_tokens) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x;
  if (row < rows) {
    const std::int64_t token = tokens[row] - first_token;
    keys[row] = static_cast<std::int32_t>(token < 0 || token >= num_tokens ? num_tokens : token);
  }
}

// Block (i, part): where a token's run begins at position i, it adds the whole run.
template <class T, class G>
__global__ void __launch_bounds__(kOwnerThreads)
    backward_kernel(G* __restrict__ dtable, const T* __restrict__ dout,
                    const std::int32_t* __restrict__ keys, const std::int32_t* __restrict__ order,
                    int rows, int width, int num_tokens) {
  constexpr int kWidth = kVectorWidth<T>;
  int i = static_cast<int>(blockIdx.x);
  const int key = keys[i];
  const int column = static_cast<int>(blockIdx.y * kOwnerThreads + threadIdx.x) * kWidth;
  if (key == num_tokens || (i > 0 && keys[i - 1] == key) || column >= width) {
    return;
  }
  float sum[kWidth] = {};
  const auto add = [&](const Vector<T>& row) {
    for (int k = 0; k < kWidth; ++k) { sum[k] += to_float(row.at[k]); }
  };
  const auto load = [&](int position) {
    return load_vector(dout + static_cast<std::int64_t>(order[position]) * width + column);
  };
  for (; i + kRun <= rows && keys[i + kRun - 1] == key; i += kRun) {
    Vector<T> loaded[kRun];
#pragma unroll
    for (int k = 0; k < kRun; ++k) { loaded[k] = load(i + k); }
#pragma unroll
    for (int k = 0; k < kRun; ++k) { add(loaded[k]); }
  }
  for (; i < rows && keys[i] == key; ++i) { add(load(i)); }
  G* to = dtable + static_cast<std::int64_t>(key) * width + column;
#pragma unroll
  for (int k = 0; k < kWidth; k += kVectorWidth<G>) {
    Vector<G> total = load_vector(to + k);
    for (int j = 0; j < kVectorWidth<G>; ++j) {
      total.at[j] = from_float<G>(to_float(total.at[j]) + sum[k + j]);
    }
    store_vector(to + k, total);
  }
}

}  // namespace

template <class T>
void embedding_forward(T* out, const T* table, const std::int32_t* tokens, std::int64_t rows,
                       std::int64_t width, std::int64_t first_token, std::int64_t num_tokens,
                       cudaStream_t stream) {
  const std::int64_t row_vectors = width / kVectorWidth<T>;
  forward_kernel<<<elementwise_blocks<kUnroll>(rows * row_vectors), kElementwiseThreads, 0,
                   stream>>>(out, table, tokens, rows * row_vectors,
                             static_cast<unsigned>(row_vectors), first_token, num_tokens);
  CUDA_CHECK(cudaGetLastError());
}

std::int64_t embedding_backward_scratch(std::int64_t rows) {
  return 3 * rows + stable_sort_scratch(rows);
}

template <class T, class G>
void embedding_backward(G* dtable, std::int32_t* scratch, const T* dout, const std::int32_t* tokens,
                        std::int64_t rows, std::int64_t width, std::int64_t first_token,
                        std::int64_t num_tokens, cudaStream_t stream) {
  std::int32_t* keys = scratch;
  std::int32_t* sorted_keys = keys + rows;
  std::int32_t* order = sorted_keys + rows;
  keys_kernel<<<elementwise_blocks<1>(rows), kElementwiseThreads, 0, stream>>>(
      keys, tokens, rows, first_token, num_tokens);
  CUDA_CHECK(cudaGetLastError());
  stable_sort(sorted_keys, order, order + rows, keys, rows, num_tokens + 1, stream);
  const std::int64_t row_vectors = width / kVectorWidth<T>;
  const dim3 blocks(static_cast<unsigned>(rows),
                    static_cast<unsigned>((row_vectors + kOwnerThreads - 1) / kOwnerThreads));
  backward_kernel<<<blocks, kOwnerThreads, 0, stream>>>(
      dtable, dout, sorted_keys, order, static_cast<int>(rows), static_cast<int>(width),
      static_cast<int>(num_tokens));
  CUDA_CHECK(cudaGetLastError());
}

#define SHARDPLAN_INSTANTIATE(T)                                                                 \
  template void embedding_forward(T*, const T*, const std::int32_t*, std::int64_t, std::int64_t, \
                                  std::int64_t, std::int64_t, cudaStream_t);
SHARDPLAN_INSTANTIATE(float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE
#define SHARDPLAN_INSTANTIATE(T, G)                                                                \
  template void embedding_backward(G*, std::int32_t*, const T*, const std::int32_t*, std::int64_t, \
                                   std::int64_t, std::int64_t, std::int64_t, cudaStream_t);
SHARDPLAN_INSTANTIATE(float, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, float)
SHARDPLAN_INSTANTIATE(__nv_bfloat16, __nv_bfloat16)
#undef SHARDPLAN_INSTANTIATE

}  // namespace shardplan
