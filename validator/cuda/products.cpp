#include "validator/cuda/products.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "estimator/plan/number.h"
#include "kernels/gemm/quantize_fp8.h"
#include "kernels/pointwise/device_buffer.h"
#include "kernels/pointwise/random.h"
#include "validator/cuda/rank.h"
#include "validator/cuda/stopwatch.h"

namespace shardplan {
namespace {

// A card at the limit of its power lowers its clocks until they suit what runs, and then another
// algorithm is the fastest than in a short burst. So every candidate runs alone until the clocks
// have settled, and is measured after that.
constexpr double kSettleSeconds = 0.12;
constexpr double kMeasureSeconds = 0.25;
constexpr double kChunkSeconds = 0.03;  // between two looks at the clock

GemmType type_of(DType dtype) {
  if (dtype != DType::kFp32 && dtype != DType::kBf16) {
    throw std::logic_error("cuda: no product of " + std::string(name_of(dtype)));
  }
  return dtype == DType::kFp32 ? GemmType::kFloat : GemmType::kBf16;
}

const Tensor& tensor_of(const Program& program, const View& view) {
  return program.tensors.at(static_cast<std::size_t>(view.tensor));
}

// Random numbers for one operand.
class Operand {
 public:
  Operand(GemmType type, std::int64_t size, std::uint64_t seed, cudaStream_t stream)
      : memory_(size * bytes_of(type)) {
    if (type == GemmType::kFloat) {
      fill_normal(static_cast<float*>(data()), 1, seed, 0, size, stream);
    } else if (type == GemmType::kBf16) {
      fill_normal(static_cast<__nv_bfloat16*>(data()), 1, seed, 0, size, stream);
    } else {
      DeviceBuffer<__nv_bfloat16> values(size);
      DeviceBuffer<float> scales(2);
      fill_normal(values.data(), 1, seed, 0, size, stream);
      const std::int64_t columns = size / kFp8Multiple;
      quantize_fp8({.plain = static_cast<std::uint8_t*>(data()),
                    .amax = scales.data(),
                    .inverse_scale = scales.data() + 1},
                   type, values.data(), kFp8Multiple, columns, columns, stream);
      CUDA_CHECK(cudaStreamSynchronize(stream));
    }
  }
  void* data() { return memory_.data(); }

 private:
  static constexpr std::int64_t kFp8Multiple = 16;  // of sizes of products in fp8
  static std::int64_t bytes_of(GemmType type) {
    return type == GemmType::kFloat ? 4 : type == GemmType::kBf16 ? 2 : 1;
  }
  DeviceBuffer<char> memory_;
};

// Seconds of one launch among many.
double settled_s(Stopwatch& watch, const TimedCall& launch) {
  watch.batch_s(launch, 1);  // loads the kernel
  const std::int64_t chunk = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(kChunkSeconds / watch.batch_s(launch, 1)));
  const auto chunk_s = [&] { return number(chunk) * watch.batch_s(launch, chunk); };
  for (double spent = 0; spent < kSettleSeconds;) { spent += chunk_s(); }
  double measured_s = 0;
  std::int64_t count = 0;
  while (measured_s < kMeasureSeconds) {
    measured_s += chunk_s();
    count += chunk;
  }
  return measured_s / number(count);
}

std::int64_t stored_size(GemmLayout layout, std::int64_t rows, std::int64_t columns,
                         std::int64_t stride) {
  return (layout == GemmLayout::kPlain ? rows : columns) * stride;
}

// By candidate.
std::vector<double> time_candidates(Gemm& gemm, const GemmShape& s,
                                    const std::vector<GemmAlgorithm>& candidates,
                                    std::int64_t workspace_bytes) {
  const ScopedStream stream;
  Operand a(s.in_type, stored_size(s.a_layout, s.rows, s.inner, s.a_stride), 1, stream);
  Operand b(s.b_type.value_or(s.in_type), stored_size(s.b_layout, s.inner, s.columns, s.b_stride),
            2, stream);
  Operand out(s.out_type, s.rows * s.out_stride, 3, stream);
  DeviceBuffer<char> workspace(workspace_bytes);
  Stopwatch watch(stream);
  std::vector<double> seconds;
  for (const GemmAlgorithm& candidate : candidates) {
    gemm.use(candidate);
    seconds.push_back(settled_s(watch, [&](cudaStream_t on) {
      gemm.run(out.data(), a.data(), b.data(), workspace.data(), on);
    }));
  }
  return seconds;
}

GemmShape fp8_shape(const Program& program, const Operation& op) {
  const View& a = op.in.at(0);
  const View& out = op.out.at(0);
  GemmShape shape = fp8_product(*op.attributes.fp8, out.rows, out.cols,
                                op.attributes.transpose_a ? a.rows : a.cols);
  shape.out_stride = out.stride;
  shape.out_type = type_of(tensor_of(program, out).dtype);
  shape.sum = op.attributes.accumulate ? GradientSum::kAccumulate : GradientSum::kOverwrite;
  return shape;
}

// Throws std::logic_error for operands that no product takes.
GemmShape product_shape(const Program& program, const Operation& op) {
  const auto layout = [](bool turned) {
    return turned ? GemmLayout::kTransposed : GemmLayout::kPlain;
  };
  const View& a = op.in.at(0);
  const View& out = op.out.at(0);
  if (op.attributes.fp8) {
    return fp8_shape(program, op);
  }
  return {.rows = out.rows,
          .columns = out.cols,
          .inner = op.attributes.transpose_a ? a.rows : a.cols,
          .a_layout = layout(op.attributes.transpose_a),
          .b_layout = layout(op.attributes.transpose_b),
          .a_stride = a.stride,
          .b_stride = op.in.at(1).stride,
          .out_stride = out.stride,
          .in_type = type_of(tensor_of(program, a).dtype),
          .out_type = type_of(tensor_of(program, out).dtype),
          .sum = op.attributes.accumulate ? GradientSum::kAccumulate : GradientSum::kOverwrite};
}

}  // namespace

GemmType gemm_type_of(Fp8Format format) {
  return format == Fp8Format::kE4m3 ? GemmType::kE4m3 : GemmType::kE5m2;
}

GemmShape fp8_product(const Fp8Factors& factors, std::int64_t rows, std::int64_t columns,
                      std::int64_t inner) {
  return {.rows = rows,
          .columns = columns,
          .inner = inner,
          .b_layout = GemmLayout::kTransposed,
          .a_stride = inner,
          .b_stride = inner,
          .out_stride = columns,
          .in_type = gemm_type_of(factors.a),
          .b_type = gemm_type_of(factors.b),
          .sums_fast = factors.a == Fp8Format::kE4m3};
}

void tune_products(const Program& program, int num_candidates, GemmChoices& choices,
                   const std::function<void(const TunedProduct&)>& report) {
  const GemmLibrary library;
  DeviceBuffer<float> one(std::vector<float>(4, 1.0F));
  std::int64_t workspace_bytes = 0;
  for (const Tensor& tensor : program.tensors) {
    workspace_bytes = tensor.name == "product_workspace" ? tensor.bytes : workspace_bytes;
  }
  for (const Operation& op : program.operations) {
    if (op.kind != OpKind::kGemm) {
      continue;
    }
    const GemmShape shape = product_shape(program, op);
    const GemmScales scales =
        op.attributes.fp8 ? GemmScales{.a = one.data(), .b = one.data()} : GemmScales{};
    Gemm gemm(library, shape, workspace_bytes, scales);
    if (choices.contains(gemm.name())) {
      continue;
    }
    const std::vector<GemmAlgorithm> candidates = gemm.candidates(num_candidates);
    const std::vector<double> seconds = time_candidates(gemm, shape, candidates, workspace_bytes);
    const auto best = static_cast<std::size_t>(std::ranges::min_element(seconds) - seconds.begin());
    choices[gemm.name()] = candidates[best];
    report({.name = gemm.name(),
            .expected_s = seconds.front(),
            .best_s = seconds[best],
            .flops = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
                     static_cast<double>(shape.inner),
            .num_candidates = candidates.size(),
            .best = best});
  }
}

// One descriptor and algorithm for every product, before the first step.
void CudaRank::prepare_products(const GemmChoices& choices) {
  library_ = std::make_unique<GemmLibrary>(choices);
  for (std::size_t i = 0; i < program_.operations.size(); ++i) {
    if (program_.operations[i].kind == OpKind::kGemm) {
      products_[static_cast<std::int64_t>(i)] = std::make_unique<Gemm>(
          *library_, product_shape(program_, program_.operations[i]),
          product_workspace_.elements() * 4, prepare_scales(static_cast<std::int64_t>(i)));
    }
  }
}

std::string CudaRank::products_used() const {
  std::size_t num_chosen = 0;
  for (const auto& [operation, product] : products_) { num_chosen += product->is_chosen() ? 1 : 0; }
  return std::to_string(num_chosen) + " of " + std::to_string(products_.size()) +
         " on measured algorithms";
}

}  // namespace shardplan
