#include "estimator/frameworks/pieces/huggingface/layers/own_heads.h"

#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {

using eager::Tensor;

namespace {

// Whether a layer is the last of its kind, with a window or without, that has keys of its own.
bool leaves_keys(const ModelSpec& model, std::size_t place) {
  const bool has_window = model.layers[place].attention_window > 0;
  for (std::size_t later = place + 1; later < model.layers.size(); ++later) {
    const LayerSpec& layer = model.layers[later];
    if ((layer.attention_window > 0) == has_window &&
        layer.key_values != KeyValueSource::kEarlierLayer) {
      return false;
    }
  }
  return true;
}

}  // namespace

Heads heads_with_value_norm(const LayerRun& run, Layer& layer, std::size_t place,
                            const Rotary& rotary, const Tensor& input) {
  const auto turned = [&](Norm& norm, const Tensor& rows) {
    return rotate(run.graph, run.family.rotary, apply_norm(run, norm, rows, true), rows.elements,
                  rotary);
  };
  const LayerSpec& spec = run.job.model.layers[place];
  Heads& shared = (*run.shared_keys)[spec.attention_window > 0 ? 1 : 0];
  Heads heads;
  heads.query = turned(layer.query_norm, project(run.graph, layer.query, input));
  if (spec.key_values == KeyValueSource::kEarlierLayer) {
    heads.key = shared.key;
    heads.value = shared.value;
    return heads;
  }
  const Tensor key = project(run.graph, layer.key, input);
  const Tensor value = spec.key_values == KeyValueSource::kKeysAreValues
                           ? key
                           : project(run.graph, layer.value, input);
  heads.key = turned(layer.key_norm, key);
  heads.value = apply_norm(run, layer.value_norm, value, true);
  if (leaves_keys(run.job.model, place)) {
    shared = heads;
    shared.query = {};
  }
  return heads;
}

Heads heads_behind_tokens(const LayerRun& run, Layer& layer, std::size_t place,
                          const Rotary& rotary, const Tensor& input) {
  eager::Graph& graph = run.graph;
  Heads heads;
  heads.query = project(graph, layer.query, input);
  heads.key = project(graph, layer.key, input);
  heads.value = project(graph, layer.value, input);
  if (!run.job.model.layers[place].has_rotary) {
    const Tensor scales = graph.make(run.sizes.sequence, DType::kFp32);
    heads.query = eager::to(graph, eager::multiply(graph, heads.query, scales), heads.query.dtype);
    return heads;
  }
  for (Tensor* each : {&heads.query, &heads.key}) {
    *each = rotate(graph, run.family.rotary, *each, each->elements, rotary);
  }
  for (Tensor* each : {&heads.query, &heads.key}) {
    const eager::InRow row(graph.tape, kNormRow);
    *each = plain_norm(graph, run.sizes.head_dim, *each);
  }
  return heads;
}

}  // namespace shardplan::huggingface
