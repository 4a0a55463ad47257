// The matrix products of a program on a GPU: their shapes, and which of cuBLASLt's algorithms is
// fastest for each.
#pragma once

#include <functional>
#include <string>

#include "kernels/gemm/gemm.h"
#include "validator/program/program.h"

namespace shardplan {

GemmType gemm_type_of(Fp8Format format);

// A product in fp8 as the trainer runs it, out in bf16. Both factors are copies with the inner
// dimension contiguous. In forward the tensor cores' own sums are exact enough; gradients, whose
// first factor is e5m2, are summed in float (Transformer Engine, pytorch/module/base.py:
// _2X_ACC_FPROP False, _2X_ACC_DGRAD and _2X_ACC_WGRAD True).
GemmShape fp8_product(const Fp8Factors& factors, std::int64_t rows, std::int64_t columns,
                      std::int64_t inner);

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
