// Products in fp8 and what stands before them.
#pragma once

#include "tools/bench/kernels.h"

namespace shardplan {

void bench_fp8(Bench& bench);

}  // namespace shardplan
