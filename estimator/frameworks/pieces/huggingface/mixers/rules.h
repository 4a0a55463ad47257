// Which runs the packages of mixers take, and which of them are described.
#pragma once

#include <algorithm>
#include <string>

#include "estimator/frameworks/pieces/huggingface/model_class.h"
#include "estimator/plan/job.h"
#include "estimator/validity/text.h"
#include "estimator/validity/unsupported.h"
#include "estimator/validity/validity.h"

namespace shardplan::huggingface {

inline bool has_mixer(const ModelSpec& model, MixerKind kind) {
  return std::ranges::any_of(model.layers,
                             [kind](const LayerSpec& layer) { return layer.mixer == kind; });
}
inline bool has_mamba2(const ModelSpec& model) {
  return has_mixer(model, MixerKind::kMamba2) ||
         std::ranges::any_of(model.layers, &LayerSpec::has_mamba_beside);
}

// What of a run mamba_ssm's function for Mamba-2 was not read for, or does not take; empty:
// nothing. It multiplies with the output projection's weight itself, which it takes as floats, and
// whose adapters it does not see. Models in evaluation, as a reference is, do not call it.
inline std::string unread_combined_scan(const Job& job) {
  const bool adapts_output = job.adapters.rank > 0 &&
                             job.adapters.is_on(LinearLayer::kMixerOutput) &&
                             !class_of(job.model).refuses_adapted_outputs;
  return job.quantized.is_on(LinearLayer::kMixerOutput) ? "out_proj in packed weights"
         : adapts_output                                ? "adapters on out_proj, which never run"
         : job.model.mamba.projection_bias              ? "biases of projections"
         : has_reference(job.profile.objective) ? "a reference model, which does not call it"
                                                : "";
}
inline constexpr ValidityRule kMixerKernelsAsRead = {
    .name = "unsupported: mixer_kernels",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.mixer_kernels
                     ? has_mamba2(job.model) && !unread_combined_scan(job).empty()
                     : has_mixer(job.model, MixerKind::kKimiDelta);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return job.profile.mixer_kernels
                     ? not_modelled(job, "mixer_kernels",
                                    "true with Mamba-2 and " + unread_combined_scan(job), "false")
                     : not_modelled(job, "mixer_kernels",
                                    "false (PyTorch's operators) with Kimi delta attention (" +
                                        job.model.family + ")",
                                    "true (--set mixer_kernels=true)");
        }};

// ssd_combined.py calls causal_conv1d_fwd_function, which is None without the package.
inline constexpr ValidityRule kScansNeedConvolutions = {
    .name = "mamba_ssm_needs_causal_conv1d",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.mixer_kernels && !job.profile.convolution_kernels &&
                 has_mamba2(job.model);
        },
    .explain =
        [](const Job&, const Plan&) {
          return std::string(
              "mixer_kernels true with convolution_kernels false: mamba_ssm's function for Mamba-2 "
              "calls causal_conv1d; valid: both, or neither");
        }};

// csrc/causal_conv1d.cpp: 2 to 4 tokens, and channels in eights.
inline std::int64_t convolved_channels(const ModelSpec& model) {
  const DeltaSpec& delta = model.delta;
  const MambaSpec& mamba = model.mamba;
  return has_mamba2(model)                      ? mamba.inner + 2 * mamba.groups * mamba.state
         : has_mixer(model, MixerKind::kMamba1) ? mamba.inner
         : has_mixer(model, MixerKind::kShortConvolution)
             ? model.hidden
             : 2 * delta.key_width() + delta.value_width();
}
inline std::int64_t convolved_tokens(const ModelSpec& model) {
  return has_mamba2(model) || has_mixer(model, MixerKind::kMamba1) ? model.mamba.convolution
         : has_mixer(model, MixerKind::kShortConvolution)          ? model.short_convolution.tokens
                                                                   : model.delta.convolution;
}
inline constexpr ValidityRule kConvolutionOfKernel = {
    .name = "convolution_of_causal_conv1d",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          const std::int64_t tokens = convolved_tokens(job.model);
          return job.profile.convolution_kernels && has_recurrences(job.model) &&
                 (tokens < 2 || tokens > 4 || convolved_channels(job.model) % 8 != 0);
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "convolution_kernels true with a convolution over " +
                 number_text(convolved_tokens(job.model)) + " tokens of " +
                 number_text(convolved_channels(job.model)) +
                 " channels, which causal_conv1d does not take; valid: 2 to 4 tokens, channels in "
                 "eights, or false";
        }};

// fla's kernels carry states of keys up to 256 wide (fla/ops/common/chunk_delta_h.py).
inline constexpr ValidityRule kRuleOfKernel = {
    .name = "delta_rule_of_fla",
    .reads = {},
    .broken =
        [](const Job& job, const Plan&) {
          return job.profile.mixer_kernels && job.model.delta.key_head_dim > 256;
        },
    .explain =
        [](const Job& job, const Plan&) {
          return "mixer_kernels true with keys " + number_text(job.model.delta.key_head_dim) +
                 " wide; valid: at most 256, or false";
        }};

}  // namespace shardplan::huggingface
