// The frameworks by name: one value for each row of frameworks.cpp.
#pragma once

#include <array>
#include <cstdint>

#include "estimator/plan/framework_profile.h"

namespace shardplan {

enum class MemoryModel : std::uint8_t {
  kMegatron,       // Megatron-LM with Transformer Engine
  kMegatronLocal,  // Megatron-core with its local layer spec: plain PyTorch
  kNative,         // our own trainer
  kTorchtitan,     // pytorch/torchtitan: FSDP2, eager or compiled blocks
  kNanotron,       // nanotron: its own modules under autograd, fp32 gradient buffer
  kDeepspeed,      // DeepSpeed ZeRO-1, 2 and 3 around Hugging Face's Llama
  kTransformers,   // Hugging Face's Trainer: one GPU, DDP or FSDP2, whole models or adapters
  kFujii2024,      // the closed formula of arXiv 2411.06465 as its author's calculator has it
};

inline constexpr std::array<NamedValue<MemoryModel>, 8> kMemoryModels = {{
    {.value = MemoryModel::kFujii2024, .name = "fujii2024"},
    {.value = MemoryModel::kMegatron, .name = "megatron"},
    {.value = MemoryModel::kNative, .name = "native"},
    {.value = MemoryModel::kTorchtitan, .name = "torchtitan"},
    {.value = MemoryModel::kMegatronLocal, .name = "megatron_local"},
    {.value = MemoryModel::kNanotron, .name = "nanotron"},
    {.value = MemoryModel::kDeepspeed, .name = "deepspeed"},
    {.value = MemoryModel::kTransformers, .name = "transformers"},
}};
constexpr const auto& names_of(MemoryModel) {
  return kMemoryModels;
}

// Megatron-core's parallelism and buffers, with Transformer Engine's layers or its own.
constexpr bool is_megatron(MemoryModel model) {
  return model == MemoryModel::kMegatron || model == MemoryModel::kMegatronLocal;
}

}  // namespace shardplan
