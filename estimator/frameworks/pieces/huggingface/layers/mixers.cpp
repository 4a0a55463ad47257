#include "estimator/frameworks/pieces/huggingface/layers/mixers.h"

#include "estimator/frameworks/pieces/eager/module.h"
#include "estimator/frameworks/pieces/huggingface/labels.h"
#include "estimator/frameworks/pieces/huggingface/layers/attention.h"

namespace shardplan::huggingface {

using eager::InRow;
using eager::Tensor;

namespace {

// Runs `mixer`, a function of the tape's graph, its weights, the input and its sizes, and the
// product behind it.
template <typename Weights, typename Widths, typename Mixer>
Tensor mixed_output(const LayerRun& run, Weights& weights, const Widths& widths, Mixer mixer,
                    const Tensor& input) {
  const InRow row(run.graph.tape, kRecurrenceRow);
  const Tensor output = mixer(run.graph, weights, input,
                              {.tokens = run.sizes.tokens,
                               .sequence = run.sizes.sequence,
                               .widths = widths,
                               .packages = run.packages()});
  return project(run.graph, weights.output, output);
}

Tensor delta_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  return mixed_output(run, layer.delta_net, run.job.model.delta, delta_net, input);
}

Tensor kimi_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  return mixed_output(run, layer.kimi_delta, run.job.model.delta, kimi_delta, input);
}

Tensor mamba_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  if (run.packages().scans) {
    const InRow row(run.graph.tape, kRecurrenceRow);
    return combined_mamba(run.graph, layer.mamba, input,
                          {.tokens = run.sizes.tokens,
                           .sequence = run.sizes.sequence,
                           .widths = run.job.model.mamba,
                           .packages = run.packages()});
  }
  return mixed_output(run, layer.mamba, run.job.model.mamba, mamba, input);
}

Tensor selective_output(const LayerRun& run, Layer& layer, const Tensor& input) {
  return mixed_output(run, layer.selective, run.job.model.mamba, selective_scan, input);
}

Tensor call_mamba(const LayerRun& run, Layer& layer, const Tensor& input) {
  return eager::call_module(run.graph, {&layer, "mamba", {}}, input,
                            [&](const Tensor& x) { return mamba_output(run, layer, x); });
}

// FalconH1DecoderLayer: the state space first; outputs are scaled and added.
Tensor mixed_twice(const LayerRun& run, Layer& layer, std::size_t place, const Shared& shared,
                   const Tensor& input) {
  const auto scaled = [&run](const Tensor& tensor) {
    return run.family.scales_parts ? eager::scale(run.graph, tensor) : tensor;
  };
  const Tensor of_states = scaled(call_mamba(run, layer, input));
  const Tensor of_attention = scaled(attention(run, layer, place, shared, scaled(input)));
  return eager::add(run.graph, of_states, of_attention);
}

}  // namespace

Tensor mixed(const LayerRun& run, Layer& layer, std::size_t place, const SharedByLayer& shared,
             const Tensor& input) {
  const LayerSpec& spec = run.job.model.layers[place];
  if (spec.has_mamba_beside) {
    return mixed_twice(run, layer, place, shared.of(spec), input);
  }
  if (spec.mixer == MixerKind::kGatedDelta) {
    return eager::call_module(run.graph, {&layer, "linear_attn", {}}, input,
                              [&](const Tensor& x) { return delta_output(run, layer, x); });
  }
  if (spec.mixer == MixerKind::kKimiDelta) {
    return eager::call_module(run.graph, {&layer, "self_attn", {}}, input,
                              [&](const Tensor& x) { return kimi_output(run, layer, x); });
  }
  if (spec.mixer == MixerKind::kMamba2) {
    return call_mamba(run, layer, input);
  }
  if (spec.mixer == MixerKind::kMamba1) {
    return eager::call_module(run.graph, {&layer, "mamba", {}}, input,
                              [&](const Tensor& x) { return selective_output(run, layer, x); });
  }
  if (spec.mixer == MixerKind::kShortConvolution) {
    return eager::call_module(run.graph, {&layer, "conv", {}}, input, [&](const Tensor& x) {
      const InRow row(run.graph.tape, kRecurrenceRow);
      return short_convolution(run.graph, layer.convolution, x,
                               {.sequence = run.sizes.sequence,
                                .taps = run.job.model.short_convolution.tokens,
                                .by_kernel = run.packages().convolutions});
    });
  }
  return attention(run, layer, place, shared.of(spec), input);
}

}  // namespace shardplan::huggingface
