#include "estimator/frameworks/pieces/huggingface/mixers/notes.h"

#include <algorithm>

namespace shardplan::huggingface {
namespace {

bool has_only_convolutions(const ModelSpec& model) {
  return std::ranges::all_of(model.layers, [](const LayerSpec& layer) {
    return !layer.has_mamba_beside &&
           (layer.mixer == MixerKind::kShortConvolution || layer.mixer == MixerKind::kAttention);
  });
}

}  // namespace

std::string recurrence_assumption(const Job& job) {
  const auto by = [](bool is_package, const char* package) {
    return is_package
               ? std::string("by the package ") + package
               : std::string("by PyTorch's operators, as where ") + package + " cannot be imported";
  };
  const FrameworkProfile& profile = job.profile;
  const std::string convolutions =
      "convolutions run " + by(profile.convolution_kernels, "causal_conv1d") +
      (profile.convolution_kernels ? "" : " (--set convolution_kernels=true)");
  if (has_only_convolutions(job.model)) {
    return convolutions;
  }
  const bool is_delta = job.model.delta.key_heads > 0;
  const std::string scans =
      "recurrences run " + by(profile.mixer_kernels, is_delta ? "fla" : "mamba_ssm");
  if (!profile.mixer_kernels) {
    return scans +
           ", which keeps far less (--set mixer_kernels=true); what the host takes to "
           "launch the operators of every chunk is not in the step's time; " +
           convolutions;
  }
  return scans +
         (is_delta ? "; its 0.6.0 refuses the gated delta rule's backward on Hopper with "
                     "Triton 3.4 to 3.7.0 where tilelang is missing; "
                   : "; ") +
         convolutions;
}

}  // namespace shardplan::huggingface
