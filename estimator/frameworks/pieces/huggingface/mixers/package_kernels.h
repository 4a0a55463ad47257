// Kernels of the packages that run mixers (delta_kernels.h, mamba_kernels.h, convolution.h), and of
// PyTorch's operators around them.
#pragma once

#include "estimator/time/block_work.h"

namespace shardplan::huggingface {

// Each but for the projections, which all paths share; combined_scan_time has the output's product
// beside it, too.
BlockTime package_delta_time(const BlockContext& context);
BlockTime package_kimi_time(const BlockContext& context);
BlockTime combined_scan_time(const BlockContext& context);
BlockTime selective_scan_time(const BlockContext& context);
BlockTime package_convolution_time(const BlockContext& context);

}  // namespace shardplan::huggingface
