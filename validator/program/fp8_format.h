// The two 8-bit floating-point formats of Micikevicius et al., FP8 formats for deep learning, arXiv
// 2209.05433, table 1: e4m3 to 448 for what forward multiplies, e5m2 to 57,344 for gradients.
#pragma once

namespace shardplan {

enum class Fp8Format { kE4m3, kE5m2 };

// Of the two factors of a product.
struct Fp8Factors {
  Fp8Format a = Fp8Format::kE4m3;
  Fp8Format b = Fp8Format::kE4m3;
};

}  // namespace shardplan
