#include "validator/cuda_load.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/cuda_check.h"
#include "validator/run_data.h"

namespace shardplan {

HostCopy::HostCopy(const DeviceView& view) : view_(view) {
  bytes_.resize(static_cast<std::size_t>(view.elements() * bytes_of(view.dtype)));
}

void HostCopy::fetch() {
  CUDA_CHECK(cudaMemcpy(bytes_.data(), view_.data, bytes_.size(), cudaMemcpyDeviceToHost));
}

void HostCopy::store_at(const DeviceView& view) const {
  CUDA_CHECK(cudaMemcpy(view.data, bytes_.data(),
                        static_cast<std::size_t>(view.elements() * bytes_of(view.dtype)),
                        cudaMemcpyHostToDevice));
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

void HostCopies::store() const {
  for (const auto& [tensor, copy] : copies_) { copy.store(); }
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
  constexpr std::int64_t kBlock = 1 << 20;  // elements, repeated
  constexpr double kDeviation = 0.02;
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0, kDeviation);
  std::map<DType, HostCopy> weights;
  std::map<DType, HostCopy> norms;
  for (const DType dtype : {DType::kFp32, DType::kBf16}) {
    const DeviceView shape{.data = nullptr, .dtype = dtype, .rows = 1, .cols = kBlock};
    HostCopy& random = weights.try_emplace(dtype, shape).first->second;
    HostCopy& ones = norms.try_emplace(dtype, shape).first->second;
    for (std::int64_t e = 0; e < kBlock; ++e) {
      random.set(e, normal(generator));
      ones.set(e, 1);
    }
  }
  rank.clear();
  for (const ParameterPart& part : rank.program().parameters) {
    const auto& blocks = part.logical.ends_with("norm") ? norms : weights;
    for (const ParameterRange* range : {&part.weight, &part.master}) {
      // The first block comes from the host, the others from the first.
      const std::int64_t size = range->end - range->begin;
      const auto run = [&](std::int64_t first) {
        return rank.elements(range->tensor, range->offset + first, std::min(kBlock, size - first));
      };
      for (std::int64_t done = 0; done < size; done += kBlock) {
        const DeviceView to = run(done);
        if (done == 0) {
          blocks.at(to.dtype).store_at(to);
        } else {
          CUDA_CHECK(cudaMemcpyAsync(to.data, run(0).data,
                                     static_cast<std::size_t>(to.elements() * bytes_of(to.dtype)),
                                     cudaMemcpyDeviceToDevice, nullptr));
        }
      }
    }
  }
  CUDA_CHECK(cudaStreamSynchronize(nullptr));
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
