// Letters: T tokens, K experts that each of them chooses, L = T*K rows, E experts, r rank.
#include "estimator/frameworks/pieces/huggingface/scattermoe.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/labels.h"
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

constexpr std::int64_t kScaledTogether = 64;  // weights of 4 bits that share a scale

// One of both products of experts. The first takes tokens as they lie and gives a row for each
// chosen expert, sorted by expert; the second takes those, and adds up what the rows of a token
// give, each times its weight.
struct Product {
  std::int64_t tokens = 0;
  std::int64_t chosen = 0;
  std::int64_t experts = 0;
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  bool is_first = false;
  bool has_adapter = false;
  std::int64_t rank = 0;

  std::int64_t rows() const { return tokens * chosen; }
  // kernels/lora_ops.py scatter2scatter_lora: few wide experts have adapters in kernels of their
  // own.
  bool splits_adapter() const {
    constexpr std::int64_t kFew = 32;
    constexpr std::int64_t kWide = 20'000'000;
    return has_adapter && experts <= kFew && inputs * outputs >= kWide;
  }
};

// Of every row its expert and its place among rows by token, sorted by expert (flatten_sort_count).
struct Places {
  Tensor experts, rows;
  // Which experts are unpacked, in as much memory as places of all rows take (ATen/native/cuda/
  // Unique.cu); a closure that unpacks them again holds it. Undefined: none are.
  Tensor chosen;
};

// [r*E, inputs] and [outputs, r*E], by expert, in the type of the rows; undefined: none.
struct Factors {
  Tensor a, b;
  Tensor by_rank;  // B as peft has it, which a variable of the module's call holds
};

// Quantized weights are unpacked with the scales of their blocks in fp32; others are as they are.
struct Unpacking {
  std::int64_t scales = 0;  // that were quantized as well
  std::int64_t elements = 0;
  DType dtype = DType::kBf16;
  bool is_needed = false;

  Tensor unpacked(Graph& graph) const {
    const InRow row(graph.tape, kDequantizedRow);
    const Tensor made = scales > 0 ? graph.make(scales, DType::kFp32) : Tensor{};
    return graph.make(elements, dtype);
  }
};

Unpacking unpacking_of(const Experts& experts, const eager::Parameter& weights) {
  const bool is_double = experts.quantized.is_double;
  return {.scales = is_double ? div_ceil(weights.data.elements, kScaledTogether) : 0,
          .elements = weights.data.elements,
          .dtype = weights.data.dtype,
          .is_needed = experts.quantized.kind != Quantization::kNone};
}

Places sorted_places(Graph& graph, const ExpertSizes& sizes, bool is_packed) {
  const std::int64_t rows = sizes.tokens * sizes.chosen;
  Places places;
  places.experts = graph.make(rows, DType::kInt64);
  places.rows = graph.make(rows, DType::kInt64);
  if (is_packed) {  // remap_expert_indices: numbers among the experts that are unpacked
    places.chosen = graph.make(rows, DType::kInt64);
    places.experts = graph.make(rows, DType::kInt64);
  }
  return places;
}

// ParamWrapper.forward: both factors in the rows' type, B by expert.
Factors factors_of(Graph& graph, const eager::Parameter& a, const eager::Parameter& b,
                   DType dtype) {
  if (!a.data.is_defined()) {
    return {};
  }
  Factors factors;
  factors.a = eager::to(graph, a.data, dtype);
  factors.by_rank = eager::to(graph, b.data, dtype);
  factors.b = eager::laid_out(graph, eager::copied_back(graph, factors.by_rank));
  return factors;
}

// selective_lora_weights: copies of those of the experts that are unpacked.
void select(Graph& graph, Factors& factors) {
  if (factors.a.is_defined()) {
    factors.a = eager::index(graph, factors.a, factors.a.elements);
    factors.b = eager::index(graph, factors.b, factors.b.elements);
  }
}

// The adapter beside the product where kernels of their own run it (_scatter2scatter_lora_split).
void run_split_adapter(Graph& graph, const Product& product, const Factors& factors, DType dtype) {
  const Tensor of_a = graph.make(factors.a.elements, dtype);
  const Tensor inner = graph.make(product.rows() * product.rank, dtype);
  const Tensor of_b = graph.make(factors.b.elements, dtype);
  const Tensor outer = graph.make(product.rows() * product.outputs, dtype);
}

// The weighted sum over the rows of a token, a product of matrices that autocast casts for.
Tensor weighted_sum(Graph& graph, const Product& product, const Tensor& rows, const Tensor& gates) {
  const eager::NoGrad no_grad(graph);
  const Tensor left = eager::in_autocast(graph, gates.detached());
  const Tensor right = eager::in_autocast(graph, rows.detached());
  return graph.make_product(product.tokens * product.outputs, left.dtype);
}

// The gradients of an adapter's factors, from products with copies of them that lie by expert, all
// of which stay until the backward function returns (grouped_lora_weight_grads).
struct AdapterGradients {
  Tensor of_outputs, outputs, of_inputs, inputs;  // a factor's copy, and a product of rank r
  Tensor a, b;
};
AdapterGradients gradients_of_factors(Graph& graph, const Product& product, const Factors& factors,
                                      DType dtype) {
  AdapterGradients made;
  const std::int64_t inner = product.rows() * product.rank;
  made.of_outputs = graph.make(factors.b.elements, dtype);
  made.outputs = graph.make(inner, dtype);
  made.of_inputs = graph.make(factors.a.elements, dtype);
  made.inputs = graph.make(inner, dtype);
  made.a = graph.make(factors.a.elements, dtype);
  made.b = graph.make(factors.b.elements, dtype);
  return made;
}

// What of the input's gradient goes through the adapter (_compute_lora_input_grad): added to that
// of the weights, of rows that lie by token by way of a copy of the latter.
Tensor gradient_through_adapter(Graph& graph, const Product& product, const Tensor& of_rows) {
  Tensor of_adapter = graph.make(of_rows.elements, of_rows.dtype);
  if (product.is_first) {
    const Tensor placed = graph.make(of_rows.elements, of_rows.dtype);
  }
  return of_adapter;
}

// The gradients of the input, the weights, both factors and the gates. Weights without an adapter
// get theirs whether or not they are trained (group_bwd_W).
Tensors product_gradients(BackwardCall& call, const Product& product, const Unpacking& unpacking) {
  Graph& graph = call.graph;
  std::size_t at = 0;
  const Tensor x = call.saved(at++);
  Factors factors;
  Tensor weights;
  if (product.has_adapter) {
    factors.a = call.saved(at++);
    factors.b = call.saved(at++);
    weights = unpacking.is_needed ? unpacking.unpacked(graph) : Tensor{};
  } else {
    weights = call.saved(at++);
  }
  at += 2;  // places
  Tensors gradients(5);
  const DType dtype = x.dtype;
  Tensor of_rows = call.gradients[0];
  if (!product.is_first) {
    const Tensor gates = call.saved(at);
    const Tensor expanded = call.saved(at + 1);
    const Tensor given = eager::to(graph, of_rows.detached(), dtype);
    gradients[4] = graph.make_product(gates.elements, dtype);
    of_rows = expanded;  // written over
  }
  const std::int64_t inputs = product.rows() * product.inputs;
  Tensor of_inputs = product.is_first ? graph.make(inputs, dtype) : Tensor{};
  AdapterGradients of_adapter;
  Tensor of_weights;
  if (product.has_adapter) {
    of_adapter = gradients_of_factors(graph, product, factors, dtype);
  } else {
    const InRow row(graph.tape, eager::kWeightGradientsRow);
    of_weights = graph.make(product.experts * product.inputs * product.outputs, dtype);
  }
  if (!product.is_first) {
    of_inputs = graph.make(inputs, dtype);
  }
  const Tensor through_adapter =
      product.has_adapter ? gradient_through_adapter(graph, product, of_inputs) : Tensor{};
  gradients[0] = product.is_first && product.chosen > 1
                     ? graph.make(product.tokens * product.inputs, dtype)
                     : of_inputs;
  gradients[1] = call.wants(1) ? of_weights : Tensor{};
  gradients[2] = of_adapter.a;
  gradients[3] = of_adapter.b;
  return gradients;
}

// ParallelLinear, or ScatterMoELoRA, whose weights are an attribute or are unpacked again.
Tensor scattered_product(Graph& graph, const Product& product, const Tensor& x,
                         const Tensor& weights, const Factors& factors, const Places& places,
                         const Tensor& gates, const Unpacking& unpacking) {
  NodeBuilder node(graph, {&x, &weights, &factors.a, &factors.b, &gates});
  const Tensor rows = graph.make(product.rows() * product.outputs, x.dtype);
  if (product.splits_adapter()) {
    run_split_adapter(graph, product, factors, x.dtype);
  }
  Tensor output = product.is_first ? rows : weighted_sum(graph, product, rows, gates);
  if (node.is_needed()) {
    node.save(x);
    if (product.has_adapter) {
      node.save(factors.a);
      node.save(factors.b);
    } else {
      node.save(weights);
    }
    node.save(places.experts);
    node.save(places.rows);
    if (!product.is_first) {
      node.save(gates);
      node.save(rows);
    }
    if (product.has_adapter) {
      node.keep(unpacking.is_needed ? places.chosen : weights);
    } else if (unpacking.is_needed) {
      node.save(places.chosen);  // of the saved weights
    }
  }
  return node.finish(std::move(output), [=](BackwardCall& call) {
    return product_gradients(call, product, unpacking);
  });
}

}  // namespace

Tensor scattermoe_forward(Graph& graph, const Experts& experts, const Tensor& hidden,
                          const Tensor& weights, const ExpertSizes& sizes) {
  const bool is_packed = experts.quantized.kind != Quantization::kNone;
  Factors of_down = factors_of(graph, experts.down_a, experts.down_b, hidden.dtype);
  Factors of_gate_up = factors_of(graph, experts.gate_up_a, experts.gate_up_b, hidden.dtype);
  of_down.by_rank = {};
  const Tensor gates = eager::to(graph, weights, hidden.dtype);
  const Places places = sorted_places(graph, sizes, is_packed);
  const Unpacking gate_up_unpacking = unpacking_of(experts, experts.gate_up);
  const Unpacking down_unpacking = unpacking_of(experts, experts.down);
  const Tensor gate_up = is_packed ? gate_up_unpacking.unpacked(graph) : experts.gate_up.data;
  const Tensor down = is_packed ? down_unpacking.unpacked(graph) : experts.down.data;
  const Factors of_all[] = {of_gate_up, of_down};  // which the module has until its call returns
  if (is_packed) {
    select(graph, of_gate_up);
    select(graph, of_down);
  }
  const auto rank_of = [&](const Factors& factors, std::int64_t inputs) {
    return factors.a.is_defined() ? factors.a.elements / (sizes.experts * inputs) : 0;
  };
  const Product first = {.tokens = sizes.tokens,
                         .chosen = sizes.chosen,
                         .experts = sizes.experts,
                         .inputs = sizes.hidden,
                         .outputs = 2 * sizes.ffn,
                         .is_first = true,
                         .has_adapter = of_gate_up.a.is_defined(),
                         .rank = rank_of(of_gate_up, sizes.hidden)};
  const Product second = {.tokens = sizes.tokens,
                          .chosen = sizes.chosen,
                          .experts = sizes.experts,
                          .inputs = sizes.ffn,
                          .outputs = sizes.hidden,
                          .has_adapter = of_down.a.is_defined(),
                          .rank = rank_of(of_down, sizes.ffn)};
  Tensor rows =
      scattered_product(graph, first, hidden, gate_up, of_gate_up, places, {}, gate_up_unpacking);
  rows = activated_rows(graph, rows, sizes);
  return scattered_product(graph, second, rows, down, of_down, places, gates, down_unpacking);
}

}  // namespace shardplan::huggingface
