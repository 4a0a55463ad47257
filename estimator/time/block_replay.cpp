#include "estimator/time/block_replay.h"

#include <stdexcept>
#include <string>

#include "estimator/plan/number.h"

namespace shardplan {
namespace {

double replayed_modules_s(const RecomputeModules& modules, const LayerReplay& parts) {
  double seconds = 0;
  const auto replay = [&](bool chosen, const ReplayTime& part) {
    seconds += chosen ? part.total_s : 0;
  };
  replay(modules.core_attn, parts.attention);
  replay(modules.layernorm, parts.norms);
  replay(modules.mlp, parts.ffn);
  replay(modules.mla_up_proj, parts.mla_up);
  replay(modules.moe, parts.routed);
  replay(modules.moe || modules.moe_act, parts.routed_activation);
  replay(modules.moe || modules.shared_experts, parts.shared);
  return seconds;
}

double replayed_policy_s(const BlockKernels& framework, const std::string& policy,
                         const LayerTime& layer) {
  if (framework.replayed_policy_s == nullptr) {
    throw std::logic_error("recompute policy without a time model: " + policy);
  }
  return framework.replayed_policy_s(policy, layer);
}

std::int64_t layers_in_group(const Recompute& recompute) {
  return recompute.method == RecomputeMethod::kUniform ? recompute.num_layers : 1;
}

}  // namespace

LayerReplay replay_of_parts(const LayerParts& parts) {
  const auto forward = [](const BlockTime& part) {
    return ReplayTime{.kernels_s = part.forward_s, .total_s = part.forward_total_s()};
  };
  return {.norms = forward(parts.norms),
          .projections = forward(parts.projections),
          .mla_up = forward(parts.mla_up),
          .attention = forward(parts.attention),
          .ffn = forward(parts.ffn),
          .routed = forward(parts.routed),
          .routed_activation = forward(parts.routed_activation),
          .shared = forward(parts.shared)};
}

LayerReplay replay_of(const BlockKernels& framework, const Job& job, const LayerSpec& layer,
                      const LayerParts& parts) {
  return framework.replay != nullptr ? framework.replay(job, layer, parts) : replay_of_parts(parts);
}

double replayed_s(const BlockKernels& framework, const Recompute& recompute,
                  const LayerTime& layer) {
  switch (recompute.granularity) {
    case RecomputeGranularity::kNone: return 0;
    case RecomputeGranularity::kFull:
      return layer.time.forward_total_s() - layer.replay.without_gradients_s -
             layer.replay.left_out_s / number(layers_in_group(recompute));
    case RecomputeGranularity::kSelective:
      return recompute.policy.empty() ? replayed_modules_s(recompute.modules, layer.replay)
                                      : replayed_policy_s(framework, recompute.policy, layer);
  }
  throw std::logic_error("replayed_s: unknown granularity");
}

}  // namespace shardplan
