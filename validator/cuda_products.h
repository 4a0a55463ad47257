// The matrix products of a program on a GPU: their shapes, and which of cuBLASLt's algorithms is
// fastest for each.
#pragma once

#include <functional>
#include <string>

#include "kernels/gemm.h"
#include "validator/program.h"

namespace shardplan {

// Throws std::logic_error for operands that no product takes.
GemmShape product_shape(const Program& program, const Operation& operation);

// What tuning found of one product: seconds of what cuBLASLt expected to be fastest, and of what
// was.
struct TunedProduct {
  std::string name = {};
  double expected_s = 0;
  double best_s = 0;
  double flops = 0;
  std::size_t num_candidates = 0;
  std::size_t best = 0;  // index of the candidate
};

// Times up to `num_candidates` algorithms of every product of the program that `choices` lacks and
// adds the fastest to them; of equals the one that cuBLASLt put first. Random operands in memory of
// their own on the current device; about 0.4 s for each candidate. `report` hears of every product
// when it is there.
void tune_products(const Program& program, int num_candidates, GemmChoices& choices,
                   const std::function<void(const TunedProduct&)>& report);

}  // namespace shardplan
