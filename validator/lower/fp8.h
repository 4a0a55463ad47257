// Which products of linear layers round their factors to fp8, and where rounded factors lie.
#pragma once

#include "validator/lower/lowering_state.h"

namespace shardplan {

// Which products of a linear layer round their factors to which formats, by fp8.cpp.
void in_fp8_forward(const Lowering& l, Operation& product);
void in_fp8_input_gradient(const Lowering& l, Operation& product);
void in_fp8_weight_gradient(const Lowering& l, Operation& product);
// Where a product's rounded factors lie while it runs.
void place_fp8_operands(Lowering& l);

}  // namespace shardplan
