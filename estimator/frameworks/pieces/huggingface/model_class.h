// How the modeling file of a family differs from Llama's where the shape of a model does not say
// so. Source: transformers 5.17 models/<family>/modeling_<family>.py.
#pragma once

#include <string_view>

#include "estimator/plan/model_spec.h"

namespace shardplan::huggingface {

enum class NormKind { kLlama, kGemma };

struct ModelClass {
  std::string_view family;  // Hugging Face's model_type
  NormKind norm = NormKind::kLlama;
  // Liger's norm writes the gradient of its input over that of its output.
  bool reuses_liger_gradient = true;
  bool scales_embedding = false;
  // Norms of heads stand behind all three projections, not each behind its own.
  bool norms_heads_last = false;
  // The mask of layers without a window is made whether or not there are such layers.
  bool always_has_full_mask = false;
  // Layers with a window have cosines and sines of their own.
  bool has_rotary_by_window = false;
};

// A family without a row is Llama's.
const ModelClass& class_of(const ModelSpec& model);

}  // namespace shardplan::huggingface
