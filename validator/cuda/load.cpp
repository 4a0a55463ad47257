#include "validator/cuda/load.h"

#include <cuda_bf16.h>

#include <cstring>

#include "kernels/pointwise/convert.h"
#include "kernels/pointwise/device_buffer.h"
#include "kernels/pointwise/random.h"
#include "validator/cuda/operations.h"
#include "validator/program/run_data.h"

namespace shardplan {

HostCopy::HostCopy(const DeviceView& view) : view_(view) {
  bytes_.resize(static_cast<std::size_t>(view.elements() * bytes_of(view.dtype)));
}

void HostCopy::fetch() {
  CUDA_CHECK(cudaMemcpy(bytes_.data(), view_.data, bytes_.size(), cudaMemcpyDeviceToHost));
}

void HostCopy::store() const {
  CUDA_CHECK(cudaMemcpy(view_.data, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice));
}

template <class T>
T HostCopy::read(std::int64_t element) const {
  T value;
  std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(element) * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void HostCopy::write(std::int64_t element, T value) {
  std::memcpy(bytes_.data() + static_cast<std::size_t>(element) * sizeof(T), &value, sizeof(T));
}

double HostCopy::at(std::int64_t element) const {
  switch (view_.dtype) {
    case DType::kFp32: return static_cast<double>(read<float>(element));
    case DType::kBf16: return static_cast<double>(__bfloat162float(read<__nv_bfloat16>(element)));
    default: return static_cast<double>(read<std::int32_t>(element));
  }
}

void HostCopy::set(std::int64_t element, double value) {
  switch (view_.dtype) {
    case DType::kFp32: write(element, static_cast<float>(value)); return;
    case DType::kBf16: write(element, __float2bfloat16_rn(static_cast<float>(value))); return;
    default: write(element, static_cast<std::int32_t>(value)); return;
  }
}

HostCopy& HostCopies::of(std::int64_t tensor) {
  const auto [at, is_new] = copies_.try_emplace(tensor, rank_.whole(tensor));
  if (is_new) {
    at->second.fetch();
  }
  return at->second;
}

// A copy from pageable memory may still be under way when its call returns (CUDA Runtime API, "API
// synchronization behavior"), and the streams of a rank do not wait for the default one.
void HostCopies::store() const {
  for (const auto& [tensor, copy] : copies_) { copy.store(); }
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void load_tensors(CudaRank& rank, const Tensors& tensors) {
  Tensors source = tensors;
  rank.clear();
  HostCopies copies(rank);
  for (const ParameterPart& part : rank.program().parameters) {
    Matrix& matrix = source.at(part.logical);
    for (const ParameterRange* range : {&part.weight, &part.master}) {
      HostCopy& copy = copies.of(range->tensor);
      for (std::int64_t e = range->begin; e < range->end; ++e) {
        copy.set(range->offset + e - range->begin, logical_element(matrix, part, e));
      }
    }
  }
  copies.store();
}

void load_random(CudaRank& rank, std::uint64_t seed) {
  constexpr float kDeviation = 0.02F;
  const ScopedStream stream;
  rank.clear();
  std::uint64_t number = 0;
  for (const ParameterPart& part : rank.program().parameters) {
    const std::uint64_t part_seed = (seed << 32) + number++;
    for (const ParameterRange* range : {&part.weight, &part.master}) {
      if (range->begin == range->end) {
        continue;
      }
      const DeviceView to = rank.elements(range->tensor, range->offset, range->end - range->begin);
      with_device_type(to.dtype, [&](auto type) {
        using T = typename decltype(type)::type;
        if (part.logical.ends_with("norm")) {
          fill(to.as<T>(), 1, to.elements(), stream);
        } else {
          fill_normal(to.as<T>(), kDeviation, part_seed, range->begin, to.elements(), stream);
        }
      });
    }
  }
  CUDA_CHECK(cudaStreamSynchronize(stream));
}

void fill_inputs(const CudaRank& rank, const Batch& batch) {
  HostCopies copies(rank);
  for_each_input(rank.program(), batch,
                 [&](std::int64_t tensor, std::int64_t row, std::int64_t value) {
                   copies.of(tensor).set(row, static_cast<double>(value));
                 });
  copies.store();
}

double loss_share(const CudaRank& rank) {
  const Program& program = rank.program();
  HostCopies copies(rank);
  double loss = speaks_for_loss(program) ? copies.of(program.loss).at(0) : 0;
  if (program.aux_loss >= 0) {  // every rank routed other tokens
    loss += copies.of(program.aux_loss).at(0);
  }
  return loss;
}

double gradient_norm(const CudaRank& rank) {
  HostCopies copies(rank);
  return copies.of(rank.program().clip).at(1);
}

std::optional<double> needed_buffer_factor(const CudaRank& rank) {
  const ExpertBound& bound = rank.program().expert_bound;
  if (bound.required < 0) {
    return std::nullopt;
  }
  HostCopies copies(rank);
  const auto rows = static_cast<std::int64_t>(copies.of(bound.required).at(0));
  return needed_buffer_factor(bound, rows);
}

}  // namespace shardplan
