#include "estimator/frameworks/pieces/seen_by_layer.h"

namespace shardplan {

bool is_layer(BlockKind kind) {
  return kind == BlockKind::kDenseLayer || kind == BlockKind::kMoeLayer || kind == BlockKind::kMtp;
}

bool is_mixture(const Job& job, BlockKind kind) {
  return kind == BlockKind::kMoeLayer ||
         (kind == BlockKind::kMtp && job.model.layers.back().is_moe);
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
