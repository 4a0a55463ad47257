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

// Gemma's norms multiply by 1 + weight in fp32, where Llama's do so in the type of the stream
// (GemmaRMSNorm): the product 8 and, backward, its derivatives 12 and 8 and the sum of the
// weight's 4, in place of 2, 3, 2 and 1 of e bytes.
Passes huggingface_gemma_norm(Passes norm, double e) {
  norm.forward.streamed += 8;
  norm.forward.converted -= 2 * e;
  norm.backward.streamed += 12 + 8 + 4 - (3 + 1) * e;
  norm.backward.converted -= 2 * e;
  return norm;
}

// As Gemma's, whose 1 + weight is of a row alone.
Passes huggingface_wide_norm(Passes norm, double e) {
  return huggingface_gemma_norm(norm, e);
}

// The mean, 4, and two differences, 8 each; backward their negations, 8 each, the mean's gradient 4
// and three sums of gradients, 12 each.
Passes huggingface_centred_norm(Passes norm, double e) {
  norm = huggingface_wide_norm(norm, e);
  norm.forward.streamed += 4 + 2 * 8;
  norm.backward.streamed += 2 * 8 + 4 + 3 * 12;
  return norm;
}

// One kernel forward; backward one for the input, of the gradient and the input, and one for weight
// and bias, which reads both. Additions as huggingface_kernels'. Autocast casts the input, and the
// output for each of five products behind two norms, and their gradients.
Passes huggingface_layer_norm(double e, double computed) {
  const double cast = computed == e ? 0 : (1 + 5. / 2) * (e + computed);
  return {.forward = {.fused = 2 * computed, .streamed = 3 * e, .converted = cast},
          .backward = {.fused = (3 + 2) * computed, .streamed = (3 + 4.5) * e, .converted = cast}};
}

// Of four norms in a layer two stand in front of no products and no addition of the stream: these
// are counted with every norm as one, of the residual 3 forward, of gradients 3 and 4.5 backward.
Passes huggingface_four_norms(Passes norm, double e) {
  norm.forward.streamed -= 3 * e / 2;
  norm.backward.streamed -= (3 + 4.5) * e / 2;
  return norm;
}

}  // namespace shardplan
