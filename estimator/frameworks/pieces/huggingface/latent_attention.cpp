#include "estimator/frameworks/pieces/huggingface/latent_attention.h"

#include <utility>

#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::BackwardCall;
using eager::Graph;
using eager::NodeBuilder;
using eager::Tensor;
using eager::Tensors;

Tensor latent_norm(Graph& graph, Norm& norm, const Tensor& input) {
  return eager::call_module(graph, {&norm, "norm", {&norm.weight}}, input, [&](const Tensor& x) {
    const eager::InRow row(graph.tape, kNormRow);
    return llama_norm(graph, norm, x);
  });
}

Tensor projected_queries(Graph& graph, LatentProjections& projections, Linear& query,
                         const Tensor& input) {
  if (query.shape.inputs > 0) {
    return project(graph, query, input);
  }
  const Tensor down = project(graph, projections.query_down, input);
  const Tensor normed = latent_norm(graph, projections.query_norm, down);
  return project(graph, projections.query_up, normed);
}

// Both parts are copied into a tensor of their own; backward each of the two copies clones the
// gradient of the whole and takes its part out of it (CopySlices, the later copy first). The
// rotary part is that of all heads.
Tensor assembled_keys(Graph& graph, const Tensor& plain, const Tensor& rotary,
                      const LatentSizes& sizes) {
  NodeBuilder node(graph, {&plain, &rotary});
  const std::int64_t all_heads = sizes.tokens * sizes.heads;
  const std::int64_t of_plain = all_heads * sizes.widths.qk_nope_head_dim;
  const std::int64_t of_rotary = all_heads * sizes.widths.qk_rope_head_dim;
  const DType dtype = plain.dtype;
  return node.finish(graph.make(of_plain + of_rotary, dtype), [=](BackwardCall& call) {
    Graph& g = call.graph;
    Tensor of_whole = g.make(of_plain + of_rotary, dtype);
    Tensor rotary_gradient = g.make(of_rotary, dtype);
    call.gradients[0] = {};
    of_whole = g.make(of_plain + of_rotary, dtype);
    Tensor plain_gradient = g.make(of_plain, dtype);
    return Tensors{std::move(plain_gradient), std::move(rotary_gradient)};
  });
}

}  // namespace

Heads latent_heads(Graph& graph, LatentProjections& projections, Linear& query, const Tensor& input,
                   const Rotary& rotary, const LatentSizes& sizes) {
  const MlaSpec& widths = sizes.widths;
  const std::int64_t all_heads = sizes.tokens * sizes.heads;
  const Tensor queries = projected_queries(graph, projections, query, input);
  const Tensors query_parts =
      sizes.turns ? eager::split(graph, queries, all_heads * widths.qk_nope_head_dim)
                  : Tensors{eager::copied_back(graph, queries)};
  const Tensor latent = project(graph, projections.key_value_down, input);
  const Tensors latent_parts = eager::split(graph, latent, sizes.tokens * widths.kv_lora_rank);
  const Tensor normed = latent_norm(graph, projections.key_value_norm, latent_parts[0]);
  const auto turned = [&](const Tensor& part) {
    return rotate(graph, sizes.rotary, part, part.elements, rotary);
  };
  Heads heads;
  Tensor rotary_key = latent_parts[1];
  if (sizes.turns) {
    const Tensor rotary_query = turned(query_parts[1]);
    rotary_key = turned(latent_parts[1]);
    heads.query = eager::cat(graph, query_parts[0], rotary_query);
  } else {
    heads.query = query_parts[0];
  }
  const Tensor expanded = project(graph, projections.key_value_up, normed);
  const Tensors parts = eager::split(graph, expanded, all_heads * widths.qk_nope_head_dim);
  heads.key = assembled_keys(graph, parts[0], rotary_key, sizes);
  heads.value = parts[1];
  return heads;
}

}  // namespace shardplan::huggingface
