#include "kernels/gemm/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/pointwise/cuda_check.h"

namespace shardplan {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// By way of the runtime: no program links the driver, which machines without a GPU lack.
Encode encode_of_driver() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                              cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error("the driver has no cuTensorMapEncodeTiled, expected CUDA 12 or later");
  }
  return reinterpret_cast<Encode>(function);
}

cuuint64_t bytes(std::int64_t elements) {
  return static_cast<cuuint64_t>(2 * elements);
}

// Dimensions from the fastest on; strides in bytes, of all but that one.
template <int kDims>
CUtensorMap map_tensor(const __nv_bfloat16* tensor, const cuuint64_t (&sizes)[kDims],
                       const cuuint64_t (&strides)[kDims - 1], const cuuint32_t (&box)[kDims]) {
  static const Encode encode = encode_of_driver();
  cuuint32_t steps[kDims];
  std::ranges::fill(steps, 1);
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kDims, const_cast<__nv_bfloat16*>(tensor),
             sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(result));
  }
  return map;
}

}  // namespace

CUtensorMap map_heads(const __nv_bfloat16* matrix, std::int64_t head_dim, std::int64_t heads,
                      std::int64_t length, std::int64_t batch, std::int64_t stride) {
  return map_tensor<4>(matrix,
                       {static_cast<cuuint64_t>(head_dim), static_cast<cuuint64_t>(heads),
                        static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(batch)},
                       {bytes(head_dim), bytes(stride), bytes(stride * length)},
                       {kBoxColumns, 1, kBoxRows, 1});
}

CUtensorMap map_matrices(const __nv_bfloat16* matrices, std::int64_t count, std::int64_t rows,
                         std::int64_t columns) {
  // One matrix may have any number of rows: no stride leads beyond it.
  const std::int64_t stride = count == 1 ? columns : columns * rows;
  return map_tensor<3>(matrices,
                       {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                        static_cast<cuuint64_t>(count)},
                       {bytes(columns), bytes(stride)}, {kBoxColumns, kBoxRows, 1});
}

}  // namespace shardplan
