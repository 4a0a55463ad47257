// Feed-forward part of a dense native layer: its rows.
#pragma once

#include "estimator/frameworks/native/blocks.h"

namespace shardplan::native {

void add_native_dense_ffn(NativeBlock& block);

}  // namespace shardplan::native
