// Precision fp8: the linear layers of attention and FFN multiply in fp8, everything else stays as
// in bf16. Both factors of a product are rounded when they are used, each under one scale of its
// own, taken from the values of this rank ("tensorwise", "current scaling"); nothing in fp8
// outlives the products of one layer, so that activations, weights and their lifetimes are those of
// bf16. Activations and weights are e4m3, gradients of outputs e5m2, as in arXiv 2209.05433,
// section 5, and Transformer Engine's Format.HYBRID.
#include "validator/lower/fp8.h"

#include <algorithm>

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

// What the last product in fp8 has left of the factors of this one: the pieces of a linear layer
// follow each other, then comes the gradient of its weight.
Fp8Found found(const Lowering& l, const Operation& product) {
  const std::vector<Operation>& operations = l.program().operations;
  const auto last = std::find_if(operations.rbegin(), operations.rend(),
                                 [](const Operation& op) { return op.attributes.fp8.has_value(); });
  if (last == operations.rend()) {
    return Fp8Found::kNothing;
  }
  if (last->attributes.fp8_keeps && last->in[0] == product.in[0]) {
    return Fp8Found::kColumns;
  }
  const bool is_same_weight = last->in[1] == product.in[1] &&
                              last->attributes.transpose_b == product.attributes.transpose_b;
  return is_same_weight ? Fp8Found::kWeight : Fp8Found::kNothing;
}

void multiply_in_fp8(const Lowering& l, Operation& product, const Fp8Factors& factors) {
  if (multiplies_in_fp8(l)) {
    product.attributes.fp8 = factors;
    product.attributes.fp8_finds = found(l, product);
  }
}

}  // namespace

void in_fp8_forward(const Lowering& l, Operation& product) {
  multiply_in_fp8(l, product, {});
}

// The output's gradient is kept where the weight's comes next: at once, and of all tokens together.
void in_fp8_input_gradient(const Lowering& l, Operation& product) {
  multiply_in_fp8(l, product, {.a = Fp8Format::kE5m2});
  product.attributes.fp8_keeps = product.attributes.fp8.has_value() && l.pending == nullptr &&
                                 product.in[0].rows == l.sizes.tokens;
}

void in_fp8_weight_gradient(const Lowering& l, Operation& product) {
  multiply_in_fp8(l, product, {.a = Fp8Format::kE5m2});
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
