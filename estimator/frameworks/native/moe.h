// Mixture-of-experts part of a native layer: its rows.
#pragma once

#include "estimator/frameworks/native/blocks.h"

namespace shardplan {

void add_native_moe(NativeBlock& block);

}  // namespace shardplan
