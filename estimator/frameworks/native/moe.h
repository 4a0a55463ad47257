// Mixture-of-experts part of a native layer: its rows.
#pragma once

#include "estimator/frameworks/native/blocks.h"

namespace shardplan::native {

void add_native_moe(NativeBlock& block);

}  // namespace shardplan::native
