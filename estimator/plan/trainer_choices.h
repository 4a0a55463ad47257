// How transformers' Trainer, accelerate and what is built on them hold parameters and make the
// loss.
#pragma once

#include <array>

#include "estimator/plan/plan.h"

namespace shardplan {

// Which parameters accelerate casts to fp32 before or behind FSDP2's sharding.
enum class FsdpUpcast {
  kAll,      // up to 1.12
  kTrained,  // from 1.13 on
  kNone,     // models with 4-bit weights from 1.14 on
};

// How accelerate groups what is no layer under FSDP2.
enum class FsdpEnds {
  kRoot,           // up to 1.13: embedding, final norm and head are the root's
  kTail,           // 1.14: norm and head, with tied tables norm and embedding
  kTailWithHead,   // 1.15: with tied tables norm, embedding and head
  kEmbeddingApart  // LLaMA-Factory's version 1: as the root, but for an untied embedding
};

// Whose loop trains: when gradients are reduced, and what is made around a step.
enum class TrainerLoop {
  kTrainer,    // transformers' Trainer, under accelerate
  kFactoryV1,  // LLaMA-Factory's version 1
  kScript,     // a plain loop of PyTorch: forward, backward, step
};

// When FullyShardedDataParallel, FSDP1, gathers the next module of a backward pass: beside the
// module before it, behind that, or when it is needed.
enum class FsdpPrefetch { kNone, kBackwardPre, kBackwardPost };

// How transformers and what is built on it get from the last hidden states to the loss.
enum class HeadLoss {
  kStock,            // all logits, then ForCausalLMLoss
  kChunked,          // TRL's chunked_nll: 256 tokens at a time under a checkpoint each
  kFusedLinear,      // Liger's fused linear cross entropy
  kCutCrossEntropy,  // no logits (arXiv 2411.09009)
  kTwice,            // that of all logits in the model, and again from their copy in fp32
  kPerToken,         // of each token from logits as they are, loss_chunk_tokens at a time
};

// Liger's kernels for norms, rotary embedding, SwiGLU and the head with its loss.
enum class LigerKernel {
  kOff,
  kOn,          // as 0.8.3 and later have them
  kThrough082,  // chunks' gradients of the head's weight become fp32 before they are added
};

inline constexpr std::array<NamedValue<FsdpUpcast>, 3> kFsdpUpcasts = {{
    {.value = FsdpUpcast::kAll, .name = "all"},
    {.value = FsdpUpcast::kTrained, .name = "trained"},
    {.value = FsdpUpcast::kNone, .name = "none"},
}};
inline constexpr std::array<NamedValue<FsdpEnds>, 4> kFsdpEnds = {{
    {.value = FsdpEnds::kRoot, .name = "root"},
    {.value = FsdpEnds::kTail, .name = "tail"},
    {.value = FsdpEnds::kTailWithHead, .name = "tail_with_head"},
    {.value = FsdpEnds::kEmbeddingApart, .name = "embedding_apart"},
}};
inline constexpr std::array<NamedValue<TrainerLoop>, 3> kTrainerLoops = {{
    {.value = TrainerLoop::kTrainer, .name = "trainer"},
    {.value = TrainerLoop::kFactoryV1, .name = "llamafactory_v1"},
    {.value = TrainerLoop::kScript, .name = "script"},
}};
inline constexpr std::array<NamedValue<FsdpPrefetch>, 3> kFsdpPrefetches = {{
    {.value = FsdpPrefetch::kNone, .name = "none"},
    {.value = FsdpPrefetch::kBackwardPre, .name = "backward_pre"},
    {.value = FsdpPrefetch::kBackwardPost, .name = "backward_post"},
}};
inline constexpr std::array<NamedValue<HeadLoss>, 6> kHeadLosses = {{
    {.value = HeadLoss::kStock, .name = "stock"},
    {.value = HeadLoss::kChunked, .name = "chunked"},
    {.value = HeadLoss::kFusedLinear, .name = "fused_linear"},
    {.value = HeadLoss::kCutCrossEntropy, .name = "cut_cross_entropy"},
    {.value = HeadLoss::kTwice, .name = "twice"},
    {.value = HeadLoss::kPerToken, .name = "per_token"},
}};
inline constexpr std::array<NamedValue<LigerKernel>, 3> kLigerKernels = {{
    {.value = LigerKernel::kOff, .name = "off"},
    {.value = LigerKernel::kOn, .name = "on"},
    {.value = LigerKernel::kThrough082, .name = "through_0.8.2"},
}};
constexpr const auto& names_of(FsdpUpcast) {
  return kFsdpUpcasts;
}
constexpr const auto& names_of(FsdpEnds) {
  return kFsdpEnds;
}
constexpr const auto& names_of(TrainerLoop) {
  return kTrainerLoops;
}
constexpr const auto& names_of(FsdpPrefetch) {
  return kFsdpPrefetches;
}
constexpr const auto& names_of(HeadLoss) {
  return kHeadLosses;
}
constexpr const auto& names_of(LigerKernel) {
  return kLigerKernels;
}

}  // namespace shardplan
