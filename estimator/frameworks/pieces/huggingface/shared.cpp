#include "estimator/frameworks/pieces/huggingface/shared.h"

#include <algorithm>

#include "estimator/frameworks/pieces/huggingface/labels.h"

namespace shardplan::huggingface {
namespace {

using eager::Graph;
using eager::InRow;
using eager::Tensor;

bool has_layer(const ModelSpec& model, bool has_window) {
  return std::ranges::any_of(model.layers, [has_window](const LayerSpec& layer) {
    return (layer.attention_window > 0) == has_window;
  });
}

std::int64_t longest_window(const ModelSpec& model) {
  return std::ranges::max(model.layers, {}, &LayerSpec::attention_window).attention_window;
}

// scaled_dot_product_attention needs a mask where causality alone does not say which keys count:
// windows shorter than the sequence, and several documents in a row of tokens
// (_ignore_causal_mask_sdpa). FlashAttention needs none.
Tensor mask(Graph& graph, const Job& job, const AttentionSizes& sizes, bool has_window,
            DType dtype) {
  const InRow row(graph.tape, kMaskRow);
  const bool is_partial = job.profile.packed_sequences || class_of(job.model).always_has_mask ||
                          (has_window && longest_window(job.model) <= sizes.sequence);
  if (is_eager_attention(job)) {
    return additive_mask(graph, sizes, dtype);
  }
  const AttentionBackend backend = job.profile.attention_backend;
  const bool takes_masks = backend == AttentionBackend::kAuto;
  return is_partial && takes_masks ? byte_mask(graph, sizes) : Tensor{};
}

// `width`: elements of a head that are turned.
Rotary rotary(Graph& graph, const Job& job, const AttentionSizes& sizes, std::int64_t width,
              DType dtype) {
  const InRow row(graph.tape, kRotaryRow);
  // Positions of each sequence are its own where they begin anew.
  const ModelClass& family = class_of(job.model);
  const bool is_by_sequence = job.profile.packed_sequences || family.has_rotary_by_sequence;
  const std::int64_t positions = (is_by_sequence ? sizes.tokens : sizes.sequence) / sizes.ranks;
  return make_rotary(graph, family.rotary, positions * width, dtype);
}

// Of layers with a window or without, whose heads may be wider than the model's others.
std::int64_t turned_width(const ModelSpec& model, bool has_window) {
  const auto found = std::ranges::find_if(model.layers, [has_window](const LayerSpec& layer) {
    return (layer.attention_window > 0) == has_window;
  });
  return found != model.layers.end() && found->heads != AttentionHeads{} ? found->heads.qk_head_dim
                                                                         : rotary_width(model);
}

}  // namespace

bool is_eager_attention(const Job& job) {
  return job.profile.attention_backend == AttentionBackend::kUnfused ||
         class_of(job.model).attends_in_fp32 ||
         (job.profile.attention_backend != AttentionBackend::kFlash &&
          std::ranges::any_of(job.model.layers, &LayerSpec::has_sinks));
}

bool is_broadcast_attention(const Job& job) {
  return class_of(job.model).qkv_parts == QkvParts::kIndexed && job.model.num_kv_heads == 1 &&
         job.model.num_heads > 1 && job.profile.attention_backend == AttentionBackend::kAuto;
}

const char* attention_assumption(const Job& job) {
  if (is_broadcast_attention(job)) {
    return "attention is scaled_dot_product_attention of one head of keys for all queries, which "
           "no fused kernel takes: every layer keeps num_heads * sequence_length^2 probabilities "
           "in fp32; FlashAttention 2, attention_backend flash, keeps none";
  }
  if (class_of(job.model).attends_in_fp32) {
    return "attention is the class's own, eager and in fp32, which keeps num_heads * "
           "sequence_length^2 probabilities in every layer twice, in fp32 and in half precision";
  }
  return "attention is scaled_dot_product_attention, which keeps no scores; transformers' eager "
         "attention keeps num_heads * sequence_length^2 of them in every layer";
}

SharedByLayer shared_by_layers(Graph& graph, const Job& job, const AttentionSizes& sizes,
                               const EndTypes& types) {
  const ModelClass& family = class_of(job.model);
  SharedByLayer shared;
  auto& [without, with] = shared.by_window;
  if (family.always_has_full_mask || has_layer(job.model, false)) {
    without.mask = mask(graph, job, sizes, false, types.norms);
  }
  if (has_layer(job.model, true)) {
    with.mask = mask(graph, job, sizes, true, types.norms);
  }
  const auto is_turned = [](const LayerSpec& layer) {
    return layer.mixer == MixerKind::kAttention && layer.has_rotary;
  };
  if (std::ranges::none_of(job.model.layers, is_turned)) {
    return shared;
  }
  if (!family.has_rotary_by_window) {
    without.rotary = with.rotary = rotary(graph, job, sizes, rotary_width(job.model), types.table);
    return shared;
  }
  for (const bool has_window : {false, true}) {
    if (has_layer(job.model, has_window)) {
      shared.by_window[has_window ? 1 : 0].rotary =
          rotary(graph, job, sizes, turned_width(job.model, has_window), types.table);
    }
  }
  return shared;
}

}  // namespace shardplan::huggingface
