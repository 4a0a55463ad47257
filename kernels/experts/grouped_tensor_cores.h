// The kernels behind grouped_gemm.h and grouped_weight_gradient.h, which choose between them.
#pragma once

#include "kernels/experts/grouped_gemm.h"
#include "kernels/experts/grouped_weight_gradient.h"

namespace shardplan {

// On any GPU; of float in plain arithmetic.
template <class T>
void grouped_gemm_on_tensor_cores(T* out, const T* a, const T* b, const std::int32_t* offsets,
                                  const GroupedGemmShape& shape, cudaStream_t stream);
template <class T, class G>
void grouped_weight_gradient_on_tensor_cores(G* out, const T* a, const T* b,
                                             const std::int32_t* offsets,
                                             const GroupedWeightShape& shape, GradientSum sum,
                                             cudaStream_t stream);

// For compute capability 9.0, with warpgroups and the copy engine. G is float or __nv_bfloat16.
void grouped_gemm_on_warpgroups(__nv_bfloat16* out, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                const std::int32_t* offsets, const GroupedGemmShape& shape,
                                cudaStream_t stream);
template <class G>
void grouped_weight_gradient_on_warpgroups(G* out, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                           const std::int32_t* offsets,
                                           const GroupedWeightShape& shape, GradientSum sum,
                                           cudaStream_t stream);

}  // namespace shardplan
