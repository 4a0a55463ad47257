// What of a model is trained, and in what its frozen weights are kept: adapters and quantization.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "estimator/plan/dtype.h"

namespace shardplan {

// The linear layers of a transformer layer that adapters can stand on, by the names that modules of
// Hugging Face's models mostly have: attention, the FFN, mixers without scores, and the gate of a
// shared expert.
enum class LinearLayer {
  kQuery,
  kKey,
  kValue,
  kOutput,
  kGate,
  kUp,
  kDown,
  kMixerInput,    // of a convolution, a state space or a delta rule
  kMixerOutput,   // likewise
  kMixerGate,     // beside the input, where the gate has a projection of its own
  kMixerScalars,  // numbers a head: rates and decays of a delta rule, steps of a state space
  kSharedGate,
  kLatent,  // of tokens in front of routed experts, and of what these give behind them
};
inline constexpr std::array<std::string_view, 13> kLinearLayerNames = {
    "q_proj",     "k_proj",  "v_proj",   "o_proj",    "gate_proj",  "up_proj",
    "down_proj",  "in_proj", "out_proj", "in_proj_z", "in_proj_ba", "shared_expert_gate",
    "latent_proj"};

// What adapters' targets say of experts whose weights are one tensor for all of them, of which no
// linear layer is made (peft 0.21 utils/transformers_weight_conversion.py).
enum class ExpertTargets {
  kNone,       // linear layers alone are listed
  kFfnNames,   // names of an FFN's layers, which are the experts' as well
  kAllLinear,  // peft's "all-linear", which stands for experts and routers as well
};

// What adapters' targets say of the linear layers of a tower.
enum class TowerTargets {
  kNone,    // modules of the text model alone are named
  kByName,  // names of modules, which the tower's may have as well
  kAll,     // every linear layer of the model
};

inline constexpr std::array<std::string_view, 3> kTowerTargetNames = {"none", "by_name", "all"};

// Whether parameters are trained whose names the regular expression is found in.
struct NameRule {
  std::string pattern;
  bool trains = false;
  friend bool operator==(const NameRule&, const NameRule&) = default;
};

// What is trained at a frozen weight of a linear layer.
enum class AdapterKind {
  kLora,        // B[outputs, rank] * A[rank, inputs] beside it (arXiv 2106.09685)
  kOft,         // rotations of its inputs, `rank` of them at a time (OFT, arXiv 2306.07280)
  kAdaLora,     // LoRA with a trained scale of each of A's rows (arXiv 2303.10512)
  kBottleneck,  // a layer of `rank` numbers behind an FFN, and back (arXiv 1902.00751)
};
inline constexpr std::array<std::string_view, 4> kAdapterKindNames = {"lora", "oft", "adalora",
                                                                      "bottleneck"};

constexpr std::string_view name_of(AdapterKind kind) {
  return kAdapterKindNames[static_cast<std::size_t>(kind)];
}

struct Adapters {
  AdapterKind kind = AdapterKind::kLora;
  std::int64_t rank = 0;                                 // 0: none; all parameters are trained
  std::array<bool, kLinearLayerNames.size()> targets{};  // by LinearLayer
  ExpertTargets expert_targets = ExpertTargets::kNone;
  TowerTargets tower_targets = TowerTargets::kNone;
  double dropout = 0;                 // of the adapters' inputs
  bool decomposes_weights = false;    // DoRA (arXiv 2402.09353): a trained magnitude per output
  bool trains_table = false;          // modules_to_save: a trained copy of the embedding
  bool trains_head = false;           // and of the output layer
  DType dtype = DType::kFp32;         // of A and B
  DType copies_dtype = DType::kBf16;  // of trained copies of modules

  bool is_on(LinearLayer layer) const { return targets[static_cast<std::size_t>(layer)]; }
  friend bool operator==(const Adapters&, const Adapters&) = default;
};

// LoraConfig as it comes, with the targets of Llama and its kin (peft 0.21 tuners/lora/config.py,
// utils/constants.py TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING).
inline constexpr Adapters kDefaultAdapters = {.rank = 8, .targets = {true, false, true}};

// How linear weights of layers are stored: by bitsandbytes, or in a checkpoint of 4-bit integers.
enum class Quantization { kNone, kNf4, kFp4, kInt8, kGptq, kAwq };

inline constexpr std::array<std::string_view, 6> kQuantizationNames = {"none", "nf4",  "fp4",
                                                                       "int8", "gptq", "awq"};

constexpr std::string_view name_of(Quantization kind) {
  return kQuantizationNames[static_cast<std::size_t>(kind)];
}

constexpr bool is_4bit(Quantization kind) {
  return kind == Quantization::kNf4 || kind == Quantization::kFp4;
}

struct QuantizedWeights {
  Quantization kind = Quantization::kNone;
  bool is_double = false;  // 4 bit: the scales of blocks are quantized as well
  std::array<bool, kLinearLayerNames.size()> spared{};  // by LinearLayer: those that stay floats
  bool takes_head = false;  // the output layer is quantized as well, where it is not tied

  bool is_on(LinearLayer layer) const {
    return kind != Quantization::kNone && !spared[static_cast<std::size_t>(layer)];
  }
  friend bool operator==(const QuantizedWeights&, const QuantizedWeights&) = default;
};

}  // namespace shardplan
