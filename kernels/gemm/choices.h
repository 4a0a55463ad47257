// Which of cuBLASLt's algorithms every product runs on, as it was measured once: a file that runs
// read and tuning writes. With the same file, two runs add in the same order, bit for bit.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

namespace shardplan {

// An algorithm as cuBLASLt describes it (cublasLtMatmulAlgo_t): only the version that made it, on
// the GPU that it was made for, takes it back.
using GemmAlgorithm = std::array<std::uint64_t, 8>;

// By product, as Gemm names it: GPU, version of cuBLASLt, shape.
using GemmChoices = std::map<std::string, GemmAlgorithm>;

// $SHARDPLAN_PRODUCTS, or shardplan/products in $XDG_CACHE_HOME, or in ~/.cache; "" where none of
// these is set.
std::string gemm_choices_path();

// One product a line: its algorithm in hexadecimal, a space, its name. No file: nothing chosen.
// Throws std::runtime_error, naming file and line, for what cannot be read or written.
GemmChoices read_gemm_choices(const std::string& path);
void write_gemm_choices(const std::string& path, const GemmChoices& choices);

}  // namespace shardplan
