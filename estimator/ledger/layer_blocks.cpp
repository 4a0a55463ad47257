#include "estimator/ledger/layer_blocks.h"

#include <algorithm>
#include <array>

#include "estimator/plan/parameters.h"

namespace shardplan {
namespace {

constexpr std::array kFurther = {BlockKind::kOtherLayer, BlockKind::kFurtherLayer};

BlockKind kind_by_experts(const LayerSpec& layer) {
  return layer.is_moe ? BlockKind::kMoeLayer : BlockKind::kDenseLayer;
}

// Beyond kFurther, whose models are refused, kinds share the last one.
std::vector<BlockKind> blocks_of(const ParameterKinds& kinds) {
  std::vector<BlockKind> blocks;
  std::size_t further = 0;
  for (const LayerSpec& layer : kinds.kinds) {
    const BlockKind first = kind_by_experts(layer);
    const bool is_first = std::ranges::find(blocks, first) == blocks.end();
    blocks.push_back(is_first ? first : kFurther[std::min(further++, kFurther.size() - 1)]);
  }
  return blocks;
}

bool may_vary(const Job& job) {
  return job.profile.layout.model_parts != ModelParts{} && layers_vary(job.model);
}

}  // namespace

LayerBlocks::LayerBlocks(const Job& job) : job_(job), vary_(may_vary(job)) {
  if (!vary_ || !job.profile.layout.has_mixed_layers) {
    return;
  }
  const ParameterKinds kinds = parameter_kinds(job.model);
  const std::vector<BlockKind> blocks = blocks_of(kinds);
  for (const std::size_t kind : kinds.of_layer) { kinds_.push_back(blocks[kind]); }
}

BlockKind LayerBlocks::kind_of(std::int64_t layer) const {
  const auto place = static_cast<std::size_t>(layer);
  return kinds_.empty() ? kind_by_experts(job_.model.layers[place]) : kinds_[place];
}

LayerSpec layer_of(const Job& job, BlockKind kind) {
  const std::vector<LayerSpec>& layers = job.model.layers;
  const auto first_with = [&](bool is_moe) {
    const auto found = std::ranges::find(layers, is_moe, &LayerSpec::is_moe);
    return found != layers.end() ? *found : LayerSpec{.is_moe = is_moe};
  };
  switch (kind) {
    case BlockKind::kDenseLayer: return first_with(false);
    case BlockKind::kFirstMoeLayer:
    case BlockKind::kMoeLayer: return first_with(true);
    case BlockKind::kOtherLayer:
    case BlockKind::kFurtherLayer: {
      const ParameterKinds kinds = parameter_kinds(job.model);
      const std::vector<BlockKind> blocks = blocks_of(kinds);
      const auto found = std::ranges::find(blocks, kind);
      return found == blocks.end() ? LayerSpec{}
                                   : kinds.kinds[static_cast<std::size_t>(found - blocks.begin())];
    }
    case BlockKind::kFirstLayer: return layers.front();
    case BlockKind::kEmbedding:
    case BlockKind::kLastLayer:
    case BlockKind::kMtp:
    case BlockKind::kHead:
    case BlockKind::kLogits:
    case BlockKind::kCast:
    case BlockKind::kLoss:
    case BlockKind::kSentOutput: break;
  }
  return layers.back();
}

bool has_layers(const Job& job, BlockKind kind) {
  if (kind == BlockKind::kDenseLayer) {
    return job.model.has_dense_layers();
  }
  if (kind == BlockKind::kMoeLayer) {
    return job.model.has_moe_layers();
  }
  if (!job.profile.layout.has_mixed_layers || !may_vary(job)) {
    return false;
  }
  const std::vector<BlockKind> blocks = blocks_of(parameter_kinds(job.model));
  return std::ranges::find(blocks, kind) != blocks.end();
}

std::int64_t num_layer_kinds(const ModelSpec& model) {
  const std::vector<BlockKind> blocks = blocks_of(parameter_kinds(model));
  const bool has_both = std::ranges::find(blocks, BlockKind::kDenseLayer) != blocks.end() &&
                        std::ranges::find(blocks, BlockKind::kMoeLayer) != blocks.end();
  return std::ssize(blocks) + (has_both ? 0 : 1);
}

}  // namespace shardplan
