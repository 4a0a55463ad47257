// A decoder layer of Hugging Face's models: its weights, and its forward pass in the order of its
// source. Sources: transformers 5.17 models/llama/modeling_llama.py LlamaDecoderLayer and its kin.
#pragma once

#include <cstdint>

#include "estimator/frameworks/pieces/huggingface/attention.h"
#include "estimator/frameworks/pieces/huggingface/experts.h"
#include "estimator/frameworks/pieces/huggingface/feed_forward.h"
#include "estimator/frameworks/pieces/huggingface/latent_attention.h"
#include "estimator/frameworks/pieces/huggingface/linear.h"
#include "estimator/frameworks/pieces/huggingface/mixers/delta_net.h"
#include "estimator/frameworks/pieces/huggingface/mixers/mamba.h"
#include "estimator/frameworks/pieces/huggingface/mixers/selective_scan.h"
#include "estimator/frameworks/pieces/huggingface/mixers/short_convolution.h"
#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/frameworks/pieces/huggingface/norms.h"
#include "estimator/frameworks/pieces/huggingface/shared.h"
#include "estimator/plan/job.h"

namespace shardplan::huggingface {

struct Layer {
  Linear query, key, value, output;
  Linear gate;                   // of attention, where it has a projection of its own
  Linear query_key_value;        // in place of the first three
  LatentProjections latent;      // beside query and output alone
  DeltaNet delta_net;            // in place of attention
  ShortConvolution convolution;  // likewise
  Mamba mamba;
  SelectiveScan selective;
  FeedForward ffn;
  Experts experts;  // of a layer that has them in place of its FFN
  FeedForward shared_experts;
  Linear shared_gate;
  Linear latent_input, latent_output;  // around routed experts of projected tokens
  Norm query_norm, key_norm;
  eager::Parameter sinks;
  eager::Tensor positions;  // sines and cosines of a layer of its own (GPT-J)
  Norm attention_norm, ffn_norm;
  Norm after_attention, after_ffn;  // of a layer that has four
  bool is_trained = true;           // some parameter of its own, or of its adapters
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
};

// What the layers of a model go by.
struct LayerRun {
  eager::Graph& graph;
  const Job& job;
  const ModelClass& family;
  Sizes sizes;
  bool recomputes = false;
  eager::Tensors* cache = nullptr;  // of keys and values; none: the model is told to keep none
  bool gathers_keys = true;         // of a ring, at once

  // accelerate's checkpoints up to 1.14 (utils/fsdp_utils.py fsdp2_apply_ac).
  bool checkpoints_parts() const { return recomputes && job.profile.checkpoints_layer_parts; }
  bool checkpoints_layer() const { return recomputes && !job.profile.checkpoints_layer_parts; }
  bool uses_liger() const {
    return job.profile.liger_kernel != LigerKernel::kOff && family.liger != LigerUse::kNone;
  }
  // axolotl's functions take the place of peft's layers.
  bool fuses_adapters() const { return job.profile.adapter_kernels && job.adapters.rank > 0; }
  bool fuses_norm_rotary() const { return job.profile.fused_norm_rotary && job.model.qk_norm; }
  AttentionSizes attention_sizes() const;
};

eager::Tensor apply_norm(const LayerRun& run, Norm& norm, const eager::Tensor& input,
                         bool is_of_heads = false);

// `place`: of the layer in the model.
eager::Tensor layer_forward(const LayerRun& run, Layer& layer, std::size_t place,
                            const SharedByLayer& shared, const eager::Tensor& input);

}  // namespace shardplan::huggingface
