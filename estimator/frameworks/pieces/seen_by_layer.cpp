#include "estimator/frameworks/pieces/seen_by_layer.h"

#include "estimator/ledger/layer_blocks.h"

namespace shardplan {

bool is_layer(BlockKind kind) {
  using enum BlockKind;
  return kind == kDenseLayer || kind == kMoeLayer || kind == kOtherLayer || kind == kFurtherLayer ||
         kind == kMtp;
}

bool is_mixture(const Job& job, BlockKind kind) {
  return is_layer(kind) && layer_of(job, kind).is_moe;
}

std::int64_t count_mixtures(const Job& job, const StageLayout& stage) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < kNumBlockKinds; ++i) {
    const BlockKind kind = static_cast<BlockKind>(i);
    const std::int64_t blocks = count_blocks(stage, kind);
    count += blocks > 0 && is_mixture(job, kind) ? blocks : 0;
  }
  return count;
}

SeenByBlock seen_by_layer(const Job& job, const Plan& plan, BlockKind kind, SeparateNorms norms,
                          bool mlp_in_mixtures) {
  const bool experts = is_mixture(job, kind);
  SeenByBlock seen{.recompute = {},
                   .experts = experts,
                   .ep = experts ? plan.ep : 1,
                   .cp_method = is_layer(kind)};
  if (!is_layer(kind) || plan.recompute.granularity != RecomputeGranularity::kSelective) {
    return seen;
  }
  seen.recompute = plan.recompute;
  RecomputeModules& modules = seen.recompute.modules;
  modules.layernorm = modules.layernorm && (norms.attention || norms.ffn);
  modules.mlp = modules.mlp && (!experts || mlp_in_mixtures);
  modules.moe = modules.moe && experts;
  modules.moe_act = modules.moe_act && experts && !modules.moe;
  modules.shared_experts = modules.shared_experts && experts && !modules.moe;
  return seen;
}

}  // namespace shardplan
