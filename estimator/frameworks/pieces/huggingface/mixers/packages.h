// Which packages run what mixes the tokens of a layer.
#pragma once

namespace shardplan::huggingface {

// Whose functions take the place of PyTorch's operators. Source: transformers 5.17
// integrations/hub_kernels.py use_kernel_func_from_hub_with_fallback, which looks for each function
// in its package where that can be imported.
struct KernelTuning;
struct Packages {
  bool scans = false;              // flash-linear-attention's and mamba_ssm's
  bool convolutions = false;       // causal_conv1d's
  KernelTuning* tuning = nullptr;  // of mamba_ssm's kernels; none: they are tuned
};

// Which kernels have been timed: a process tunes those of mamba_ssm when they run first, fla's are
// kept on disk (triton 3.6 runtime/autotuner.py; fla-core 0.6.0 utils/env.py FLA_CACHE_RESULTS).
struct KernelTuning {
  bool forward = false;
  bool backward = false;
};

}  // namespace shardplan::huggingface
