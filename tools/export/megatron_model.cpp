#include "tools/export/megatron_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>

#include "data/read/input_error.h"
#include "data/read/json_message.h"
#include "tools/export/argument_list.h"
#include "tools/export/config_numbers.h"
#include "tools/export/savings.h"

namespace shardplan {
namespace {

// Layers of one part are those of pretrain_mamba.py.
bool is_hybrid(const ModelSpec& model) {
  return std::ranges::any_of(model.layers, [](const LayerSpec& layer) {
    return layer.mixer == MixerKind::kNone || !layer.has_ffn;
  });
}

void add_heads(ArgumentList& arguments, const ModelSpec& model) {
  arguments.add("--num-attention-heads", model.num_heads);
  if (model.is_mla()) {
    arguments.add_switch("--multi-latent-attention");
    if (model.mla.q_lora_rank > 0) {
      arguments.add("--q-lora-rank", model.mla.q_lora_rank);
    }
    arguments.add("--kv-lora-rank", model.mla.kv_lora_rank);
    arguments.add("--qk-head-dim", model.mla.qk_nope_head_dim);
    arguments.add("--qk-pos-emb-head-dim", model.mla.qk_rope_head_dim);
    arguments.add("--v-head-dim", model.mla.v_head_dim);
    arguments.add("--kv-channels", model.mla.v_head_dim);
    return;
  }
  if (model.num_kv_heads != model.num_heads) {
    arguments.add_switch("--group-query-attention");
    arguments.add("--num-query-groups", model.num_kv_heads);
  }
  arguments.add("--kv-channels", model.head_dim);
}

// Learned positions have as many rows as the model; rotary ones need no table, but Megatron-LM
// wants the number to reach the sequence's length.
void add_positions(ArgumentList& arguments, const ExportRequest& request) {
  const Job& job = request.job();
  const ModelSpec& model = job.model;
  if (model.learned_positions > 0) {
    arguments.add("--max-position-embeddings", model.learned_positions);
    arguments.add("--position-embedding-type", "learned_absolute");
    return;
  }
  arguments.add("--max-position-embeddings",
                std::max(model.max_sequence_length, job.sequence_length));
  if (is_hybrid(model) && std::ranges::none_of(model.layers, &LayerSpec::has_rotary)) {
    arguments.add("--position-embedding-type", "none");
    return;
  }
  arguments.add("--position-embedding-type", "rope");
  const ConfigNumbers numbers = config_numbers(request.model.config);
  if (numbers.rope_theta) {
    arguments.add("--rotary-base", std::llround(*numbers.rope_theta));
  } else {
    arguments.add("--rotary-base", "10000", "TODO: rope_theta of the model's config.json");
  }
  if (numbers.partial_rotary_factor) {
    arguments.add("--rotary-percent", exact_text(*numbers.partial_rotary_factor));
  }
  if (numbers.rope_scaling_factor) {
    arguments.add_switch("--use-rope-scaling");
    arguments.add("--rope-scaling-factor", exact_text(*numbers.rope_scaling_factor));
  }
}

// gpt_oss bounds gate and up before the activation, adds one to up, and its activation is
// x * sigmoid(1.702 x), which Megatron-LM calls quick (transformers 5.17
// models/gpt_oss/modeling_gpt_oss.py, GptOssExperts: alpha, limit). Gemma's gates are GELU.
void add_activation(ArgumentList& arguments, const ExportRequest& request) {
  const ModelSpec& model = request.job().model;
  if (model.gated_ffn && model.activation == Activation::kClampedSwiglu) {
    const double limit = config_numbers(request.model.config).swiglu_limit.value_or(7);
    arguments.add_switch("--quick-geglu");
    arguments.add("--activation-func-clamp-value", exact_text(limit));
    arguments.add("--glu-linear-offset", "1");
    return;
  }
  if (model.gated_ffn && (model.activation != Activation::kSilu || model.family == "gemma")) {
    throw InputError(
        "--export: megatron core_v0.16.1 cannot express this plan: it has gates of SiLU alone "
        "(--swiglu), " +
        model.name + " has others; nothing is written");
  }
  arguments.add_switch_if(model.gated_ffn, "--swiglu");
  arguments.add_switch_if(!model.gated_ffn && model.activation == Activation::kReluSquared,
                          "--squared-relu");
}

// Biases of attention alone, or of its output alone, have no argument: they are refused when the
// files are read back.
void add_layers(ArgumentList& arguments, const ExportRequest& request) {
  const ModelSpec& model = request.job().model;
  arguments.add("--normalization", model.layer_norm ? "LayerNorm" : "RMSNorm");
  if (const auto epsilon = config_numbers(request.model.config).norm_epsilon) {
    arguments.add("--norm-epsilon", exact_text(*epsilon));
  }
  const bool biases = model.ffn_bias || model.attention_output_bias;
  arguments.add_switch_if(!biases, "--disable-bias-linear");
  arguments.add_switch_if(!biases && model.qkv_bias, "--add-qkv-bias");
  // Multi-latent attention norms what is compressed, which the same switch turns on.
  arguments.add_switch_if(model.qk_norm || model.is_mla(), "--qk-layernorm");
  add_activation(arguments, request);
  arguments.add_switch_if(!model.tied_embeddings, "--untie-embeddings-and-output-weights");
}

// Layers with a window as a list of 0 and 1: is_layer_window_attention of
// core/transformer/utils.py.
void add_windows(ArgumentList& arguments, const ModelSpec& model) {
  std::int64_t window = 0;
  std::string pattern;
  bool is_in_all = true;
  for (const LayerSpec& layer : model.layers) {
    window = std::max(window, layer.attention_window);
    is_in_all = is_in_all && layer.attention_window > 0;
    pattern += (pattern.empty() ? "" : ",") + std::string(layer.attention_window > 0 ? "1" : "0");
  }
  if (window == 0) {
    return;
  }
  arguments.add("--window-size", "(" + std::to_string(window - 1) + ",0)");
  if (!is_in_all) {
    arguments.add("--window-attn-skip-freq", "[" + pattern + "]");
  }
}

// "([0]*3+[1]*58)": which layers are of a kind.
std::string layers_that(const ModelSpec& model, bool (*is_of_kind)(const LayerSpec&)) {
  std::string text;
  std::size_t begin = 0;
  while (begin < model.layers.size()) {
    const bool is_on = is_of_kind(model.layers[begin]);
    std::size_t end = begin;
    while (end < model.layers.size() && is_of_kind(model.layers[end]) == is_on) { ++end; }
    text += (text.empty() ? "[" : "+[") + std::string(is_on ? "1" : "0") + "]*" +
            std::to_string(end - begin);
    begin = end;
  }
  return "(" + text + ")";
}

bool is_delta_net(const LayerSpec& layer) {
  return layer.mixer == MixerKind::kGatedDelta;
}

// Sizes: core/transformer/transformer_config.py, linear_*. The norms of qwen3_next and qwen3_5
// multiply by one more than their weight (transformers 5.17 models/qwen3_next/
// modeling_qwen3_next.py, Qwen3NextRMSNorm).
void add_mixers(ArgumentList& arguments, const ModelSpec& model) {
  const auto has_sinks = [](const LayerSpec& layer) { return layer.has_sinks; };
  if (std::ranges::all_of(model.layers, has_sinks)) {
    arguments.add("--softmax-type", "learnable");
  }
  arguments.add_switch_if(model.attention_gate == AttentionGate::kPerElement,
                          "--attention-output-gate");
  if (std::ranges::any_of(model.layers, &LayerSpec::has_indexer)) {
    arguments.add("--experimental-attention-variant", "dsa");
    arguments.add("--dsa-indexer-n-heads", model.indexer.num_heads);
    arguments.add("--dsa-indexer-head-dim", model.indexer.head_dim);
    arguments.add("--dsa-indexer-topk", model.indexer.topk);
  }
  if (std::ranges::none_of(model.layers, is_delta_net)) {
    return;
  }
  const DeltaSpec& delta = model.delta;
  arguments.add_switch("--apply-layernorm-1p");
  arguments.add("--experimental-attention-variant", "gated_delta_net");
  arguments.add("--linear-attention-freq", layers_that(model, is_delta_net));
  arguments.add("--linear-num-key-heads", delta.key_heads);
  arguments.add("--linear-num-value-heads", delta.value_heads);
  arguments.add("--linear-key-head-dim", delta.key_head_dim);
  arguments.add("--linear-value-head-dim", delta.value_head_dim);
  arguments.add("--linear-conv-kernel-dim", delta.convolution);
}

// core/ssm/mamba_hybrid_layer_allocation.py, Symbols. Its convolution sees four tokens.
void add_hybrid(ArgumentList& arguments, const ModelSpec& model) {
  if (!is_hybrid(model)) {
    return;
  }
  const MambaSpec& mamba = model.mamba;
  constexpr std::int64_t kConvolution = 4;
  if (mamba.num_heads > 0 && mamba.convolution != kConvolution) {
    throw InputError(
        "--export: megatron core_v0.16.1 cannot express this plan: its convolution "
        "sees 4 tokens, that of " +
        model.name + " " + std::to_string(mamba.convolution) + "; nothing is written");
  }
  std::string pattern;
  for (const LayerSpec& layer : model.layers) {
    pattern += layer.mixer == MixerKind::kMamba2      ? 'M'
               : layer.mixer == MixerKind::kAttention ? '*'
               : layer.is_moe                         ? 'E'
                                                      : '-';
  }
  arguments.add_list("--spec",
                     {"megatron.core.models.mamba.mamba_layer_specs", "mamba_stack_spec"});
  arguments.add("--hybrid-override-pattern", pattern);
  arguments.add("--mamba-num-heads", mamba.num_heads);
  arguments.add("--mamba-head-dim", mamba.head_dim);
  arguments.add("--mamba-num-groups", mamba.groups);
  arguments.add("--mamba-state-dim", mamba.state);
}

void add_router(ArgumentList& arguments, const ExportRequest& request) {
  const ModelSpec& model = request.job().model;
  const MoeSpec& moe = model.moe;
  arguments.add("--moe-router-topk", moe.topk);
  if (moe.num_groups > 1) {
    arguments.add("--moe-router-num-groups", moe.num_groups);
    arguments.add("--moe-router-group-topk", moe.topk_groups);
  }
  const ConfigNumbers numbers = config_numbers(request.model.config);
  if (moe.router_bias) {  // one number for each expert beside sigmoids (DeepSeek-V3)
    arguments.add("--moe-router-score-function", "sigmoid");
    arguments.add_switch("--moe-router-enable-expert-bias");
  } else if (model.family == "nemotron_h") {  // sigmoids, and a bias that is no parameter
    arguments.add("--moe-router-score-function", "sigmoid",
                  "--moe-router-enable-expert-bias, a group more, is not counted");
  } else if (moe.topk == 1 || numbers.normalizes_topk == std::optional(false)) {
    arguments.add_switch("--moe-router-pre-softmax");
  }
  if (numbers.routed_scaling_factor) {
    arguments.add("--moe-router-topk-scaling-factor", exact_text(*numbers.routed_scaling_factor));
  }
}

// training/arguments.py drops a tenth of each unless told.
void add_dropout(ArgumentList& arguments, const ExportRequest& request, const char* name,
                 double Job::*field) {
  Job other = request.job();
  other.*field = 0.1;
  const bool is_assumed = !request.question.run && request.job().*field == 0;
  arguments.add(name, exact_text(request.job().*field),
                joined_comment(is_assumed ? "assumed" : "",
                               is_assumed ? cost_without(request, other, request.plan()) : ""));
}

}  // namespace

std::string megatron_program(const ModelSpec& model) {
  return is_hybrid(model) ? "pretrain_mamba.py" : "pretrain_gpt.py";
}

std::vector<ExportedArgument> megatron_model_arguments(const ExportRequest& request) {
  const Job& job = request.job();
  const ModelSpec& model = job.model;
  ArgumentList arguments;
  arguments.add("--num-layers", model.num_layers());
  arguments.add("--hidden-size", model.hidden);
  // Where every layer has experts no tensor has this width, and 0 is none.
  arguments.add("--ffn-hidden-size", model.ffn > 0 ? model.ffn : model.moe.expert_ffn);
  add_heads(arguments, model);
  arguments.add("--seq-length", job.sequence_length);
  add_positions(arguments, request);
  add_layers(arguments, request);
  add_windows(arguments, model);
  add_mixers(arguments, model);
  add_hybrid(arguments, model);
  if (model.num_mtp_layers > 0) {
    arguments.add("--mtp-num-layers", model.num_mtp_layers);
  }
  arguments.add("--make-vocab-size-divisible-by", job.profile.vocab_multiple);
  add_dropout(arguments, request, "--hidden-dropout", &Job::hidden_dropout);
  add_dropout(arguments, request, "--attention-dropout", &Job::attention_dropout);
  return arguments.arguments();
}

std::vector<ExportedArgument> megatron_expert_arguments(const ExportRequest& request) {
  const ModelSpec& model = request.job().model;
  const MoeSpec& moe = model.moe;
  ArgumentList arguments;
  if (moe.num_experts == 0) {
    return arguments.arguments();
  }
  arguments.add("--num-experts", moe.num_experts);
  arguments.add("--moe-ffn-hidden-size", moe.expert_ffn);
  if (moe.latent > 0) {
    arguments.add("--moe-latent-size", moe.latent);
  }
  if (!is_hybrid(model)) {
    arguments.add("--moe-layer-freq",
                  layers_that(model, [](const LayerSpec& layer) { return layer.is_moe; }));
  }
  if (moe.shared_ffn > 0) {
    arguments.add("--moe-shared-expert-intermediate-size", moe.shared_ffn);
    arguments.add_switch_if(moe.shared_gate, "--moe-shared-expert-gate");
  }
  add_router(arguments, request);
  return arguments.arguments();
}

}  // namespace shardplan
