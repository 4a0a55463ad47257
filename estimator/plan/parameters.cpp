// Parameter tensors of language models. Sources, read in huggingface/transformers
// (src/transformers/models/<family>/modeling_<family>.py, version 5.17 where no other is named) and
// Megatron-LM core_v0.16.1; what mixes tokens: mixer_parameters.cpp.
//   qwen2_moe         a [1, h] gate on the shared expert
//   gemma2, gemma3    norms before and after attention and before and after the FFN
//   gpt_oss           biases of the router and of all products of experts
//   nemotron_h        experts see tokens projected to moe_latent_size; the router and the shared
//                     expert see them whole
//   gemma4            experts beside a dense FFN: three norms more, a scale a channel of the
//                     router's input and one an expert
//   apertus           xIELU: alpha_p and alpha_n
//   gemma3n           AltUp (Gemma3nTextAltUp), Laurel and embeddings of every layer
//   deepseek_v4       hyper-connections, and a last one before the head; a router for weights alone
//                     where a table chooses experts
//   MTP module        two input norms, projection 2h -> h, one layer like the last, one norm
//                     (core/transformer/multi_token_prediction.py)
// Letters: h hidden, f FFN width, E experts.
#include "estimator/plan/parameters.h"

#include <algorithm>

#include "estimator/plan/mixer_parameters.h"

namespace shardplan {
namespace {

using Tensors = ParameterTensors;

// fc1 is gate and up together, [2f, h]; fc2 is the down projection, [h, f].
void add_ffn(Tensors& tensors, const ModelSpec& model, const std::string& name, std::int64_t hidden,
             std::int64_t width, Sharding sharding) {
  const std::int64_t pieces = model.gated_ffn ? 2 : 1;
  add_linear(tensors, name + ".fc1", pieces * hidden * width, sharding);
  add_linear(tensors, name + ".fc2", hidden * width, sharding);
}

void add_dense_ffn(Tensors& tensors, const ModelSpec& model, std::int64_t width) {
  add_ffn(tensors, model, "ffn", model.hidden, width, Sharding::kTp);
  if (model.ffn_bias) {
    add_tensor(tensors, "ffn.fc1_bias", (model.gated_ffn ? 2 : 1) * width, Sharding::kTp);
    add_tensor(tensors, "ffn.fc2_bias", model.hidden, Sharding::kReplicated);
  }
  if (model.activation == Activation::kXielu) {
    add_tensor(tensors, "ffn.activation", 2, Sharding::kReplicated);
  }
}

void add_experts(Tensors& tensors, const ModelSpec& model) {
  const MoeSpec& moe = model.moe;
  const std::int64_t input = moe.latent > 0 ? moe.latent : model.hidden;
  add_ffn(tensors, model, "experts", input, moe.num_experts * moe.expert_ffn, Sharding::kExpert);
  if (moe.biased_experts) {
    const std::int64_t biases = (model.gated_ffn ? 2 : 1) * moe.expert_ffn + input;
    add_tensor(tensors, "experts.biases", moe.num_experts * biases, Sharding::kExpert);
  }
  if (moe.latent > 0) {
    add_linear(tensors, "experts.down_projection", model.hidden * moe.latent,
               Sharding::kReplicated);
    add_linear(tensors, "experts.up_projection", moe.latent * model.hidden, Sharding::kReplicated);
  }
}

void add_moe(Tensors& tensors, const ModelSpec& model, const LayerSpec& layer) {
  const MoeSpec& moe = model.moe;
  add_tensor(tensors, "router", model.hidden * moe.num_experts, Sharding::kReplicated);
  if (moe.router_bias && !layer.routes_by_hash) {
    add_tensor(tensors, "router_bias", moe.num_experts, Sharding::kReplicated);
  }
  if (moe.biased_router) {
    add_tensor(tensors, "router.product_bias", moe.num_experts, Sharding::kReplicated);
  }
  add_experts(tensors, model);
  if (moe.shared_ffn > 0) {
    add_ffn(tensors, model, "shared", model.hidden, moe.shared_ffn, Sharding::kTp);
  }
  if (moe.shared_gate) {
    add_tensor(tensors, "shared.gate", model.hidden, Sharding::kReplicated);
  }
  if (moe.beside_dense) {
    add_tensor(tensors, "router.scales", model.hidden + moe.num_experts, Sharding::kReplicated);
    add_tensor(tensors, "experts.norms", 3 * model.hidden, Sharding::kReplicated);
  }
}

// A gate and a projection back with a norm of its output.
void add_per_layer_input(Tensors& tensors, const ModelSpec& model) {
  const std::int64_t width = model.per_layer_embedding.width;
  add_linear(tensors, "per_layer.gate", model.hidden * width, Sharding::kReplicated);
  add_linear(tensors, "per_layer.projection", width * model.hidden, Sharding::kReplicated);
  add_norm(tensors, model, "per_layer.norm", model.hidden);
}

// The two of a layer: weights [n*(n+2), n*h] with biases, and three scales.
std::int64_t hyper_connection_elements(const ModelSpec& model) {
  const std::int64_t n = model.residual_streams.count;
  return n * (n + 2) * (n * model.hidden + 1) + 3;
}

// AltUp's router of n streams with coefficients of prediction, [n*n, n], and correction, [n, n];
// Laurel's two projections and norm.
void add_streams(Tensors& tensors, const ModelSpec& model) {
  const std::int64_t n = model.residual_streams.count;
  const std::int64_t h = model.hidden;
  if (model.residual_streams.are_hyper_connections) {
    return add_tensor(tensors, "hyper_connections", 2 * hyper_connection_elements(model),
                      Sharding::kReplicated);
  }
  add_tensor(tensors, "streams.router", h * n + h, Sharding::kReplicated);
  add_tensor(tensors, "streams.coefficients", n * n * n + n * n, Sharding::kReplicated);
  add_tensor(tensors, "streams.scale", h, Sharding::kReplicated);
  add_linear(tensors, "laurel", 2 * h * model.residual_streams.laurel_rank, Sharding::kReplicated);
  add_norm(tensors, model, "laurel.norm", h);
}

// One table of all layers, and a projection of the token's embedding with a norm of each part.
void add_per_layer_table(Tensors& tensors, const ModelSpec& model) {
  const PerLayerEmbeddingSpec& embedding = model.per_layer_embedding;
  const std::int64_t width = model.num_layers() * embedding.width;
  add_tensor(tensors, "per_layer.embedding", embedding.vocab * width, Sharding::kReplicated);
  add_linear(tensors, "per_layer.token_projection", model.hidden * width, Sharding::kReplicated);
  add_norm(tensors, model, "per_layer.token_norm", embedding.width);
}

LayerSpec without_reach(LayerSpec layer) {
  layer.attention_window = 0;
  layer.attends_in_chunks = false;
  layer.has_rotary = true;
  return layer;
}

// Adds up whole tensors, of routed experts only `topk` of `num_experts`.
std::int64_t sum_active(const Tensors& tensors, std::int64_t topk, std::int64_t num_experts) {
  std::int64_t elements = 0;
  for (const ParameterTensor& tensor : tensors) {
    elements += tensor.sharding == Sharding::kExpert
                    ? div_exact(tensor.elements, num_experts) * topk
                    : tensor.elements;
  }
  return elements;
}

std::int64_t count_model(const ModelSpec& model, std::int64_t topk, std::int64_t num_experts) {
  const auto sum = [&](const Tensors& tensors) { return sum_active(tensors, topk, num_experts); };
  std::int64_t elements = sum(embedding_parameters(model)) + sum(head_parameters(model));
  const ParameterKinds kinds = parameter_kinds(model);
  for (std::size_t kind = 0; kind < kinds.kinds.size(); ++kind) {
    elements +=
        std::ranges::count(kinds.of_layer, kind) * sum(layer_parameters(model, kinds.kinds[kind]));
  }
  return elements;
}

}  // namespace

ParameterKinds parameter_kinds(const ModelSpec& model) {
  ParameterKinds found;
  for (const LayerSpec& of_model : model.layers) {
    const LayerSpec layer = without_reach(of_model);
    const auto same = std::ranges::find(found.kinds, layer);
    found.of_layer.push_back(static_cast<std::size_t>(same - found.kinds.begin()));
    if (same == found.kinds.end()) {
      found.kinds.push_back(layer);
    }
  }
  return found;
}

// Asked for every stage of a search: compares with the layer before, of the same kind mostly.
bool layers_vary(const ModelSpec& model) {
  const LayerSpec* before = nullptr;
  for (const LayerSpec& layer : model.layers) {
    if (before != nullptr && *before == layer) {
      continue;
    }
    const auto first = std::ranges::find(model.layers, layer.is_moe, &LayerSpec::is_moe);
    if (without_reach(layer) != without_reach(*first)) {
      return true;
    }
    before = &layer;
  }
  return false;
}

std::vector<ParameterTensor> layer_parameters(const ModelSpec& model, const LayerSpec& layer) {
  const std::int64_t h = model.hidden;
  const bool has_mixer = layer.mixer != MixerKind::kNone;
  Tensors tensors;
  if (has_mixer) {
    add_norm(tensors, model, "attention.norm", h);
    add_mixer(tensors, model, layer);
  }
  if (layer.has_ffn && (model.norms_per_layer > 1 || !has_mixer)) {
    add_norm(tensors, model, "ffn.norm", h);
  }
  if (model.norms_per_layer > 2) {
    add_norm(tensors, model, "post_norms", (model.norms_per_layer - 2) * h);
  }
  if (layer.has_ffn && layer.is_moe) {
    add_moe(tensors, model, layer);
  }
  if (layer.has_ffn && (!layer.is_moe || model.moe.beside_dense)) {
    add_dense_ffn(tensors, model, model.ffn_of(layer));
  }
  if (model.per_layer_embedding.width > 0) {
    add_per_layer_input(tensors, model);
  }
  if (model.residual_streams.count > 1) {
    add_streams(tensors, model);
  }
  return tensors;
}

std::vector<ParameterTensor> table_parameters(const ModelSpec& model) {
  Tensors tensors;
  add_tensor(tensors, "embedding", model.hidden * model.vocab, Sharding::kVocab);
  return tensors;
}

std::vector<ParameterTensor> embedding_parameters(const ModelSpec& model) {
  Tensors tensors = table_parameters(model);
  if (model.learned_positions > 0) {
    add_tensor(tensors, "embedding.positions", model.hidden * model.learned_positions,
               Sharding::kReplicated);
  }
  if (model.per_layer_embedding.width > 0) {
    add_per_layer_table(tensors, model);
  }
  const ResidualStreamsSpec& streams = model.residual_streams;
  if (streams.count > 1 && !streams.are_hyper_connections) {  // to every stream but one, and back
    add_linear(tensors, "streams.projections",
               2 * (streams.count - 1) * model.hidden * model.hidden, Sharding::kReplicated);
  }
  return tensors;
}

std::vector<ParameterTensor> head_parameters(const ModelSpec& model) {
  Tensors tensors;
  add_norm(tensors, model, "final_norm", model.hidden);
  if (!model.tied_embeddings) {
    add_tensor(tensors, "head", model.hidden * model.vocab, Sharding::kVocab);
  }
  const std::int64_t n = model.residual_streams.count;
  if (n > 1 && model.residual_streams.are_hyper_connections) {  // weights of the streams' sum
    add_tensor(tensors, "head.hyper_connection", n * n * model.hidden + n + 1,
               Sharding::kReplicated);
  }
  if (model.head_bias) {
    add_tensor(tensors, "head_bias", model.vocab, Sharding::kVocab);
  }
  return tensors;
}

std::vector<ParameterTensor> mtp_parameters(const ModelSpec& model) {
  const std::int64_t h = model.hidden;
  Tensors tensors = layer_parameters(model, model.layers.back());
  add_norm(tensors, model, "mtp.embedding_norm", h);
  add_norm(tensors, model, "mtp.hidden_norm", h);
  add_linear(tensors, "mtp.projection", 2 * h * h, Sharding::kTp);
  add_norm(tensors, model, "mtp.final_norm", h);
  return tensors;
}

std::int64_t count_parameters(const ModelSpec& model) {
  return count_model(model, 1, 1);
}

std::int64_t count_mtp_parameters(const ModelSpec& model) {
  return model.num_mtp_layers == 0 ? 0
                                   : model.num_mtp_layers * sum_active(mtp_parameters(model), 1, 1);
}

std::int64_t count_active_parameters(const ModelSpec& model) {
  return model.moe.num_experts == 0 ? count_parameters(model)
                                    : count_model(model, model.moe.topk, model.moe.num_experts);
}

}  // namespace shardplan
