// Matrix product by cuBLASLt, row-major: out = op(a) * op(b), or added to out.
// Products of float run in float (no TF32), products of bf16 accumulate in float, products of fp8
// in float or, where sums are fast, in what the tensor cores hold.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gemm/choices.h"
#include "kernels/gemm/gemm_type.h"
#include "kernels/gemm/gradient_sum.h"

namespace shardplan {

enum class GemmLayout { kPlain, kTransposed };

// out [rows, columns], a [rows, inner] or, transposed, [inner, rows], b [inner, columns] or,
// transposed, [columns, inner]. A stride is the number of elements from one row of the stored
// matrix to the next. Rows of bf16 start at 16-byte addresses: strides are multiples of 8. Of fp8
// rows, columns and inner are multiples of 16, and on Hopper a is plain and b transposed; not both
// are e5m2.
struct GemmShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t inner = 0;
  GemmLayout a_layout = GemmLayout::kPlain;
  GemmLayout b_layout = GemmLayout::kPlain;
  std::int64_t a_stride = 0;
  std::int64_t b_stride = 0;
  std::int64_t out_stride = 0;
  GemmType in_type = GemmType::kBf16;
  GemmType out_type = GemmType::kBf16;  // bf16 in, float out: a gradient accumulator
  std::optional<GemmType> b_type = {};  // fp8: where it is not a's
  GradientSum sum = GradientSum::kOverwrite;
  bool sums_fast = false;  // fp8: about 14 bits of a sum are kept (DeepGEMM, README)
};

// fp8: what a and b are multiplied with, read on the device when the product runs; each in 16 bytes
// of its own, aligned to 16. nullptr: 1.
struct GemmScales {
  const float* a = nullptr;
  const float* b = nullptr;
};

// cuBLASLt's handle and the algorithms chosen for it; one for each thread that launches, made with
// the device current that it launches on.
class GemmLibrary {
 public:
  static std::string version();  // of the cuBLASLt that was loaded: "13.1.0"
  explicit GemmLibrary(GemmChoices choices = {});
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

 private:
  friend class Gemm;
  void* handle_ = nullptr;
  GemmChoices choices_;
  std::string platform_;  // GPU and version of cuBLASLt
};

// One product of a program: descriptors and algorithm are chosen once, here.
class Gemm {
 public:
  // The algorithm chosen for this product, else the one that cuBLASLt expects to be fastest.
  // Algorithms that need more than workspace_bytes are not considered; throws where none is left.
  Gemm(const GemmLibrary& library, const GemmShape& shape, std::int64_t workspace_bytes,
       const GemmScales& scales = {});
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // What choices are kept by: "NVIDIA H200, cuBLAS 13.1.0, bf16 to fp32 4096x28672x16384 ...".
  const std::string& name() const { return name_; }
  bool is_chosen() const { return is_chosen_; }  // by measurement

  // At most `count` of what cuBLASLt expects to be fastest, best first.
  std::vector<GemmAlgorithm> candidates(int count) const;
  void use(const GemmAlgorithm& algorithm);

  // kOverwrite does not read out. The workspace is aligned to 256 bytes and is not shared by
  // products that may run at the same time.
  void run(void* out, const void* a, const void* b, void* workspace, cudaStream_t stream) const;

 private:
  struct Descriptors;
  std::unique_ptr<Descriptors> descriptors_;
  std::string name_;
  bool is_chosen_ = false;
};

}  // namespace shardplan
