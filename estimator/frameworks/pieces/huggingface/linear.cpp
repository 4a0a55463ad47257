#include "estimator/frameworks/pieces/huggingface/linear.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/fake_quantize.h"
#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/adaptive_adapters.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/plan/units.h"

namespace shardplan::huggingface {
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
  const Tensor x = eager::to(graph, input, linear.compute_dtype);
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

// The adapter's product of both matrices, by way of an identity matrix of the inputs
// (DoraLinearLayer.get_lora_weight).
Tensor adapter_weight(Graph& graph, const Linear& linear, DType dtype) {
  const std::int64_t inputs = linear.shape.inputs;
  Tensor whole;
  {
    const Tensor identity = graph.make(inputs * inputs, linear.a.data.dtype);
    const Tensor inner =
        eager::linear(graph, identity, linear.a.data,
                      {.inputs = inputs, .outputs = linear.rank, .flattens_input = false});
    whole = eager::linear(
        graph, inner, linear.b.data,
        {.inputs = linear.rank, .outputs = linear.shape.outputs, .flattens_input = false});
  }
  return eager::to(graph, whole, dtype);
}

// magnitude / norm, of every output; the norm of the sum of both weights is a constant
// (DoraLinearLayer.get_weight_norm).
Tensor magnitude_scale(Graph& graph, const Linear& linear, const Tensor& weight) {
  Tensor norm;
  {
    Tensor sum;
    {
      const Tensor scaled = graph.make(weight.elements, weight.dtype);
      sum = graph.make(weight.elements, weight.dtype);
    }
    norm = graph.make(linear.shape.outputs, graph.autocast ? DType::kFp32 : weight.dtype);
  }
  norm = eager::to(graph, norm, weight.dtype);
  const Tensor& magnitude = linear.magnitude.data;
  NodeBuilder node(graph, {&magnitude});
  if (node.is_needed()) {
    node.save(norm);
  }
  const DType dtype = eager::promoted(magnitude.dtype, norm.dtype);
  const std::int64_t outputs = linear.shape.outputs;
  return node.finish(graph.make(outputs, dtype), [=](BackwardCall& call) {
    const Tensor saved_norm = call.saved(0);
    return Tensors{call.graph.make(outputs, dtype)};
  });
}

// A or B of an adapter.
Tensor low_rank_product(Graph& graph, eager::Parameter& weight, const Tensor& input,
                        const eager::LinearShape& shape) {
  const eager::Module module = {&weight, "lora", {&weight}};
  return eager::call_module(graph, module, input, [&](const Tensor& x) {
    return eager::linear(graph, x, weight.data, shape);
  });
}

Tensor adapter_product(Graph& graph, Linear& linear, const Tensor& input) {
  const Tensor inner = low_rank_product(graph, linear.a, input,
                                        {.inputs = linear.shape.inputs, .outputs = linear.rank});
  return low_rank_product(graph, linear.b, inner,
                          {.inputs = linear.rank, .outputs = linear.shape.outputs});
}

// DoraLinearLayer.forward: (scale - 1) * base + scale * adapter, which is added to the base's
// result. With dropout the base's product is made again, of the dropped input.
Tensor decomposed(Graph& graph, Linear& linear, const Tensor& x, const Tensor& result) {
  const Tensor of_adapter = adapter_weight(graph, linear, x.dtype);
  const Tensor weight =
      eager::to(graph, unpacked_weight(graph, linear, linear.compute_dtype), x.dtype);
  const Tensor scale = magnitude_scale(graph, linear, weight);
  const Tensor outer = adapter_product(graph, linear, x);
  const Tensor base = linear.dropout > 0 ? eager::linear(graph, x, weight, linear.shape) : result;
  Tensor of_base;
  {
    const Tensor shifted = eager::shift(graph, scale);
    of_base = eager::multiply_rows(graph, shifted, base);
  }
  Tensor scaled = eager::multiply_rows(graph, scale, outer);
  scaled = eager::scale(graph, scaled);
  return eager::add(graph, of_base, scaled);
}

// FakeQuantizedLinear.forward: inputs in 8 bits and back, then weights in 4.
Tensor fake_quantized_product(Graph& graph, Linear& linear, const Tensor& input) {
  const Tensor x =
      eager::fake_quantized_rows(graph, input, linear.shape.inputs, linear.fake_scales);
  Tensor weight;
  {
    const InRow row(graph.tape, kFakeQuantizedRow);
    weight = eager::fake_quantized_groups(graph, linear.weight.data, linear.fake_group);
  }
  return eager::linear(graph, x, weight, linear.shape, linear.bias.data);
}

Tensor base_product(Graph& graph, Linear& linear, const Tensor& input) {
  const eager::Module module = {&linear.weight, "base_layer", {&linear.weight, &linear.bias}};
  return eager::call_module(graph, module, input,
                            [&](const Tensor& x) { return unadapted_product(graph, linear, x); });
}

// A layer with an adapter, which asks for the type of A.
eager::Module adapted(Linear& linear) {
  return {.place = &linear, .name = "adapted", .parameters = {&linear.a}, .reads_others = true};
}

// sum.add_(term, alpha): a gradient that is scaled is a tensor of its own.
Tensor added_in_place(Graph& graph, const Tensor& sum, const Tensor& term, bool is_scaled) {
  NodeBuilder node(graph, {&sum, &term});
  return node.finish(sum.detached(), [is_scaled](BackwardCall& call) {
    const Tensor& gradient = call.gradients[0];
    Tensor of_term = is_scaled ? call.graph.make(gradient.elements, gradient.dtype) : gradient;
    return Tensors{std::move(call.gradients[0]), std::move(of_term)};
  });
}

// peft's Linear.forward: the input in the adapter's type, which autocast casts back. Under autocast
// a quantized layer's input and result stay as they are, DoRA's result in fp32 (bnb.py).
Tensor adapted_product(Graph& graph, Linear& linear, const Tensor& input) {
  Tensor result = base_product(graph, linear, input);
  if (is_4bit(linear.quantized.kind)) {
    NodeBuilder node(graph, {&result});
    result = node.finish(graph.make(result.elements, result.dtype),
                         [](BackwardCall& call) { return std::move(call.gradients); });
  }
  const InRow row(graph.tape, kAdapterActivationRow);
  const bool casts = linear.quantized.kind == Quantization::kNone || !graph.autocast;
  if (casts) {
    eager::read_others(graph, adapted(linear));
  }
  const Tensor x = casts ? eager::to(graph, input, linear.adapter_dtype) : input;
  Tensor outer;
  {
    const eager::Module module = {&linear.dropout, "lora_dropout", {}};
    const Tensor dropped = eager::call_module(graph, module, x, [&](const Tensor& whole) {
      return eager::dropout(graph, whole, linear.dropout);
    });
    if (linear.scales.data.is_defined()) {
      outer = adaptive_product(graph, linear, dropped);
      return added_in_place(graph, result, outer, false);
    }
    outer = linear.magnitude.data.is_defined()
                ? decomposed(graph, linear, dropped, result)
                : eager::scale(graph, adapter_product(graph, linear, dropped));
  }
  const DType dtype = result.dtype;
  result = eager::add(graph, result, outer);
  outer = {};
  return casts ? eager::to(graph, result, dtype) : result;
}

// torch.bmm of blocks, each factor in the type of products.
Tensor batched_product(Graph& graph, const Tensor& left, const Tensor& right) {
  const Tensor b = eager::in_autocast(graph, right);
  const Tensor a = eager::in_autocast(graph, left);
  NodeBuilder node(graph, {&a, &b});
  if (node.is_needed() && a.requires_grad()) {
    node.save(b);
  }
  if (node.is_needed() && b.requires_grad()) {
    node.save(a);
  }
  const std::int64_t elements = a.elements;
  const std::int64_t of_blocks = b.elements;
  const DType dtype = a.dtype;
  return node.finish(graph.make_product(elements, dtype), [=](BackwardCall& call) {
    Tensors saved;
    Tensors gradients(2);
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      if (call.wants(i)) {
        saved.push_back(call.saved(saved.size()));
        gradients[i] = call.graph.make_product(i == 0 ? elements : of_blocks, dtype);
      }
    }
    return gradients;
  });
}

// OFTRotationModule._cayley_batch: I + 2 Q + 2 Q^2 + 2 Q^3 + Q^4 of a skew-symmetric matrix for
// each block, which the parameter fills.
Tensor rotation_of_blocks(Graph& graph, const Linear& linear) {
  const std::int64_t elements = linear.shape.inputs * linear.block;
  const Tensor& values = linear.rotation.data;
  Tensor skew;
  {
    NodeBuilder put(graph, {&values});
    if (put.is_needed()) {
      for (const Tensor& each : linear.block_indices) { put.save(each); }
    }
    const std::int64_t count = values.elements;
    const Tensor filled = put.finish(graph.make(elements, values.dtype), [=](BackwardCall& call) {
      return Tensors{call.graph.make(count, call.gradients[0].dtype)};
    });
    skew = eager::subtract(graph, filled, filled);
  }
  Tensor sum = graph.make(elements, values.dtype);
  sum = added_in_place(graph, sum, skew, true);
  Tensor power = batched_product(graph, skew, skew);
  sum = added_in_place(graph, sum, power, true);
  power = batched_product(graph, power, skew);
  sum = added_in_place(graph, sum, power, true);
  power = batched_product(graph, power, skew);
  return added_in_place(graph, sum, power, false);
}

// peft's OFT Linear.forward: the input in the parameter's type, turned block by block, and back.
Tensor rotated_product(Graph& graph, Linear& linear, const Tensor& input) {
  Tensor turned;
  {
    const InRow row(graph.tape, kAdapterActivationRow);
    const Tensor wide = eager::to(graph, input, linear.adapter_dtype);
    const Tensor blocks = batched_product(graph, wide, rotation_of_blocks(graph, linear));
    const Tensor laid = eager::laid_out(graph, blocks);
    turned = eager::to(graph, laid, wide.dtype);
  }
  const Tensor result = base_product(graph, linear, eager::to(graph, turned, input.dtype));
  return eager::to(graph, result, input.dtype);
}

}  // namespace

Tensor unadapted_product(Graph& graph, Linear& linear, const Tensor& input) {
  switch (linear.quantized.kind) {
    case Quantization::kNone:
      return linear.fake_group > 0
                 ? fake_quantized_product(graph, linear, input)
                 : eager::linear(graph, input, linear.weight.data, linear.shape, linear.bias.data);
    case Quantization::kNf4:
    case Quantization::kFp4:
      return eager::to(graph, product_4bit(graph, linear, input), input.dtype);
    case Quantization::kInt8: return product_int8(graph, linear, input);
    case Quantization::kGptq:
    case Quantization::kAwq: break;
  }
  return {};
}

std::int64_t rotated_together(std::int64_t inputs, std::int64_t size) {
  if (size >= inputs) {
    return inputs;
  }
  std::int64_t above = size;
  while (inputs % above != 0) { ++above; }
  std::int64_t below = size;
  while (inputs % below != 0) { --below; }
  return size - below <= above - size ? below : above;
}

Tensor unpacked_weight(Graph& graph, const Linear& linear, DType dtype) {
  return linear.quantized.kind == Quantization::kNone ? linear.weight.data
                                                      : dequantized(graph, linear, dtype);
}

void load_quantized(Graph& graph, Holder& holder, Linear& linear, std::optional<DType> stored,
                    const eager::Label& label) {
  const InRow row(graph.tape, label);
  std::vector<std::int64_t> bytes = quantized_bytes(linear.quantized, linear.shape);
  if (stored) {
    const Shape shape = linear.quantized.kind == Quantization::kInt8
                            ? Shape{linear.shape.outputs, linear.shape.inputs}
                            : Shape{div_ceil(bytes.front(), bytes_of(*stored)), 1};
    holder.load(linear.weight, label, shape, *stored, false);
    bytes.erase(bytes.begin());
  }
  for (const std::int64_t each : bytes) { linear.packed.push_back(graph.make(each, DType::kBool)); }
}

Tensor project(Graph& graph, Linear& linear, const Tensor& input) {
  if (linear.is_off != nullptr && *linear.is_off) {
    return base_product(graph, linear, input);
  }
  if (linear.rotation.data.is_defined()) {
    const eager::Module module = {&linear.rotation, "oft", {&linear.rotation}};
    return eager::call_module(graph, module, input,
                              [&](const Tensor& x) { return rotated_product(graph, linear, x); });
  }
  if (linear.division == Division::kOutputs) {
    return base_product(graph, linear, eager::with_summed_gradient(graph, input, linear.divided));
  }
  if (linear.division == Division::kInputs) {
    return eager::summed_over_ranks(graph, base_product(graph, linear, input), linear.divided);
  }
  if (linear.rank == 0) {
    return base_product(graph, linear, input);
  }
  return eager::call_module(graph, adapted(linear), input,
                            [&](const Tensor& x) { return adapted_product(graph, linear, x); });
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

}  // namespace shardplan::huggingface
