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
  kByProbability,    // of each token, times its probability (DFT, arXiv 2508.05629)
  kByEntropy,        // of each token, times the entropy of its 20 largest logits (EAFT)
  kByEntropyOfRows,  // the same, of copies of the rows that count
  kAnchored,         // kByProbability, and how far from a frozen copy of the model (ASFT)
};

// Whether the loop takes the loss of logits that the model returns.
constexpr bool takes_logits(HeadLoss kind) {
  using enum HeadLoss;
  return kind == kTwice || kind == kPerToken || kind == kByProbability || kind == kByEntropy ||
         kind == kByEntropyOfRows;
}

// What a run trains its model for.
enum class Objective {
  kNextToken,    // the next token of each text
  kReward,       // a number for each text, larger for the chosen of two
  kTokenLabels,  // a label of tokens, as process reward models have
  kDpo,          // the chosen of two texts before the rejected, against a reference model
  kOrpo,   // the same by odds and the loss of the chosen, without a reference (arXiv 2403.07691)
  kSimpo,  // the same by mean log-probabilities, without a reference (arXiv 2405.14734)
  kKto,    // texts that are good or bad, against a reference model (arXiv 2402.01306)
};

// Whether a batch is pairs of texts: the first half of its sequences chosen, the second rejected.
constexpr bool has_pairs(Objective objective) {
  using enum Objective;
  return objective == kReward || objective == kDpo || objective == kOrpo || objective == kSimpo;
}
// Whether a reference model's log-probabilities stand in the loss.
constexpr bool has_reference(Objective objective) {
  return objective == Objective::kDpo || objective == Objective::kKto;
}
// Whether the model ends in a layer of a few labels, not in one of the vocabulary.
constexpr bool ends_in_labels(Objective objective) {
  return objective == Objective::kReward || objective == Objective::kTokenLabels;
}

// Whose trainer makes the loss of an objective other than the next token.
enum class ObjectiveTrainer {
  kTrl,      // TRL's, from 1.0 on
  kFactory,  // LLaMA-Factory's
  kSwift,    // ms-swift's, around TRL's before 1.0
};

// Linear layers that are trained to be quantized, whose weights and inputs are rounded as they run
// (torchao's FakeQuantizedLinear): inputs of a token to 8 bits, weights of a group to 4.
enum class FakeQuantization { kNone, kInt8Int4 };

// Liger's kernels for norms, rotary embedding, SwiGLU and the head with its loss.
enum class LigerKernel {
  kOff,
  kOn,          // as 0.8.3 and later have them
  kThrough082,  // chunks' gradients of the head's weight become fp32 before they are added
  kNorms,       // norms alone, as kernels of the Hub replace them
};

// Which kernels run experts whose weights are one tensor for all of them.
enum class ExpertKernels {
  kGrouped,     // PyTorch's grouped products
  kScatterMoe,  // ScatterMoE's, which take rows where they lie, and adapters with them (axolotl)
  kMegablocks,  // megablocks', of the Hub
};

// How saved tensors that lie on the host go there and come back (Offload::activations).
enum class ActivationOffload {
  kStreams,      // TRL's OffloadActivations: on a stream of copies, beside the work
  kOneStream,    // the same on the stream of the work, which waits
  kLayerInputs,  // inputs of recomputed layers alone, by the checkpoint itself (Unsloth's)
};

// When parameters are updated. What a step makes for one of them may stay for the next one's.
enum class OptimizerSteps {
  kTogether,       // by one optimizer, behind the gradients of all; the layers' matrices last
  kMatricesFirst,  // the same, in the other order
  kOneByOne,       // then as well, each by an optimizer of its own
  kInBackward,     // each as soon as its gradient is there, which is freed behind its step
};

// A tower for pictures or sound beside a text model whose batches are text alone.
enum class TowerUse {
  kAbsent,        // the class loaded is that of the text model
  kFrozen,        // it is loaded, and quantized with the model
  kFrozenFloats,  // it is loaded, and kept out of quantization
  kTrained,       // it asks for gradients, of which none comes
};

inline constexpr std::array<NamedValue<OptimizerSteps>, 4> kOptimizerSteps = {{
    {.value = OptimizerSteps::kTogether, .name = "together"},
    {.value = OptimizerSteps::kMatricesFirst, .name = "matrices_first"},
    {.value = OptimizerSteps::kOneByOne, .name = "one_by_one"},
    {.value = OptimizerSteps::kInBackward, .name = "in_backward"},
}};
inline constexpr std::array<NamedValue<TowerUse>, 4> kTowerUses = {{
    {.value = TowerUse::kAbsent, .name = "absent"},
    {.value = TowerUse::kFrozen, .name = "frozen"},
    {.value = TowerUse::kFrozenFloats, .name = "frozen_floats"},
    {.value = TowerUse::kTrained, .name = "trained"},
}};
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
inline constexpr std::array<NamedValue<HeadLoss>, 10> kHeadLosses = {{
    {.value = HeadLoss::kStock, .name = "stock"},
    {.value = HeadLoss::kChunked, .name = "chunked"},
    {.value = HeadLoss::kFusedLinear, .name = "fused_linear"},
    {.value = HeadLoss::kCutCrossEntropy, .name = "cut_cross_entropy"},
    {.value = HeadLoss::kTwice, .name = "twice"},
    {.value = HeadLoss::kPerToken, .name = "per_token"},
    {.value = HeadLoss::kByProbability, .name = "dft"},
    {.value = HeadLoss::kByEntropy, .name = "eaft"},
    {.value = HeadLoss::kByEntropyOfRows, .name = "eaft_of_rows"},
    {.value = HeadLoss::kAnchored, .name = "asft"},
}};
inline constexpr std::array<NamedValue<Objective>, 7> kObjectives = {{
    {.value = Objective::kNextToken, .name = "next_token"},
    {.value = Objective::kReward, .name = "reward"},
    {.value = Objective::kTokenLabels, .name = "token_labels"},
    {.value = Objective::kDpo, .name = "dpo"},
    {.value = Objective::kOrpo, .name = "orpo"},
    {.value = Objective::kSimpo, .name = "simpo"},
    {.value = Objective::kKto, .name = "kto"},
}};
inline constexpr std::array<NamedValue<ObjectiveTrainer>, 3> kObjectiveTrainers = {{
    {.value = ObjectiveTrainer::kTrl, .name = "trl"},
    {.value = ObjectiveTrainer::kFactory, .name = "llamafactory"},
    {.value = ObjectiveTrainer::kSwift, .name = "ms_swift"},
}};
inline constexpr std::array<NamedValue<FakeQuantization>, 2> kFakeQuantizations = {{
    {.value = FakeQuantization::kNone, .name = "none"},
    {.value = FakeQuantization::kInt8Int4, .name = "int8_int4"},
}};
inline constexpr std::array<NamedValue<LigerKernel>, 4> kLigerKernels = {{
    {.value = LigerKernel::kOff, .name = "off"},
    {.value = LigerKernel::kOn, .name = "on"},
    {.value = LigerKernel::kThrough082, .name = "through_0.8.2"},
    {.value = LigerKernel::kNorms, .name = "norms"},
}};
inline constexpr std::array<NamedValue<ExpertKernels>, 3> kExpertKernels = {{
    {.value = ExpertKernels::kGrouped, .name = "grouped"},
    {.value = ExpertKernels::kScatterMoe, .name = "scattermoe"},
    {.value = ExpertKernels::kMegablocks, .name = "megablocks"},
}};
inline constexpr std::array<NamedValue<ActivationOffload>, 3> kActivationOffloads = {{
    {.value = ActivationOffload::kStreams, .name = "streams"},
    {.value = ActivationOffload::kOneStream, .name = "one_stream"},
    {.value = ActivationOffload::kLayerInputs, .name = "layer_inputs"},
}};
constexpr const auto& names_of(ActivationOffload) {
  return kActivationOffloads;
}
constexpr const auto& names_of(OptimizerSteps) {
  return kOptimizerSteps;
}
constexpr const auto& names_of(TowerUse) {
  return kTowerUses;
}
constexpr const auto& names_of(Objective) {
  return kObjectives;
}
constexpr const auto& names_of(ObjectiveTrainer) {
  return kObjectiveTrainers;
}
constexpr const auto& names_of(FakeQuantization) {
  return kFakeQuantizations;
}
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
constexpr const auto& names_of(ExpertKernels) {
  return kExpertKernels;
}
constexpr const auto& names_of(LigerKernel) {
  return kLigerKernels;
}

}  // namespace shardplan
