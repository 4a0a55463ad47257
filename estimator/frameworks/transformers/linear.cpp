#include "estimator/frameworks/transformers/linear.h"

#include "estimator/frameworks/transformers/labels.h"
#include "estimator/plan/units.h"

namespace shardplan::transformers {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::InRow;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

constexpr std::int64_t kBlock = 64;         // elements of a 4-bit weight that share a scale
constexpr std::int64_t kScalesBlock = 256;  // scales that share one of the second level
constexpr std::int64_t kCode = 16;          // values of 4 bits
constexpr std::int64_t kScalesCode = 256;   // values of 8 bits
constexpr std::int64_t kFp32 = 4;

// The whole weight in the product's type while it runs.
Tensor dequantized(Graph& graph, const Linear& linear, DType dtype) {
  const InRow row(graph.tape, kDequantizedRow);
  const std::int64_t elements = linear.shape.inputs * linear.shape.outputs;
  Tensor scales;
  if (linear.quantized.is_double) {
    scales = graph.make(div_ceil(elements, kBlock), DType::kFp32);
  }
  return graph.make(elements, dtype);
}

// MatMul4Bit: neither the input nor the weight in the product's type is saved.
Tensor product_4bit(Graph& graph, const Linear& linear, const Tensor& input) {
  const Tensor x = eager::to(graph, input, DType::kBf16);  // bnb_4bit_compute_dtype
  NodeBuilder node(graph, {&x});
  const std::int64_t rows = x.elements / linear.shape.inputs;
  const DType dtype = x.dtype;
  Tensor output;
  {
    const Tensor weight = dequantized(graph, linear, dtype);
    output = linear.bias.data.is_defined()
                 ? graph.make_product_with_bias(rows * linear.shape.outputs, dtype)
                 : graph.make_product(rows * linear.shape.outputs, dtype);
  }
  const Linear* quantized = &linear;
  return node.finish(std::move(output), [=](BackwardCall& call) {
    const Tensor weight = dequantized(call.graph, *quantized, dtype);
    Tensor of_input = call.graph.make_product(rows * quantized->shape.inputs, dtype);
    of_input.is_view = true;
    return Tensors{std::move(of_input)};
  });
}

// MatMul8bitLt: the input in fp16, then in 8 bits; sums in int32; the output in the input's type.
// It keeps its input as an attribute, which no hook sees and no release frees.
Tensor product_int8(Graph& graph, const Linear& linear, const Tensor& input) {
  NodeBuilder node(graph, {&input});
  const std::int64_t rows = input.elements / linear.shape.inputs;
  const std::int64_t outputs = rows * linear.shape.outputs;
  const DType dtype = input.dtype;
  Tensor rounded;
  {
    const Tensor half = eager::to(graph, input.detached(), DType::kFp16);
    rounded = graph.make(input.elements, DType::kFp8);
    const Tensor magnitudes = graph.make(input.elements, DType::kFp16);
    const Tensor outliers = graph.make(input.elements, DType::kBool);
  }
  Tensor output;
  {
    const Tensor sums = graph.make(outputs, DType::kInt32);
    const Tensor scaled = graph.make(outputs, DType::kFp16);
    output = eager::to(graph, scaled, dtype);
  }
  rounded = {};
  if (node.is_needed()) {
    node.keep(input);
  }
  const Linear* quantized = &linear;
  return node.finish(std::move(output), [=](BackwardCall& call) {
    const InRow row(call.graph.tape, kDequantizedRow);
    const Tensor weight =
        call.graph.make(quantized->shape.inputs * quantized->shape.outputs, dtype);
    Tensor of_input = call.graph.make_product(rows * quantized->shape.inputs, dtype);
    of_input.is_view = true;
    return Tensors{std::move(of_input)};
  });
}

Tensor base_product(Graph& graph, Linear& linear, const Tensor& input) {
  switch (linear.quantized.kind) {
    case Quantization::kNone:
      return eager::linear(graph, input, linear.weight.data, linear.shape, linear.bias.data);
    case Quantization::kNf4:
    case Quantization::kFp4:
      return eager::to(graph, product_4bit(graph, linear, input), input.dtype);
    case Quantization::kInt8: return product_int8(graph, linear, input);
  }
  return {};
}

}  // namespace

// peft's Linear.forward: the input in the adapter's type, which autocast casts back.
Tensor project(Graph& graph, Linear& linear, const Tensor& input) {
  Tensor result = base_product(graph, linear, input);
  if (linear.rank == 0) {
    return result;
  }
  const bool is_4bit =
      linear.quantized.kind == Quantization::kNf4 || linear.quantized.kind == Quantization::kFp4;
  if (is_4bit) {
    NodeBuilder node(graph, {&result});
    result = node.finish(graph.make(result.elements, result.dtype),
                         [](BackwardCall& call) { return std::move(call.gradients); });
  }
  const InRow row(graph.tape, kAdapterActivationRow);
  const bool casts = linear.quantized.kind == Quantization::kNone || !graph.autocast;
  const Tensor x = casts ? eager::to(graph, input, linear.a.data.dtype) : input;
  Tensor inner;
  {
    const Tensor dropped = eager::dropout(graph, x, linear.dropout);
    inner = eager::linear(graph, dropped, linear.a.data,
                          {.inputs = linear.shape.inputs, .outputs = linear.rank});
  }
  Tensor outer = eager::linear(graph, inner, linear.b.data,
                               {.inputs = linear.rank, .outputs = linear.shape.outputs});
  inner = {};
  outer = eager::scale(graph, outer);
  const DType dtype = result.dtype;
  result = eager::add(graph, result, outer);
  outer = {};
  return eager::to(graph, result, dtype);
}

std::vector<std::int64_t> quantized_bytes(const QuantizedWeights& quantized,
                                          const eager::LinearShape& shape) {
  const std::int64_t elements = shape.inputs * shape.outputs;
  if (quantized.kind == Quantization::kInt8) {
    return {elements, kFp32 * shape.outputs};
  }
  const std::int64_t blocks = div_ceil(elements, kBlock);
  if (!quantized.is_double) {
    return {div_ceil(elements, 2), kFp32 * blocks, kFp32 * kCode};
  }
  return {div_ceil(elements, 2), blocks, kFp32 * div_ceil(blocks, kScalesBlock),
          kFp32 * kScalesCode,   kFp32,  kFp32 * kCode};
}

}  // namespace shardplan::transformers
