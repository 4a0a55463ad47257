// Which packages run what mixes the tokens of a layer.
#pragma once

namespace shardplan::huggingface {

// Whose functions take the place of PyTorch's operators. Source: transformers 5.17
// integrations/hub_kernels.py use_kernel_func_from_hub_with_fallback, which looks for each function
// in its package where that can be imported.
struct Packages {
  bool scans = false;         // flash-linear-attention's and mamba_ssm's
  bool convolutions = false;  // causal_conv1d's
};

}  // namespace shardplan::huggingface
