// Which kernels a framework runs, how tokens reach experts, and what it launches as graphs.
#pragma once

#include <array>

#include "estimator/plan/plan.h"

namespace shardplan {

enum class SwigluKind {
  kFused,    // fc1 output kept, gate and product in one kernel: 6f bytes per token kept
  kUnfused,  // silu(gate) kept as well: 8f bytes per token
};

enum class CrossEntropyKind {
  kTeFused,              // Transformer Engine, gradient written over the bf16 logits
  kTeFusedSeparateGrad,  // newer Transformer Engine: separate fp32 gradient
  kNativeFused,          // Megatron's own fused loss: fp32 softmax kept, cast back to bf16
  kUnfused,              // fp32 copy of the logits becomes the softmax, cast back
  kChunked,              // native: bf16 logits of one chunk of tokens, gradient in place
};

enum class AttentionBackend {
  kAuto,            // what Transformer Engine chooses for the GPU and the run
  kFused,           // cuDNN: works in the layout of the products
  kFlash,           // FlashAttention 2: batch first, so its output is copied back to sequence first
  kUnfused,         // batched products and softmax: the probabilities are saved
  kLocal,           // Megatron-core's own layers without Transformer Engine's: they save them, too
  kFlex,            // PyTorch's flex_attention, a Triton kernel
  kFlashInWindows,  // FlashAttention 2 in layers with a window, PyTorch's choice in others
};

// How tokens reach the experts of other ranks.
enum class MoeDispatcher {
  kAllToAll,   // each rank sends its tokens to the ranks that hold their experts
  kAllGather,  // every rank gathers all tokens and picks those of its experts
  kDeepEp,     // DeepEP: a token goes once to each node and each rank that has experts of its own
  kHybridEp,   // DeepEP's branch hybrid-ep: the same by NVLink domain, permuted on the way
};

enum class CudaGraphs {
  kNone,       // kernel by kernel; else what of a step the host launches as CUDA graphs
  kRouter,     // of experts what stands in front of the exchange: router and preprocessing
  kAttention,  // that and attention; dense FFN and experts are eager
  kLayers,     // whole transformer layers
  kIteration,  // everything from the first forward pass to the last backward pass
};

// How values are scaled before they are rounded to fp8, in Megatron-LM's words.
enum class Fp8Recipe {
  kDelayed,     // a scale a tensor, of the largest values of the steps before
  kTensorwise,  // a scale a tensor, of its own largest value
  kBlockwise,   // a scale for 128 values, of weights for 128 x 128
  kMxfp8,       // a scale for 32 values
};

// Names as written in the profiles' files, in options and in reports.
inline constexpr std::array<NamedValue<SwigluKind>, 2> kSwigluKinds = {{
    {.value = SwigluKind::kFused, .name = "fused"},
    {.value = SwigluKind::kUnfused, .name = "unfused"},
}};
inline constexpr std::array<NamedValue<CrossEntropyKind>, 5> kCrossEntropyKinds = {{
    {.value = CrossEntropyKind::kTeFused, .name = "te_fused"},
    {.value = CrossEntropyKind::kTeFusedSeparateGrad, .name = "te_fused_separate_grad"},
    {.value = CrossEntropyKind::kNativeFused, .name = "native_fused"},
    {.value = CrossEntropyKind::kUnfused, .name = "unfused"},
    {.value = CrossEntropyKind::kChunked, .name = "chunked"},
}};
inline constexpr std::array<NamedValue<AttentionBackend>, 7> kAttentionBackends = {{
    {.value = AttentionBackend::kAuto, .name = "auto"},
    {.value = AttentionBackend::kFused, .name = "fused"},
    {.value = AttentionBackend::kFlash, .name = "flash"},
    {.value = AttentionBackend::kUnfused, .name = "unfused"},
    {.value = AttentionBackend::kLocal, .name = "local"},
    {.value = AttentionBackend::kFlex, .name = "flex"},
    {.value = AttentionBackend::kFlashInWindows, .name = "flash_in_windows"},
}};
inline constexpr std::array<NamedValue<MoeDispatcher>, 4> kMoeDispatchers = {{
    {.value = MoeDispatcher::kAllToAll, .name = "alltoall"},
    {.value = MoeDispatcher::kAllGather, .name = "allgather"},
    {.value = MoeDispatcher::kDeepEp, .name = "deepep"},
    {.value = MoeDispatcher::kHybridEp, .name = "hybridep"},
}};
inline constexpr std::array<NamedValue<CudaGraphs>, 5> kCudaGraphs = {{
    {.value = CudaGraphs::kNone, .name = "none"},
    {.value = CudaGraphs::kRouter, .name = "router"},
    {.value = CudaGraphs::kAttention, .name = "attention"},
    {.value = CudaGraphs::kLayers, .name = "layers"},
    {.value = CudaGraphs::kIteration, .name = "iteration"},
}};
inline constexpr std::array<NamedValue<Fp8Recipe>, 4> kFp8Recipes = {{
    {.value = Fp8Recipe::kDelayed, .name = "delayed"},
    {.value = Fp8Recipe::kTensorwise, .name = "tensorwise"},
    {.value = Fp8Recipe::kBlockwise, .name = "blockwise"},
    {.value = Fp8Recipe::kMxfp8, .name = "mxfp8"},
}};
constexpr const auto& names_of(SwigluKind) {
  return kSwigluKinds;
}
constexpr const auto& names_of(CrossEntropyKind) {
  return kCrossEntropyKinds;
}
constexpr const auto& names_of(AttentionBackend) {
  return kAttentionBackends;
}
constexpr const auto& names_of(MoeDispatcher) {
  return kMoeDispatchers;
}
constexpr const auto& names_of(CudaGraphs) {
  return kCudaGraphs;
}
constexpr const auto& names_of(Fp8Recipe) {
  return kFp8Recipes;
}

}  // namespace shardplan
