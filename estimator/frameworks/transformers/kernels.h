// The kernels of Hugging Face's decoder models under transformers' Trainer.
#pragma once

#include "estimator/time/block_kernels.h"

namespace shardplan::transformers {

extern const BlockKernels kKernels;

}  // namespace shardplan::transformers
