// What the host takes to launch mixers in place of attention: Triton's launcher and PyTorch's
// operators around it, one after the other.
#pragma once

#include "estimator/plan/host_table.h"
#include "estimator/plan/job.h"
#include "estimator/time/host_time.h"

namespace shardplan::huggingface {

// Kimi's mixer over a gated delta net, both less attention: data/measured/mixer_kernels_h200.json,
// host_again.
inline constexpr double kKimiOverDeltaNet = 1.2;

// PyTorch's delta rule walks rows and chunks one by one, of which no more is counted than of fla's;
// its scans were not measured.
inline HostCost mixer_launches(const Job& job, const LayerSpec& layer, const HostTable& table) {
  const bool is_kimi = layer.mixer == MixerKind::kKimiDelta;
  const bool is_delta = layer.mixer == MixerKind::kGatedDelta;
  const bool is_mamba = layer.mixer == MixerKind::kMamba2;
  HostCost cost;
  add(cost, is_kimi ? kKimiOverDeltaNet : is_delta ? 1 : 0, table.delta_net);
  if (job.profile.mixer_kernels) {
    add(cost, is_mamba || layer.has_mamba_beside ? 1 : 0, table.mamba);
  }
  add(cost, (is_kimi || is_delta) && job.model.qk_norm ? -1 : 0, table.head_norms);
  return cost;
}

}  // namespace shardplan::huggingface
