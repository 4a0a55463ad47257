// The operations that the passes write, one function each.
#pragma once

#include <cstdint>
#include <string>

#include "validator/lower/lowering_state.h"

namespace shardplan {

// Specifications of tensors.
TensorSpec temporary(std::string name, std::int64_t rows, std::int64_t cols);
TensorSpec statistics(std::string name, std::int64_t rows, std::int64_t cols);  // fp32
TensorSpec kept(TensorSpec spec);                                               // as activation
TensorSpec exchanged(TensorSpec spec);  // as communication buffer

// Appends an operation, labelled "<phase>.<label>".
void emit(Lowering& l, Operation operation, const std::string& label);

// Whether a gradient holds something of this step already; from now on it does.
bool accumulates(Lowering& l, const View& gradient);

// Linear layers on row-major [tokens, features] matrices and [outputs, inputs] weights.
void linear(Lowering& l, const View& y, const View& x, const PlacedWeight& w,
            const std::string& label);
void linear_input_gradient(Lowering& l, const View& dx, const View& dy, const PlacedWeight& w,
                           const std::string& label);
void linear_weight_gradient(Lowering& l, const PlacedWeight& w, const View& dy, const View& x,
                            const std::string& label);

// These go piece by piece, too.
void rms_norm(Lowering& l, const View& y, const View& rstd, const View& x, const PlacedWeight& w,
              const std::string& label);
void add_rows(Lowering& l, const View& out, const View& x, const View& y, const std::string& label);
// out = dx + gradient through the norm; out may be dx.
void rms_norm_backward(Lowering& l, const View& out, const View& dx, const View& dy, const View& x,
                       const View& rstd, const PlacedWeight& w, const std::string& label);

}  // namespace shardplan
