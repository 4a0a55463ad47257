// Every number counts how often one element is read or written.
#include "estimator/frameworks/pieces/huggingface_kernels.h"

#include "estimator/frameworks/pieces/eager_kernels.h"

namespace shardplan {

// modeling_llama.py: one PyTorch kernel an operator. Norm: to
// fp32, square, mean, product with the root, back, product with the weight; backward the gradients
// of all of them, two in fp32 added up. Rotary embedding: products with cosine and sine, negation
// and cat of the halves, addition; backward zeros around either half. Additions: of residuals 3, of
// gradients 3, and the sums of input gradients 4.5.
LayerKernels huggingface_kernels(double e) {
  LayerKernels kernels;
  kernels.norm = {.forward = {.streamed = 12 + 3 * e, .converted = 2 * e + 8 + 8 + 2 * e},
                  .backward = {.streamed = 52 + 11.5 * e, .converted = 2 * e + 8 + 8 + 2 * e}};
  kernels.rotary = {.forward = {.streamed = 3 * e, .rearranged = 7 * e},
                    .backward = {.streamed = 6 * e, .rearranged = 9 * e}};
  kernels.gated = eager_swiglu(e);
  kernels.plain = eager_activation(e);
  return kernels;
}

// Operator by operator: forward as huggingface_kernels'
// norm. Backward the gradient lies as the rotary embedding's backward left it, heads before tokens,
// what was saved with tokens before heads: kernels that read both are products with the normed
// value 3 in bf16, with the root 2, with the input 3 and the sum of both gradients 3 in fp32.
Passes huggingface_head_norm(double e) {
  return {
      .forward = {.streamed = 12, .converted = 4 * e + 16},
      .backward = {.streamed = 36 + e, .converted = 4 * e + 8, .rearranged = 3 * e + 8 + 12 + 12}};
}

// The product with the normed value 3, and its sum 1.
Passes huggingface_frozen_norm(Passes norm, double e) {
  norm.backward.streamed -= 4 * e;
  return norm;
}

}  // namespace shardplan
