#include "estimator/frameworks/pieces/huggingface/rotary.h"

namespace shardplan::huggingface {
namespace {

using eager::Graph;
using eager::Tensor;

Tensor rotate_whole(Graph& graph, const Tensor& input, const Rotary& rotary) {
  const Tensor by_cosines = eager::multiply(graph, input, rotary.cosines);
  Tensor by_sines;
  {
    const Tensor turned = eager::rotate_half(graph, input);
    by_sines = eager::multiply(graph, turned, rotary.sines);
  }
  return eager::add(graph, by_cosines, by_sines);
}

Tensor rotate_part(Graph& graph, const Tensor& input, std::int64_t part, const Rotary& rotary) {
  const Tensor turned = eager::slice(graph, input, part);
  const std::int64_t others = input.elements - part;
  const Tensor rest = others > 0 ? eager::slice(graph, input, others) : Tensor{};
  return eager::cat(graph, rotate_whole(graph, turned, rotary), rest);
}

// cat(q1*cos - q2*sin, q2*cos + q1*sin).
Tensor rotate_apart(Graph& graph, const Tensor& even, const Tensor& odd, const Tensor& cosines,
                    const Tensor& sines) {
  Tensor first;
  {
    const Tensor by_cosines = eager::multiply(graph, even, cosines);
    const Tensor by_sines = eager::multiply(graph, odd, sines);
    first = eager::subtract(graph, by_cosines, by_sines);
  }
  Tensor second;
  {
    const Tensor by_cosines = eager::multiply(graph, odd, cosines);
    const Tensor by_sines = eager::multiply(graph, even, sines);
    second = eager::add(graph, by_cosines, by_sines);
  }
  return eager::cat(graph, first, second);
}

// With the first halves of cosines and sines.
Tensor rotate_even_and_odd(Graph& graph, const Tensor& input, const Rotary& rotary) {
  const Tensor even = eager::slice(graph, input, input.elements / 2);
  const Tensor odd = eager::slice(graph, input, input.elements / 2);
  return rotate_apart(graph, even, odd, rotary.cosines.viewed(rotary.cosines.elements / 2),
                      rotary.sines.viewed(rotary.sines.elements / 2));
}

Tensor rotate_split(Graph& graph, const Tensor& input, const Rotary& rotary) {
  const eager::Tensors halves = eager::split(graph, input, input.elements / 2);
  return rotate_apart(graph, halves[0], halves[1], rotary.cosines, rotary.sines);
}

// Rows are turned in their own type, products are in fp32.
Tensor rotate_wide_pairs(Graph& graph, const Tensor& input, const Rotary& rotary) {
  const Tensor by_cosines =
      eager::multiply(graph, eager::to(graph, input, DType::kFp32), rotary.cosines);
  Tensor by_sines;
  {
    const Tensor turned = eager::rotate_half(graph, input);
    by_sines = eager::multiply(graph, eager::to(graph, turned, DType::kFp32), rotary.sines);
  }
  return eager::add(graph, by_cosines, by_sines);
}

// repeat_interleave, of which `times` as many elements are left.
Rotary repeated(Graph& graph, const Rotary& rotary, std::int64_t times, DType dtype) {
  return {.cosines = graph.make(times * rotary.cosines.elements, dtype),
          .sines = graph.make(times * rotary.sines.elements, dtype)};
}

Tensor rotate_complex(Graph& graph, const Tensor& input, const Rotary& rotary) {
  const Tensor wide = eager::to(graph, input, DType::kFp32);
  const Tensor turned = eager::multiply(graph, wide, rotary.cosines);
  return eager::to(graph, turned, input.dtype);
}

}  // namespace

// The fp32 product of positions and frequencies is the first that the forward's thread runs.
Rotary make_rotary(Graph& graph, RotaryKind kind, std::int64_t elements, DType dtype) {
  const eager::NoGrad no_grad(graph);
  const Tensor angles = graph.make_product(elements / 2, DType::kFp32);
  if (kind == RotaryKind::kComplex) {  // polar, and its scaling
    const Tensor radius = graph.make(elements / 2, DType::kFp32);
    const Tensor numbers = graph.make(elements, DType::kFp32);
    return {.cosines = eager::scale(graph, numbers), .sines = {}};
  }
  const bool is_of_halves = kind == RotaryKind::kSplit || kind == RotaryKind::kOwnPairs;
  if (is_of_halves) {
    elements /= 2;
  }
  const Tensor both = is_of_halves ? angles : graph.make(elements, DType::kFp32);
  Tensor cosines = graph.make(elements, DType::kFp32);
  cosines = eager::scale(graph, cosines);
  Tensor sines = graph.make(elements, DType::kFp32);
  sines = eager::scale(graph, sines);
  Rotary rotary;
  if (kind == RotaryKind::kWideTables || kind == RotaryKind::kWidePairs) {
    return {.cosines = cosines, .sines = sines};
  }
  rotary.cosines = eager::to(graph, cosines, dtype);
  rotary.sines = eager::to(graph, sines, dtype);
  return rotary;
}

// repeat_interleave of their first halves.
Rotary of_layer(Graph& graph, RotaryKind kind, const Rotary& rotary) {
  if (kind != RotaryKind::kPairs && kind != RotaryKind::kWidePairs) {
    return rotary;
  }
  return repeated(graph, rotary, 1, rotary.cosines.dtype);
}

bool casts_heads(RotaryKind kind) {
  return kind == RotaryKind::kWideTables || kind == RotaryKind::kWide ||
         kind == RotaryKind::kWidePairs;
}

Tensor rotate(Graph& graph, RotaryKind kind, const Tensor& input, std::int64_t part,
              const Rotary& rotary) {
  switch (kind) {
    case RotaryKind::kHalves: return rotate_whole(graph, input, rotary);
    case RotaryKind::kPart:
    case RotaryKind::kPairs: return rotate_part(graph, input, part, rotary);
    case RotaryKind::kOwnPairs: {
      const Rotary pairs = repeated(graph, rotary, 2, input.dtype);
      return rotate_part(graph, input, part, pairs);
    }
    case RotaryKind::kEvenAndOdd: return rotate_even_and_odd(graph, input, rotary);
    case RotaryKind::kComplex: return rotate_complex(graph, input, rotary);
    case RotaryKind::kSplit: return rotate_split(graph, input, rotary);
    case RotaryKind::kWideTables:
    case RotaryKind::kWide: return rotate_whole(graph, input, rotary);
    case RotaryKind::kWidePairs: return rotate_wide_pairs(graph, input, rotary);
  }
  return {};
}

}  // namespace shardplan::huggingface
