// What a product's factors are made of.
#pragma once

namespace shardplan {

// kE4m3, kE5m2: the two 8-bit floating-point formats of Micikevicius et al., FP8 formats for deep
// learning, arXiv 2209.05433, table 1.
enum class GemmType { kFloat, kBf16, kE4m3, kE5m2 };

}  // namespace shardplan
