// Parts of models beyond those that every framework knows (grouped-query and latent attention with
// windows, gated and plain FFNs, experts, norms before or around both): each with its name, so that
// a framework that has no such piece refuses a model by it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "estimator/plan/model_spec.h"

namespace shardplan {

enum class ModelPart {
  kGatedDelta,
  kKimiDelta,
  kLightning,
  kMamba1,
  kMamba2,
  kShortConvolution,
  kParallelMixers,
  kSingleParts,
  kSharedKey,
  kIndexer,
  kSinks,
  kAttentionGate,
  kHeadsByLayer,
  kSharedKeys,
  kKeysAsValues,
  kAllHeadNorms,
  kNormsAfter,
  kParallelFfn,
  kNormsWithoutBias,
  kNormsWithoutWeights,
  kFfnByLayer,
  kReluSquared,
  kRelu,
  kXielu,
  kClampedSwiglu,
  kBiasedRouter,
  kBiasedExperts,
  kLatentExperts,
  kExpertsBesideDense,
  kHeadBias,
  kPerLayerEmbedding,
  kResidualStreams,
  kAlibi,
  kClippedQkv,
};
inline constexpr int kNumModelParts = 34;

class ModelParts {
 public:
  constexpr ModelParts() = default;
  constexpr ModelParts(std::initializer_list<ModelPart> parts) {
    for (const ModelPart part : parts) { bits_ |= bit(part); }
  }
  constexpr bool has(ModelPart part) const { return (bits_ & bit(part)) != 0; }
  friend constexpr ModelParts operator|(ModelParts a, ModelParts b) {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr bool operator==(ModelParts, ModelParts) = default;

 private:
  static constexpr std::uint64_t bit(ModelPart part) {
    return std::uint64_t{1} << static_cast<int>(part);
  }
  std::uint64_t bits_ = 0;
};

// Of gpt_oss, and of qwen3_next and qwen3_5.
inline constexpr ModelParts kGptOssParts = {ModelPart::kSinks, ModelPart::kClampedSwiglu,
                                            ModelPart::kBiasedRouter, ModelPart::kBiasedExperts};
inline constexpr ModelParts kGatedDeltaParts = {ModelPart::kGatedDelta, ModelPart::kAttentionGate};

// "gated delta net"
std::string_view name_of(ModelPart part);

// The first part of the model that is not among those known; none: all are.
std::optional<ModelPart> missing_part(const ModelSpec& model, ModelParts known);

}  // namespace shardplan
