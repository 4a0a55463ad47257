// Kernels of PyTorch's ring attention (torch.distributed.tensor.experimental, _context_parallel)
// around those of attention itself, one an operator.
#pragma once

#include "estimator/time/elementwise.h"

namespace shardplan {

// Bytes per element of queries, and of keys and values.
struct RingKernels {
  Passes query;
  Passes key_value;
};

// Blocks are merged in fp32. Forward, per element of queries: every block cast to fp32 6, the
// result back 6; a block that is merged, of all queries or of half of them in turn, difference 12,
// product with a weight of the row 8, difference 12, and for halves cats of 8: 24 on average.
// Backward: zeros 4 and the result back 6; every block's gradient added, 10, or as half with a cat,
// 17; gradients of keys and values, of two elements each, are added, joined and sent in every step.
constexpr RingKernels eager_ring_merges(double ranks) {
  return {.query = {.forward = {.converted = 6 + 6 * (ranks + 1) / 2 + 24 * (ranks - 1)},
                    .backward = {.converted = 20 + 17 * (ranks - 1)}},
          .key_value = {.forward = {}, .backward = {.converted = 10 + 22 * ranks}}};
}

}  // namespace shardplan
