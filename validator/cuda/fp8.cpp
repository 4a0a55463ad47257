// Products in fp8: both factors are rounded into memory of the program, then multiplied.
#include <cuda_bf16.h>

#include <stdexcept>

#include "kernels/gemm/quantize_fp8.h"
#include "validator/cuda/operations.h"
#include "validator/cuda/products.h"

namespace shardplan {
namespace {

// Scales: of either factor its largest value, and what its fp8 values are multiplied with.
constexpr std::int64_t kScaleElements = kFp8ScaleBytes / 4 / 4;  // four scales of floats
float* amax_of(const DeviceView& memory, std::int64_t factor) {
  return memory.as<float>() + 2 * factor * kScaleElements;
}
float* inverse_scale_of(const DeviceView& memory, std::int64_t factor) {
  return amax_of(memory, factor) + kScaleElements;
}

// Where the factors lie: the second one at the beginning, where pieces of tokens find the weight;
// at the end the first one, or what is kept of it, where the next product finds it as its own.
struct Places {
  std::uint8_t* first = nullptr;
  std::uint8_t* second = nullptr;
  std::uint8_t* kept = nullptr;  // nullptr: nothing is kept
};
Places places_of(const DeviceView& memory, const Operation& op) {
  auto* const begin = memory.as<std::uint8_t>();
  const std::int64_t a = round_up(op.in[0].elements(), kTensorAlignment);
  std::uint8_t* const last = begin + memory.elements() - a;
  std::uint8_t* const second = begin + kFp8ScaleBytes;
  return op.attributes.fp8_keeps ? Places{.first = last - a, .second = second, .kept = last}
                                 : Places{.first = last, .second = second};
}

void round_factor(const Fp8Matrix& out, Fp8Format format, const DeviceView& x,
                  cudaStream_t stream) {
  with_device_type(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    quantize_fp8(out, gemm_type_of(format), x.as<const T>(), x.rows, x.cols, x.stride, stream);
  });
}

}  // namespace

GemmScales CudaRank::prepare_scales(std::int64_t index) {
  const Operation& op = program_.operations[static_cast<std::size_t>(index)];
  if (!op.attributes.fp8) {
    return {};
  }
  if (!fp8_operands_.present()) {
    fp8_operands_ = find("fp8_operands");
  }
  const Places places = places_of(fp8_operands_, op);
  if (places.first < places.second + op.in[1].elements()) {
    throw std::logic_error(place_of(program_, index) + ": fp8_operands is too small");
  }
  return {.a = inverse_scale_of(fp8_operands_, 0), .b = inverse_scale_of(fp8_operands_, 1)};
}

// Hopper's products in fp8 take both factors with the inner dimension contiguous: [rows, inner] and
// [columns, inner].
void OperationLauncher::multiply_in_fp8(const Call& call) const {
  const OpAttributes& a = call.op.attributes;
  const DeviceView& memory = rank_.fp8_operands_;
  const Places places = places_of(memory, call.op);
  if (a.fp8_finds != Fp8Found::kColumns) {
    round_factor({.plain = a.transpose_a ? nullptr : places.first,
                  .transposed = a.transpose_a ? places.first : places.kept,
                  .amax = amax_of(memory, 0),
                  .inverse_scale = inverse_scale_of(memory, 0)},
                 a.fp8->a, call.in[0], call.stream);
  }
  if (a.fp8_finds != Fp8Found::kWeight) {
    round_factor({.plain = a.transpose_b ? places.second : nullptr,
                  .transposed = a.transpose_b ? nullptr : places.second,
                  .amax = amax_of(memory, 1),
                  .inverse_scale = inverse_scale_of(memory, 1)},
                 a.fp8->b, call.in[1], call.stream);
  }
  rank_.products_.at(call.index)
      ->run(call.out[0].data, places.first, places.second, rank_.product_workspace_.data,
            call.stream);
}

}  // namespace shardplan
