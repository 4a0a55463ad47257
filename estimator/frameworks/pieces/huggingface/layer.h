// A decoder layer of Hugging Face's models: its weights, and its forward pass in the order of its
// source. Sources: transformers 5.17 models/llama/modeling_llama.py LlamaDecoderLayer and its kin.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "estimator/frameworks/pieces/huggingface/attention.h"
#include "estimator/frameworks/pieces/huggingface/experts.h"
#include "estimator/frameworks/pieces/huggingface/feed_forward.h"
#include "estimator/frameworks/pieces/huggingface/hub_kernels.h"
#include "estimator/frameworks/pieces/huggingface/latent_attention.h"
#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/mixers/delta_net.h"
#include "estimator/frameworks/pieces/huggingface/mixers/kimi_delta.h"
#include "estimator/frameworks/pieces/huggingface/mixers/mamba.h"
#include "estimator/frameworks/pieces/huggingface/mixers/selective_scan.h"
#include "estimator/frameworks/pieces/huggingface/mixers/short_convolution.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/norms.h"
#include "estimator/frameworks/pieces/huggingface/per_layer_input.h"
#include "estimator/frameworks/pieces/huggingface/shared.h"
#include "estimator/plan/job.h"

namespace shardplan::huggingface {

struct Layer {
  Linear query, key, value, output;
  Linear gate;               // of attention, where it has a projection of its own
  Linear query_key_value;    // in place of the first three
  LatentProjections latent;  // beside query and output alone
  DeltaNet delta_net;        // in place of attention
  KimiDelta kimi_delta;      // likewise
  ShortConvolution convolution;
  Mamba mamba;
  SelectiveScan selective;
  FeedForward ffn;
  Experts experts;  // of a layer that has them in place of its FFN
  FeedForward shared_experts;
  Linear shared_gate;
  // Of experts beside a dense FFN: of what it gives, of what experts read, and of what they give.
  Norm beside_experts, experts_input, after_experts;
  Linear latent_input, latent_output;  // around routed experts of projected tokens
  Norm query_norm, key_norm;
  Norm value_norm;  // without a weight
  eager::Parameter sinks;
  eager::Tensor positions;  // sines and cosines of a layer of its own (GPT-J)
  Norm attention_norm, ffn_norm;
  Norm after_attention, after_ffn;  // of a layer that has four
  PerLayerInput per_layer;          // of a model with embeddings of its own in every layer
  eager::Tensor scalar;             // that multiplies what it gives
  bool is_trained = true;           // some parameter of its own, or of its adapters
  std::int64_t place = 0;           // in the model
};

// Of one microbatch on one rank.
struct Sizes {
  std::int64_t tokens = 0;
  std::int64_t sequence = 0;
  std::int64_t hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t head_dim = 0;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t cp = 1;  // ranks over which sequences are divided
  bool rings = false;   // by ring attention; else by Ulysses' exchanges
  std::int64_t tp = 1;  // ranks over which layers are; heads are those of one
  std::int64_t ep = 1;  // ranks over which experts are dealt
};

// Keys and values of layers that read others': of the last layer with its own without a window, and
// of the last with one (Gemma4TextModel's shared_kv_states).
using KeysByWindow = std::array<Heads, 2>;

// What the layers of a model go by.
struct LayerRun {
  eager::Graph& graph;
  Holder& holder;
  const Job& job;
  const ModelClass& family;
  Sizes sizes;
  bool recomputes = false;
  eager::Tensors* cache = nullptr;  // of keys and values; none: the model is told to keep none
  bool gathers_keys = true;         // of a ring, at once
  std::shared_ptr<KernelTuning> tuning = std::make_shared<KernelTuning>();
  KeysByWindow* shared_keys = nullptr;
  const eager::Tensors* per_layer_inputs = nullptr;  // of every layer, where there are some

  // accelerate's checkpoints up to 1.14 (utils/fsdp_utils.py fsdp2_apply_ac).
  bool checkpoints_parts() const { return recomputes && job.profile.checkpoints_layer_parts; }
  bool checkpoints_layer() const { return recomputes && !job.profile.checkpoints_layer_parts; }
  bool uses_liger() const {
    const LigerKernel kernels = job.profile.liger_kernel;
    return kernels != LigerKernel::kOff && kernels != LigerKernel::kNorms &&
           family.liger != LigerUse::kNone;
  }
  HubKernels hub_kernels() const {
    return job.profile.liger_kernel == LigerKernel::kNorms ? hub_kernels_of(job.model)
                                                           : HubKernels{};
  }
  // axolotl's ring, which stands behind FlashAttention: keys of all ranks, head after head.
  bool gathers_heads() const {
    return sizes.rings && job.profile.attention_backend == AttentionBackend::kFlash;
  }
  // axolotl's functions take the place of peft's layers.
  bool fuses_adapters() const { return job.profile.adapter_kernels && job.adapters.rank > 0; }
  bool fuses_norm_rotary() const { return job.profile.fused_norm_rotary && job.model.qk_norm; }
  // Of a layer with the model's heads, and of one whose own may differ.
  Packages packages() const {
    return {.scans = job.profile.mixer_kernels,
            .convolutions = job.profile.convolution_kernels,
            .tuning = tuning.get()};
  }
  AttentionSizes attention_sizes() const;
  AttentionSizes attention_sizes_of(const LayerSpec& layer) const;
};

eager::Tensor apply_norm(const LayerRun& run, Norm& norm, const eager::Tensor& input,
                         bool is_of_heads = false);

// `place`: of the layer in the model.
eager::Tensor layer_forward(const LayerRun& run, Layer& layer, std::size_t place,
                            const SharedByLayer& shared, const eager::Tensor& input);

}  // namespace shardplan::huggingface
