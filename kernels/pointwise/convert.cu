#include "kernels/pointwise/convert.h"

#include "kernels/pointwise/elementwise.cuh"

namespace shardplan {
namespace {

constexpr int kUnroll = 4;

template <class To, class From>
__global__ void __launch_bounds__(kElementwiseThreads)
    convert_kernel(To* __restrict__ to, const From* __restrict__ from, std::int64_t num_packs) {
  for_each_vector<kUnroll>(
      num_packs, [&](std::int64_t index) { return load_pack(from + index * kPackWidth); },
      [&](std::int64_t index, const Pack<From>& in) {
        Pack<To> out;
        for (int k = 0; k < kPackWidth; ++k) { out.at[k] = from_float<To>(to_float(in.at[k])); }
        store_pack(to + index * kPackWidth, out);
      });
}

template <class A, class B>
__global__ void __launch_bounds__(kElementwiseThreads)
    add_kernel(A* sum, const A* a, const B* b, std::int64_t num_packs) {
  struct Loaded {
    Pack<A> a;
    Pack<B> b;
  };
  for_each_vector<kUnroll>(
      num_packs,
      [&](std::int64_t index) {
        return Loaded{load_pack(a + index * kPackWidth), load_pack(b + index * kPackWidth)};
      },
      [&](std::int64_t index, const Loaded& in) {
        Pack<A> out;
        for (int k = 0; k < kPackWidth; ++k) {
          out.at[k] = from_float<A>(to_float(in.a.at[k]) + to_float(in.b.at[k]));
        }
        store_pack(sum + index * kPackWidth, out);
      });
}

// Elements first .. size - 1, fewer than a pack.
template <class A, class B>
__global__ void __launch_bounds__(kPackWidth)
    add_rest_kernel(A* sum, const A* a, const B* b, std::int64_t first, std::int64_t size) {
  const std::int64_t index = first + threadIdx.x;
  if (index < size) {
    sum[index] = from_float<A>(to_float(a[index]) + to_float(b[index]));
  }
}

// Rows of `packs` packs with strides of their own; kAdd: added to what is there.
template <class To, class From, bool kAdd>
__global__ void __launch_bounds__(kElementwiseThreads)
    rows_kernel(To* __restrict__ to, std::int64_t to_stride, const From* __restrict__ from,
                std::int64_t from_stride, std::int64_t num_packs, unsigned packs) {
  struct Loaded {
    Pack<From> in;
    Pack<To> before;
  };
  const auto place = [&](std::int64_t index, std::int64_t stride) {
    const std::int64_t row = index / packs;
    return row * stride + (index - row * packs) * kPackWidth;
  };
  for_each_vector<kUnroll>(
      num_packs,
      [&](std::int64_t index) {
        Loaded loaded{load_pack(from + place(index, from_stride)), {}};
        if constexpr (kAdd) {
          loaded.before = load_pack(to + place(index, to_stride));
        }
        return loaded;
      },
      [&](std::int64_t index, const Loaded& loaded) {
        Pack<To> out;
        for (int k = 0; k < kPackWidth; ++k) {
          const float value = to_float(loaded.in.at[k]);
          out.at[k] = from_float<To>(kAdd ? to_float(loaded.before.at[k]) + value : value);
        }
        store_pack(to + place(index, to_stride), out);
      });
}

template <bool kAdd, class To, class From>
void launch_rows(To* to, std::int64_t to_stride, const From* from, std::int64_t from_stride,
                 std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  const std::int64_t packs = columns / kPackWidth;
  rows_kernel<To, From, kAdd>
      <<<elementwise_blocks<kUnroll>(rows * packs), kElementwiseThreads, 0, stream>>>(
          to, to_stride, from, from_stride, rows * packs, static_cast<unsigned>(packs));
  CUDA_CHECK(cudaGetLastError());
}

template <class T>
__global__ void __launch_bounds__(kElementwiseThreads)
    fill_kernel(T* __restrict__ to, float value, std::int64_t size) {
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kElementwiseThreads + threadIdx.x;
  if (index < size) {
    to[index] = from_float<T>(value);
  }
}

}  // namespace

template <class T>
void fill(T* to, float value, std::int64_t size, cudaStream_t stream) {
  fill_kernel<<<elementwise_blocks<1>(size), kElementwiseThreads, 0, stream>>>(to, value, size);
  CUDA_CHECK(cudaGetLastError());
}

template <class To, class From>
void convert(To* to, const From* from, std::int64_t size, cudaStream_t stream) {
  const std::int64_t num_packs = size / kPackWidth;
  convert_kernel<<<elementwise_blocks<kUnroll>(num_packs), kElementwiseThreads, 0, stream>>>(
      to, from, num_packs);
  CUDA_CHECK(cudaGetLastError());
}

template <class A, class B>
void add(A* sum, const A* a, const B* b, std::int64_t size, cudaStream_t stream) {
  const std::int64_t num_packs = size / kPackWidth;
  if (num_packs > 0) {
    add_kernel<<<elementwise_blocks<kUnroll>(num_packs), kElementwiseThreads, 0, stream>>>(
        sum, a, b, num_packs);
    CUDA_CHECK(cudaGetLastError());
  }
  const std::int64_t first = num_packs * kPackWidth;
  if (first < size) {
    add_rest_kernel<<<1, kPackWidth, 0, stream>>>(sum, a, b, first, size);
    CUDA_CHECK(cudaGetLastError());
  }
}

template <class To, class From>
void convert_rows(To* to, std::int64_t to_stride, const From* from, std::int64_t from_stride,
                  std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  launch_rows<false>(to, to_stride, from, from_stride, rows, columns, stream);
}

template <class To, class From>
void add_rows(To* sum, std::int64_t sum_stride, const From* from, std::int64_t from_stride,
              std::int64_t rows, std::int64_t columns, cudaStream_t stream) {
  launch_rows<true>(sum, sum_stride, from, from_stride, rows, columns, stream);
}

template void fill(float*, float, std::int64_t, cudaStream_t);
template void fill(__nv_bfloat16*, float, std::int64_t, cudaStream_t);
template void convert(float*, const __nv_bfloat16*, std::int64_t, cudaStream_t);
template void convert(__nv_bfloat16*, const float*, std::int64_t, cudaStream_t);
template void add(float*, const float*, const float*, std::int64_t, cudaStream_t);
template void add(__nv_bfloat16*, const __nv_bfloat16*, const __nv_bfloat16*, std::int64_t,
                  cudaStream_t);
template void add(float*, const float*, const __nv_bfloat16*, std::int64_t, cudaStream_t);
template void convert_rows(float*, std::int64_t, const __nv_bfloat16*, std::int64_t, std::int64_t,
                           std::int64_t, cudaStream_t);
template void convert_rows(__nv_bfloat16*, std::int64_t, const float*, std::int64_t, std::int64_t,
                           std::int64_t, cudaStream_t);
template void add_rows(__nv_bfloat16*, std::int64_t, const __nv_bfloat16*, std::int64_t,
                       std::int64_t, std::int64_t, cudaStream_t);
template void add_rows(float*, std::int64_t, const __nv_bfloat16*, std::int64_t, std::int64_t,
                       std::int64_t, cudaStream_t);
template void add_rows(float*, std::int64_t, const float*, std::int64_t, std::int64_t, std::int64_t,
                       cudaStream_t);

}  // namespace shardplan
