// The tensor-core half of attention.h: bf16, a head of 64 or 128. Only attention.cu calls it.
#pragma once

#include <cuda_bf16.h>

#include "kernels/attention/attention.h"

namespace shardplan {

void attention_forward_on_tensor_cores(__nv_bfloat16* o, float* lse, const __nv_bfloat16* q,
                                       const __nv_bfloat16* k, const __nv_bfloat16* v,
                                       const AttentionShape& shape, cudaStream_t stream);

// What a backward pass reads and writes; delta is filled already. G is float or __nv_bfloat16.
template <class G>
struct GradientPointers {
  G* dq;
  G* dk;
  G* dv;
  const float* delta;
  const __nv_bfloat16* dout;
  const __nv_bfloat16* q;
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  const float* lse;
  AttentionGradientShape to;
};

template <class G>
void attention_backward_on_tensor_cores(const GradientPointers<G>& pointers,
                                        const AttentionShape& shape, cudaStream_t stream);

// The same by kernels for compute capability 9.0, with warpgroups and the copy engine.
void attention_forward_on_warpgroups(__nv_bfloat16* o, float* lse, const __nv_bfloat16* q,
                                     const __nv_bfloat16* k, const __nv_bfloat16* v,
                                     const AttentionShape& shape, cudaStream_t stream);
template <class G>
void attention_backward_on_warpgroups(const GradientPointers<G>& pointers,
                                      const AttentionShape& shape, cudaStream_t stream);

}  // namespace shardplan
