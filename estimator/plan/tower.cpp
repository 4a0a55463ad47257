// Sources: transformers 5.17 models/qwen3_5/modeling_qwen3_5.py Qwen3_5VisionModel,
// models/qwen3_vl/modeling_qwen3_vl.py Qwen3VLVisionModel, models/siglip/modeling_siglip.py
// SiglipVisionTransformer, models/gemma3/modeling_gemma3.py Gemma3MultiModalProjector,
// models/pixtral/modeling_pixtral.py PixtralVisionModel, models/mistral3/modeling_mistral3.py
// Mistral3MultiModalProjector, models/llama4/modeling_llama4.py Llama4VisionModel,
// models/voxtral/modeling_voxtral.py VoxtralEncoder, VoxtralMultiModalProjector,
// models/gemma4/modeling_gemma4.py Gemma4VisionModel, Gemma4AudioModel, Gemma4MultimodalEmbedder,
// models/gemma4_unified/modeling_gemma4_unified.py Gemma4UnifiedVisionEmbedder.
#include "estimator/plan/tower.h"

#include <utility>

namespace shardplan {
namespace {

class TensorList {
 public:
  TensorList(const TowerSpec& tower, std::int64_t text_hidden)
      : tower_(tower), text_hidden_(text_hidden) {}

  std::vector<TowerTensor> take() {
    switch (tower_.kind) {
      case TowerKind::kNone: break;
      case TowerKind::kQwen: add_qwen(); break;
      case TowerKind::kSiglip: add_siglip(); break;
      case TowerKind::kPixtral: add_pixtral(); break;
      case TowerKind::kLlama4: add_llama4(); break;
      case TowerKind::kWhisper: add_whisper(); break;
      case TowerKind::kGemma4: add_gemma4(); break;
      case TowerKind::kGemma4Unified: add_gemma4_unified(); break;
    }
    return std::move(tensors_);
  }

 private:
  void add(const std::string& name, std::int64_t rows, std::int64_t columns = 1) {
    tensors_.push_back({.name = prefix_ + name, .rows = rows, .columns = columns, .block = block_});
  }
  void add_biased(const std::string& module, std::int64_t rows, std::int64_t columns = 1) {
    add(module + ".weight", rows, columns);
    add(module + ".bias", rows);
  }
  void add_linear(const std::string& module, std::int64_t inputs, std::int64_t outputs,
                  bool has_bias) {
    add(module + ".weight", outputs, inputs);
    tensors_.back().is_linear = true;
    if (has_bias) {
      add(module + ".bias", outputs);
    }
  }
  template <typename Function>
  void add_blocks(const std::string& path, Function add_block) {
    add_blocks(path, 0, tower_.layers, add_block);
  }
  // `first`: the number of the first of them among the layers of all encoders.
  template <typename Function>
  void add_blocks(const std::string& path, std::int64_t first, std::int64_t count,
                  Function add_block) {
    const std::string outer = prefix_;
    for (std::int64_t i = 0; i < count; ++i) {
      block_ = first + i;
      prefix_ = outer + path + "." + std::to_string(i) + ".";
      add_block();
    }
    block_ = -1;
    prefix_ = outer;
  }

  void add_qwen_merger(const std::string& module, std::int64_t norm) {
    const std::int64_t wide = tower_.merged * tower_.hidden;
    add_biased(module + ".norm", norm);
    add_linear(module + ".linear_fc1", wide, wide, true);
    add_linear(module + ".linear_fc2", wide, tower_.output, true);
  }
  void add_qwen() {
    const std::int64_t hidden = tower_.hidden;
    prefix_ = "model.visual.";
    add_biased("patch_embed.proj", hidden, tower_.patch);
    add("pos_embed.weight", tower_.positions, hidden);
    add_blocks("blocks", [&] {
      add_biased("norm1", hidden);
      add_biased("norm2", hidden);
      add_linear("attn.qkv", hidden, 3 * hidden, true);
      add_linear("attn.proj", hidden, hidden, true);
      add_linear("mlp.linear_fc1", hidden, tower_.ffn, true);
      add_linear("mlp.linear_fc2", tower_.ffn, hidden, true);
    });
    add_qwen_merger("merger", hidden);
    for (std::int64_t i = 0; i < tower_.mergers; ++i) {
      add_qwen_merger("deepstack_merger_list." + std::to_string(i), tower_.merged * hidden);
    }
  }

  void add_siglip() {
    const std::int64_t hidden = tower_.hidden;
    prefix_ = "model.vision_tower.";
    add_biased("embeddings.patch_embedding", hidden, tower_.patch);
    add("embeddings.position_embedding.weight", tower_.positions, hidden);
    add_blocks("encoder.layers", [&] {
      add_biased("layer_norm1", hidden);
      for (const char* const each : {"k_proj", "v_proj", "q_proj", "out_proj"}) {
        add_linear(std::string("self_attn.") + each, hidden, hidden, true);
      }
      add_biased("layer_norm2", hidden);
      add_linear("mlp.fc1", hidden, tower_.ffn, true);
      add_linear("mlp.fc2", tower_.ffn, hidden, true);
    });
    add_biased("post_layernorm", hidden);
    prefix_ = "model.multi_modal_projector.";
    add("mm_input_projection_weight", hidden, text_hidden_);
    add("mm_soft_emb_norm.weight", hidden);
  }

  void add_pixtral() {
    const std::int64_t hidden = tower_.hidden;
    prefix_ = "model.vision_tower.";
    add("patch_conv.weight", hidden, tower_.patch);
    add("ln_pre.weight", hidden);
    add_blocks("transformer.layers", [&] {
      add("attention_norm.weight", hidden);
      add_linear("feed_forward.gate_proj", hidden, tower_.ffn, false);
      add_linear("feed_forward.up_proj", hidden, tower_.ffn, false);
      add_linear("feed_forward.down_proj", tower_.ffn, hidden, false);
      for (const char* const each : {"k_proj", "v_proj", "q_proj", "o_proj"}) {
        add_linear(std::string("attention.") + each, hidden, hidden, false);
      }
      add("ffn_norm.weight", hidden);
    });
    prefix_ = "model.multi_modal_projector.";
    add("norm.weight", hidden);
    add_linear("patch_merger.merging_layer", tower_.merged * hidden, hidden, false);
    add_linear("linear_1", hidden, text_hidden_, tower_.projector_bias);
    add_linear("linear_2", text_hidden_, text_hidden_, tower_.projector_bias);
  }

  void add_llama4() {
    const std::int64_t hidden = tower_.hidden;
    prefix_ = "vision_model.";
    add("class_embedding", hidden);
    add("positional_embedding_vlm", tower_.positions, hidden);
    add_linear("patch_embedding.linear", tower_.patch, hidden, false);
    add_biased("layernorm_pre", hidden);
    add_biased("layernorm_post", hidden);
    add_blocks("model.layers", [&] {
      for (const char* const each : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
        add_linear(std::string("self_attn.") + each, hidden, hidden, true);
      }
      add_linear("mlp.fc1", hidden, tower_.ffn, true);
      add_linear("mlp.fc2", tower_.ffn, hidden, true);
      add_biased("input_layernorm", hidden);
      add_biased("post_attention_layernorm", hidden);
    });
    add_linear("vision_adapter.mlp.fc1", tower_.ffn, tower_.adapted, false);
    add_linear("vision_adapter.mlp.fc2", tower_.adapted, tower_.adapted, false);
    prefix_ = "multi_modal_projector.";
    add_linear("linear_1", tower_.output, text_hidden_, tower_.projector_bias);
  }

  // Convolutions over three moments, then over three of their outputs.
  void add_whisper() {
    constexpr std::int64_t kMoments = 3;
    const std::int64_t hidden = tower_.hidden;
    prefix_ = "model.audio_tower.";
    add_biased("conv1", hidden, kMoments * tower_.patch);
    add_biased("conv2", hidden, kMoments * hidden);
    add("embed_positions.weight", tower_.positions, hidden);
    add_blocks("layers", [&] {
      add_linear("self_attn.k_proj", hidden, hidden, false);
      for (const char* const each : {"v_proj", "q_proj", "out_proj"}) {
        add_linear(std::string("self_attn.") + each, hidden, hidden, true);
      }
      add_biased("self_attn_layer_norm", hidden);
      add_linear("fc1", hidden, tower_.ffn, true);
      add_linear("fc2", tower_.ffn, hidden, true);
      add_biased("final_layer_norm", hidden);
    });
    add_biased("layer_norm", hidden);
    prefix_ = "model.multi_modal_projector.";
    add_linear("linear_1", tower_.ffn, text_hidden_, false);
    add_linear("linear_2", text_hidden_, text_hidden_, false);
  }

  // Gemma4ClippableLinear, a linear layer within a module of its own.
  void add_clippable(const std::string& module, std::int64_t inputs, std::int64_t outputs) {
    add_linear(module + ".linear", inputs, outputs, false);
  }
  void add_gemma4_vision() {
    const std::int64_t hidden = tower_.hidden;
    prefix_ = "model.vision_tower.";
    add("patch_embedder.position_embedding_table", 2 * tower_.positions, hidden);
    add_linear("patch_embedder.input_proj", tower_.patch, hidden, false);
    add_blocks("encoder.layers", [&] {
      for (const char* const each : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
        add_clippable(std::string("self_attn.") + each, hidden, hidden);
      }
      add("self_attn.q_norm.weight", tower_.head_dim);
      add("self_attn.k_norm.weight", tower_.head_dim);
      add_clippable("mlp.gate_proj", hidden, tower_.ffn);
      add_clippable("mlp.up_proj", hidden, tower_.ffn);
      add_clippable("mlp.down_proj", tower_.ffn, hidden);
      for (const char* const each :
           {"input", "post_attention", "pre_feedforward", "post_feedforward"}) {
        add(std::string(each) + "_layernorm.weight", hidden);
      }
    });
  }

  // A conformer: half an FFN, attention with relative positions, a convolution and half an FFN.
  void add_gemma4_sound_layer() {
    const std::int64_t hidden = tower_.sound_hidden;
    for (const char* const each : {"feed_forward1", "feed_forward2"}) {
      const std::string module = each;
      add_clippable(module + ".ffw_layer_1", hidden, 4 * hidden);
      add_clippable(module + ".ffw_layer_2", 4 * hidden, hidden);
      add(module + ".pre_layer_norm.weight", hidden);
      add(module + ".post_layer_norm.weight", hidden);
    }
    add("self_attn.per_dim_scale", hidden / kGemma4SoundHeads);
    for (const char* const each : {"q_proj", "k_proj", "v_proj", "post"}) {
      add_clippable(std::string("self_attn.") + each, hidden, hidden);
    }
    add_linear("self_attn.relative_k_proj", hidden, hidden, false);
    add_clippable("lconv1d.linear_start", hidden, 2 * hidden);
    add_clippable("lconv1d.linear_end", hidden, hidden);
    add("lconv1d.depthwise_conv1d.weight", hidden, kGemma4SoundMoments);
    add("lconv1d.pre_layer_norm.weight", hidden);
    add("lconv1d.conv_norm.weight", hidden);
    for (const char* const each : {"norm_pre_attn", "norm_post_attn", "norm_out"}) {
      add(std::string(each) + ".weight", hidden);
    }
  }
  void add_gemma4() {
    add_gemma4_vision();
    if (tower_.sound_layers > 0) {
      constexpr std::int64_t kWide = 128;  // channels of both convolutions, of 3 x 3
      constexpr std::int64_t kNarrow = 32;
      prefix_ = "model.audio_tower.";
      add("subsample_conv_projection.layer0.conv.weight", kWide, 3 * 3);
      add("subsample_conv_projection.layer0.norm.weight", kWide);
      add("subsample_conv_projection.layer1.conv.weight", kNarrow, kWide * 3 * 3);
      add("subsample_conv_projection.layer1.norm.weight", kNarrow);
      add_linear("subsample_conv_projection.input_proj_linear", kWide / 4 * kNarrow,
                 tower_.sound_hidden, false);
      add_blocks("layers", tower_.layers, tower_.sound_layers, [&] { add_gemma4_sound_layer(); });
      add_linear("output_proj", tower_.sound_hidden, tower_.sound_output, true);
    }
    prefix_ = "model.";
    add_linear("embed_vision.embedding_projection", tower_.hidden, text_hidden_, false);
    if (tower_.sound_layers > 0) {
      add_linear("embed_audio.embedding_projection", tower_.sound_output, text_hidden_, false);
    }
  }

  void add_gemma4_unified() {
    const std::int64_t hidden = tower_.hidden;
    prefix_ = "model.embed_vision.";
    add("pos_embedding", 2 * tower_.positions, hidden);
    add_biased("patch_ln1", tower_.patch);
    add_linear("patch_dense", tower_.patch, hidden, true);
    add_biased("patch_ln2", hidden);
    add_biased("pos_norm", hidden);
    add_linear("multimodal_embedder.embedding_projection", tower_.output, text_hidden_, false);
    if (tower_.sound_hidden > 0) {
      prefix_ = "model.embed_audio.";
      add_linear("embedding_projection", tower_.sound_hidden, text_hidden_, false);
    }
  }

  // Of every published encoder of sound (configuration_gemma4.py Gemma4AudioConfig).
  static constexpr std::int64_t kGemma4SoundHeads = 8;
  static constexpr std::int64_t kGemma4SoundMoments = 5;

  const TowerSpec& tower_;
  const std::int64_t text_hidden_;
  std::string prefix_;
  std::int64_t block_ = -1;
  std::vector<TowerTensor> tensors_;
};

}  // namespace

std::vector<TowerTensor> tower_tensors(const TowerSpec& tower, std::int64_t text_hidden) {
  return TensorList(tower, text_hidden).take();
}

std::int64_t tower_elements(const TowerSpec& tower, std::int64_t text_hidden) {
  std::int64_t elements = 0;
  for (const TowerTensor& tensor : tower_tensors(tower, text_hidden)) {
    elements += tensor.elements();
  }
  return elements;
}

}  // namespace shardplan
