// Seconds of single kernels on one GPU: matrix products, attention, memory-bound work.
#pragma once

#include <cstdint>
#include <span>

#include "estimator/plan/cluster_spec.h"
#include "estimator/plan/plan.h"

namespace shardplan {

// Dense peak of the precision's matrix products.
double peak_flops_per_s(const GpuSpec& gpu, Precision precision);

// What a linear layer multiplies: measured rates tell the passes apart. kAccumulated: a weight
// gradient added to fp32.
enum class GemmPass { kForward, kInputGradient, kWeightGradient, kAccumulated };

// `count` independent products [m, k] x [k, n], one launch.
struct ProductShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t count = 1;
  GemmPass pass = GemmPass::kForward;

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
           static_cast<double>(count);
  }
};
// bf16, fp16 and fp8 from measured rates where there are some: between the sizes along straight
// lines of logarithms; a side shorter than any measured takes as long as the shortest.
double gemm_s(const GpuSpec& gpu, Precision precision, const ProductShape& shape);

// The same of fp32 tensors that tensor cores round to TF32 as they read them: half as fast as bf16
// ones (NVIDIA's whitepapers of A100, H100 and Blackwell), with the bytes of fp32. Before A100 no
// tensor core does.
double tf32_gemm_s(const GpuSpec& gpu, const ProductShape& shape);

// Rates of kAccumulated were measured.
bool measures_accumulation(const GpuSpec& gpu, Precision precision);

// `count` products of `rows` rows in one launch of the trainer's own kernels; needs measured rates.
bool measures_grouped(const GpuSpec& gpu);
double grouped_gemm_s(const GpuSpec& gpu, const ProductShape& shape, std::int64_t rows);

// Queries of a tile, of FlashAttention 2 and 3, cuDNN and ours.
inline constexpr double kAttentionTileRows = 128;

// Fused causal attention on one rank. `pairs` counts the (query, key) pairs of one head.
struct AttentionWork {
  double pairs = 0;
  std::int64_t heads = 0;
  std::int64_t qk_dim = 0;
  std::int64_t v_dim = 0;
  std::int64_t length = 0;         // of a sequence, or of a chunk that sees itself alone
  std::int64_t window = 0;         // keys a query sees at most, fewer than `length`; 0: no window
  std::int64_t heads_of_call = 0;  // of all its sequences; 0: enough to fill the GPU
  bool is_flash2 = false;          // FlashAttention 2; else what is fastest on the GPU

  // Two products per pair and head: q k^T and p v.
  double forward_flops() const {
    return 2 * pairs * static_cast<double>(heads) * static_cast<double>(qk_dim + v_dim);
  }
};
double attention_forward_s(const GpuSpec& gpu, const AttentionWork& work);
double attention_backward_s(const GpuSpec& gpu, const AttentionWork& work);

// Of the multiprocessors, the share that tiles of one length keep busy until the last is done, one
// row of them for each head; heads 0: enough to fill the GPU. The last of a row takes as long as
// the others, however few its queries.
double busy_share(const GpuSpec& gpu, double queries, double heads);

// Of fused kernels.
double memory_bound_s(const GpuSpec& gpu, double bytes);

// Seconds of kernels that run in turn, a few milliseconds each.
struct KernelMix {
  double products_s = 0;
  double attention_s = 0;
  double memory_bound_s = 0;  // at nearly the rate of a copy
  double light_s = 0;         // below the limit of power at the highest clock
};

// By what measured times of products and attention are multiplied among other kernels. A GPU at its
// limit of power lowers its clock until the mean over what it runs meets the limit: products cost
// the most, and run faster between attention and memory-bound kernels than between products, where
// their rates were measured.
struct ClockFactors {
  double products = 1;
  double attention = 1;
};
ClockFactors clock_factors(const GpuSpec& gpu, const KernelMix& mix, std::int64_t qk_dim);

// Whether they may differ from 1.
bool measures_clocks(const GpuSpec& gpu);

// The value of a curve at a size: straight lines over log(size), constant beyond the ends.
double value_at(std::span<const CurvePoint> curve, double size);

// Whether gemm_s rests on measured rates.
bool is_measured(const GpuSpec& gpu, Precision precision);

// Products, attention and memory-bound work rest on rates measured on this GPU.
bool is_calibrated(const GpuSpec& gpu);

}  // namespace shardplan
