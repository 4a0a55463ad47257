// Parameter tensors of the Llama family. Sources, read in huggingface/transformers
// (src/transformers/models/<family>/modeling_<family>.py) and Megatron-LM core_v0.16.1:
//   qwen2, qwen2_moe  bias on q, k and v, none on the output; a [1, h] gate on the shared expert
//   llama, qwen3      attention_bias puts a bias on all four projections; qwen3, gemma3: RMSNorm of
//                     head_dim on q and on k
//   gemma2, gemma3    norms before and after attention and before and after the FFN
//   deepseek_v2, _v3  attention_bias: q_down (only with q-LoRA), kv_down and output; the up
//                     projections and the plain query projection have none
//   MTP module        two input norms, projection 2h -> h, one layer like the last, one norm
//                     (core/transformer/multi_token_prediction.py)
// Letters: h hidden, a and k query and kv heads, d head dimension, f FFN width, E experts.
#include "estimator/plan/parameters.h"

#include <algorithm>
#include <utility>

namespace shardplan {
namespace {

using Tensors = std::vector<ParameterTensor>;

void add(Tensors& tensors, std::string name, std::int64_t elements, Sharding sharding) {
  tensors.push_back({.name = std::move(name), .elements = elements, .sharding = sharding});
}

void add_linear(Tensors& tensors, std::string name, std::int64_t elements, Sharding sharding) {
  add(tensors, std::move(name), elements, sharding);
  tensors.back().is_linear = true;
}

// A LayerNorm has a bias beside its weight (GPT-2; Megatron-LM --normalization LayerNorm).
void add_norm(Tensors& tensors, const ModelSpec& model, const std::string& name,
              std::int64_t width) {
  add(tensors, name, width, Sharding::kReplicated);
  if (model.layer_norm) {
    add(tensors, name + "_bias", width, Sharding::kReplicated);
  }
}

// fc1 is gate and up together, [2f, h]; fc2 is the down projection, [h, f].
void add_ffn(Tensors& tensors, const ModelSpec& model, const std::string& name, std::int64_t width,
             Sharding sharding) {
  const std::int64_t pieces = model.gated_ffn ? 2 : 1;
  add_linear(tensors, name + ".fc1", pieces * model.hidden * width, sharding);
  add_linear(tensors, name + ".fc2", model.hidden * width, sharding);
}

// GQA: 2*h*a*d + 2*h*k*d; biases a*d + 2*k*d; q and k norm d each.
void add_gqa(Tensors& tensors, const ModelSpec& model) {
  const std::int64_t h = model.hidden;
  const std::int64_t query = model.num_heads * model.head_dim;
  const std::int64_t key_value = 2 * model.num_kv_heads * model.head_dim;
  tensors.push_back({.name = "attention.qkv",
                     .elements = h * (query + key_value),
                     .sharding = Sharding::kTp,
                     .kv_elements = h * key_value,
                     .is_linear = true});
  if (model.qkv_bias) {
    tensors.push_back({.name = "attention.qkv_bias",
                       .elements = query + key_value,
                       .sharding = Sharding::kTp,
                       .kv_elements = key_value});
  }
  if (model.qk_norm) {
    add_norm(tensors, model, "attention.q_norm", model.head_dim);
    add_norm(tensors, model, "attention.k_norm", model.head_dim);
  }
  add_linear(tensors, "attention.output", query * h, Sharding::kTp);
}

// Down-projections and their norms are replicated (Megatron-LM gpt_layer_specs.py: TELinear,
// "duplicated"), up-projections and output divided by tp.
void add_mla(Tensors& tensors, const ModelSpec& model) {
  const MlaSpec& mla = model.mla;
  const std::int64_t h = model.hidden;
  const std::int64_t a = model.num_heads;
  const std::int64_t query = a * mla.qk_head_dim();
  const std::int64_t kv_down = mla.kv_lora_rank + mla.qk_rope_head_dim;
  if (mla.q_lora_rank == 0) {
    add_linear(tensors, "attention.q", h * query, Sharding::kTp);
  } else {
    add_linear(tensors, "attention.q_down", h * mla.q_lora_rank, Sharding::kReplicated);
    if (model.qkv_bias) {
      add(tensors, "attention.q_down_bias", mla.q_lora_rank, Sharding::kReplicated);
    }
    add_norm(tensors, model, "attention.q_down_norm", mla.q_lora_rank);
    add_linear(tensors, "attention.q_up", mla.q_lora_rank * query, Sharding::kTp);
  }
  add_linear(tensors, "attention.kv_down", h * kv_down, Sharding::kReplicated);
  if (model.qkv_bias) {
    add(tensors, "attention.kv_down_bias", kv_down, Sharding::kReplicated);
  }
  add_norm(tensors, model, "attention.kv_down_norm", mla.kv_lora_rank);
  add_linear(tensors, "attention.kv_up",
             mla.kv_lora_rank * a * (mla.qk_nope_head_dim + mla.v_head_dim), Sharding::kTp);
  add_linear(tensors, "attention.output", a * mla.v_head_dim * h, Sharding::kTp);
}

void add_moe(Tensors& tensors, const ModelSpec& model) {
  const MoeSpec& moe = model.moe;
  add(tensors, "router", model.hidden * moe.num_experts, Sharding::kReplicated);
  if (moe.router_bias) {
    add(tensors, "router_bias", moe.num_experts, Sharding::kReplicated);
  }
  add_ffn(tensors, model, "experts", moe.num_experts * moe.expert_ffn, Sharding::kExpert);
  if (moe.shared_ffn > 0) {
    add_ffn(tensors, model, "shared", moe.shared_ffn, Sharding::kTp);
  }
  if (moe.shared_gate) {
    add(tensors, "shared.gate", model.hidden, Sharding::kReplicated);
  }
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
  const std::int64_t num_moe = std::ranges::count(model.layers, true, &LayerSpec::is_moe);
  const auto sum = [&](const Tensors& tensors) { return sum_active(tensors, topk, num_experts); };
  return num_moe * sum(layer_parameters(model, {.is_moe = true})) +
         (model.num_layers() - num_moe) * sum(layer_parameters(model, {})) +
         sum(embedding_parameters(model)) + sum(head_parameters(model));
}

}  // namespace

std::vector<ParameterTensor> layer_parameters(const ModelSpec& model, const LayerSpec& layer) {
  const std::int64_t h = model.hidden;
  Tensors tensors;
  add_norm(tensors, model, "attention.norm", h);
  if (model.is_mla()) {
    add_mla(tensors, model);
  } else {
    add_gqa(tensors, model);
  }
  if (model.attention_output_bias) {
    add(tensors, "attention.output_bias", h, Sharding::kReplicated);
  }
  add_norm(tensors, model, "ffn.norm", h);
  if (model.norms_per_layer > 2) {
    add_norm(tensors, model, "post_norms", (model.norms_per_layer - 2) * h);
  }
  if (layer.is_moe) {
    add_moe(tensors, model);
    return tensors;
  }
  add_ffn(tensors, model, "ffn", model.ffn, Sharding::kTp);
  if (model.ffn_bias) {
    add(tensors, "ffn.fc1_bias", (model.gated_ffn ? 2 : 1) * model.ffn, Sharding::kTp);
    add(tensors, "ffn.fc2_bias", h, Sharding::kReplicated);
  }
  return tensors;
}

std::vector<ParameterTensor> table_parameters(const ModelSpec& model) {
  Tensors tensors;
  add(tensors, "embedding", model.hidden * model.vocab, Sharding::kVocab);
  return tensors;
}

std::vector<ParameterTensor> embedding_parameters(const ModelSpec& model) {
  Tensors tensors = table_parameters(model);
  if (model.learned_positions > 0) {
    add(tensors, "embedding.positions", model.hidden * model.learned_positions,
        Sharding::kReplicated);
  }
  return tensors;
}

std::vector<ParameterTensor> head_parameters(const ModelSpec& model) {
  Tensors tensors;
  add_norm(tensors, model, "final_norm", model.hidden);
  if (!model.tied_embeddings) {
    add(tensors, "head", model.hidden * model.vocab, Sharding::kVocab);
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
