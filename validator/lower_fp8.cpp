// Precision fp8: the linear layers of attention and FFN multiply in fp8, everything else stays as
// in bf16. Both factors of a product are rounded when they are used, each under one scale of its
// own, taken from the values of this rank ("tensorwise", "current scaling"); nothing in fp8
// outlives the products of one layer, so that activations, weights and their lifetimes are those of
// bf16. Activations and weights are e4m3, gradients of outputs e5m2, as in arXiv 2209.05433,
// section 5, and Transformer Engine's Format.HYBRID.
#include <algorithm>

#include "validator/lowering.h"

namespace shardplan {
namespace {

// Embedding and head belong to no layer.
bool multiplies_in_fp8(const Lowering& l) {
  return l.plan.precision == Precision::kFp8 && l.layer >= 0;
}

// Both factors, behind the scales.
std::int64_t operand_bytes(std::int64_t a, std::int64_t b) {
  return round_up(a, kTensorAlignment) + round_up(b, kTensorAlignment);
}

// Of the three products of one linear layer; that of the input's gradient rounds the output's for
// the next one, too.
std::int64_t operand_bytes(std::int64_t tokens, std::int64_t inputs, std::int64_t outputs) {
  const std::int64_t x = tokens * inputs;
  const std::int64_t w = outputs * inputs;
  const std::int64_t dy = tokens * outputs;
  return kFp8ScaleBytes +
         std::max({operand_bytes(x, w), operand_bytes(dy, w) + round_up(dy, kTensorAlignment),
                   operand_bytes(dy, x)});
}

}  // namespace

void in_fp8_forward(const Lowering& l, Operation& product) {
  if (multiplies_in_fp8(l)) {
    product.attributes.fp8 = Fp8Factors{};
  }
}

void in_fp8_input_gradient(Lowering& l, Operation& product) {
  if (multiplies_in_fp8(l)) {
    product.attributes.fp8 = Fp8Factors{.a = Fp8Format::kE5m2};
    product.attributes.fp8_keeps = l.pending == nullptr;
    l.fp8_kept = product.attributes.fp8_keeps ? product.in[0] : View{};
  }
}

void in_fp8_weight_gradient(Lowering& l, Operation& product) {
  if (multiplies_in_fp8(l)) {
    product.attributes.fp8 = Fp8Factors{.a = Fp8Format::kE5m2};
    product.attributes.fp8_finds = product.in[0] == l.fp8_kept;
    l.fp8_kept = {};
  }
}

void place_fp8_operands(Lowering& l) {
  if (l.plan.precision != Precision::kFp8) {
    return;
  }
  const LocalSizes& s = l.sizes;
  const std::int64_t bytes = std::max({operand_bytes(s.tokens, s.hidden, s.qkv_width()),
                                       operand_bytes(s.tokens, s.query_width(), s.hidden),
                                       operand_bytes(s.tokens, s.hidden, 2 * s.ffn),
                                       operand_bytes(s.tokens, s.ffn, s.hidden)});
  l.builder.persistent({.component = Component::kWorkspace,
                        .name = "fp8_operands",
                        .dtype = DType::kFp8,
                        .rows = 1,
                        .cols = bytes});
}

}  // namespace shardplan
