// Attention of a native layer: its rows.
#pragma once

#include "estimator/frameworks/native/blocks.h"

namespace shardplan::native {

void add_native_norm(NativeBlock& block, const NativeNorm& norm);
BlockRow& add_output_gradient(NativeBlock& block, Step dies);
// With delayed weight gradients, that of a layer's output: its place waits for them, even where no
// weight gradient reads it.
void add_ffn_output_gradient(NativeBlock& block, Step last_use);

void add_native_attention(NativeBlock& block);

}  // namespace shardplan::native
