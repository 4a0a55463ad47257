#include "validator/cuda_backend.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/cuda_check.h"

namespace shardplan {
namespace {

// A whole tensor on the host, element by element as double.
class HostCopy {
 public:
  explicit HostCopy(const DeviceView& view) : view_(view) {
    bytes_.resize(static_cast<std::size_t>(view.elements() * bytes_of(view.dtype)));
  }
  void fetch() {
    CUDA_CHECK(cudaMemcpy(bytes_.data(), view_.data, bytes_.size(), cudaMemcpyDeviceToHost));
  }
  void store() const { store_at(view_); }
  // The first elements of this copy to another place of the same type.
  void store_at(const DeviceView& view) const {
    CUDA_CHECK(cudaMemcpy(view.data, bytes_.data(),
                          static_cast<std::size_t>(view.elements() * bytes_of(view.dtype)),
                          cudaMemcpyHostToDevice));
  }
  double at(std::int64_t element) const {
    switch (view_.dtype) {
      case DType::kFp32: return static_cast<double>(read<float>(element));
      case DType::kBf16: return static_cast<double>(__bfloat162float(read<__nv_bfloat16>(element)));
      default: return static_cast<double>(read<std::int32_t>(element));
    }
  }
  void set(std::int64_t element, double value) {
    switch (view_.dtype) {
      case DType::kFp32: write(element, static_cast<float>(value)); return;
      case DType::kBf16: write(element, __float2bfloat16_rn(static_cast<float>(value))); return;
      default: write(element, static_cast<std::int32_t>(value)); return;
    }
  }

 private:
  template <class T>
  T read(std::int64_t element) const {
    T value;
    std::memcpy(&value, bytes_.data() + static_cast<std::size_t>(element) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void write(std::int64_t element, T value) {
    std::memcpy(bytes_.data() + static_cast<std::size_t>(element) * sizeof(T), &value, sizeof(T));
  }

  DeviceView view_;
  std::vector<unsigned char> bytes_;
};

double& logical_element(Matrix& matrix, const ParameterPart& part, std::int64_t element) {
  const std::int64_t row = element / part.cols;
  const std::int64_t col = element % part.cols;
  return part.transposed ? at(matrix, part.first_row + col, part.first_col + row)
                         : at(matrix, part.first_row + row, part.first_col + col);
}

// body(index) on a thread for each index; the first exception is thrown again.
void on_threads(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<std::exception_ptr> errors(count);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (...) { errors[i] = std::current_exception(); }
    });
  }
  for (std::thread& thread : threads) { thread.join(); }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

// Copies of one tensor by index, fetched when first asked for.
class HostCopies {
 public:
  explicit HostCopies(const CudaRank& rank) : rank_(rank) {}
  HostCopy& of(std::int64_t tensor) {
    const auto [at, is_new] = copies_.try_emplace(tensor, rank_.whole(tensor));
    if (is_new) {
      at->second.fetch();
    }
    return at->second;
  }
  void store() const {
    for (const auto& [tensor, copy] : copies_) { copy.store(); }
  }

 private:
  const CudaRank& rank_;
  std::map<std::int64_t, HostCopy> copies_;
};

void fill_inputs(const CudaRank& rank, const Batch& batch) {
  const Program& program = rank.program();
  const auto fill = [&](std::int64_t tensor, const std::vector<std::int64_t>& values,
                        std::int64_t first_sequence) {
    if (tensor < 0) {
      return;
    }
    HostCopy copy(rank.whole(tensor));
    std::int64_t row = 0;
    for (const TokenRun& run : program.token_order) {
      const std::int64_t begin =
          (first_sequence + run.sequence) * batch.sequence_length + run.first_position;
      for (std::int64_t i = 0; i < run.count; ++i) {
        copy.set(row++, static_cast<double>(values.at(static_cast<std::size_t>(begin + i))));
      }
    }
    copy.store();
  };
  for (const MicrobatchInputs& inputs : program.inputs) {
    fill(inputs.ids, batch.tokens, inputs.first_sequence);
    fill(inputs.targets, batch.targets, inputs.first_sequence);
  }
}

// Every tp rank has the whole sum; the first of each group speaks for it.
bool speaks_for_loss(const Program& program) {
  return program.loss >= 0 && std::ranges::all_of(program.groups, [&](const Group& group) {
           return group.kind != GroupKind::kTp || group.ranks.front() == program.rank;
         });
}

}  // namespace

CudaBackend::CudaBackend(const std::vector<Program>& programs, CudaPrecision precision) {
  int devices = 0;
  CUDA_CHECK(cudaGetDeviceCount(&devices));
  if (static_cast<std::size_t>(devices) < programs.size()) {
    throw std::runtime_error("cuda backend: found " + std::to_string(devices) +
                             " GPUs, expected one for each of " + std::to_string(programs.size()) +
                             " ranks");
  }
  // One id for each kind and set of ranks: groups of two kinds may have the same members.
  std::map<std::pair<GroupKind, std::vector<std::int64_t>>, ncclUniqueId> ids;
  for (const Program& program : programs) {
    for (const Group& group : program.groups) {
      if (!ids.contains({group.kind, group.ranks})) {
        ids[{group.kind, group.ranks}] = new_communicator_id();
      }
    }
  }
  ranks_.resize(programs.size());
  on_threads(programs.size(), [&](std::size_t i) {
    CUDA_CHECK(cudaSetDevice(static_cast<int>(i)));
    std::vector<std::unique_ptr<CudaCommunicator>> groups;
    for (const Group& group : programs[i].groups) {
      const auto index = std::ranges::find(group.ranks, programs[i].rank) - group.ranks.begin();
      groups.push_back(std::make_unique<CudaCommunicator>(
          ids.at({group.kind, group.ranks}), static_cast<std::int64_t>(group.ranks.size()), index));
    }
    ranks_[i] = std::make_unique<CudaRank>(
        precision == CudaPrecision::kFloat ? widened(programs[i]) : programs[i],
        static_cast<int>(i), std::move(groups));
  });
}

void CudaBackend::load(const Tensors& tensors) {
  shapes_ = tensors;
  for (auto& [name, matrix] : shapes_) {
    std::ranges::fill(matrix.values, std::numeric_limits<double>::quiet_NaN());
  }
  Tensors source = tensors;
  for (const std::unique_ptr<CudaRank>& rank : ranks_) {
    rank->use_device();
    rank->clear();
    HostCopies copies(*rank);
    for (const ParameterPart& part : rank->program().parameters) {
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
  num_steps_ = 0;
}

void CudaBackend::load_random(std::uint64_t seed) {
  constexpr std::int64_t kBlock = 1 << 22;  // elements, repeated
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
  on_threads(ranks_.size(), [&](std::size_t i) {
    const CudaRank& rank = *ranks_[i];
    ranks_[i]->use_device();
    ranks_[i]->clear();
    for (const ParameterPart& part : rank.program().parameters) {
      const auto& blocks = part.logical.ends_with("norm") ? norms : weights;
      for (const ParameterRange* range : {&part.weight, &part.master}) {
        for (std::int64_t done = 0; done < range->end - range->begin; done += kBlock) {
          const std::int64_t count = std::min(kBlock, range->end - range->begin - done);
          const DeviceView to = rank.elements(range->tensor, range->offset + done, count);
          blocks.at(to.dtype).store_at(to);
        }
      }
    }
  });
  num_steps_ = 0;
}

double CudaBackend::step(const Batch& batch, double learning_rate) {
  ++num_steps_;
  on_threads(ranks_.size(), [&](std::size_t i) {
    ranks_[i]->use_device();
    fill_inputs(*ranks_[i], batch);
    ranks_[i]->launch_step(num_steps_, learning_rate);
    ranks_[i]->synchronize();
  });
  double loss = 0;
  for (const std::unique_ptr<CudaRank>& rank : ranks_) {
    if (speaks_for_loss(rank->program())) {
      rank->use_device();
      HostCopy copy(rank->whole(rank->program().loss));
      copy.fetch();
      loss += copy.at(0);
    }
  }
  return loss;
}

std::int64_t CudaBackend::device_used_bytes(std::int64_t rank) const {
  ranks_.at(static_cast<std::size_t>(rank))->use_device();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<std::int64_t>(total_bytes - free_bytes);
}

Tensors CudaBackend::collected(ParameterRange ParameterPart::*range) const {
  Tensors tensors = shapes_;
  for (const std::unique_ptr<CudaRank>& rank : ranks_) {
    rank->use_device();
    HostCopies copies(*rank);
    for (const ParameterPart& part : rank->program().parameters) {
      const ParameterRange& where = part.*range;
      const HostCopy& copy = copies.of(where.tensor);
      Matrix& matrix = tensors.at(part.logical);
      for (std::int64_t e = where.begin; e < where.end; ++e) {
        logical_element(matrix, part, e) = copy.at(where.offset + e - where.begin);
      }
    }
  }
  for (const auto& [name, matrix] : tensors) {
    if (std::ranges::any_of(matrix.values, [](double value) { return std::isnan(value); })) {
      throw std::logic_error("no rank holds some element of " + name + ", or it is no number");
    }
  }
  return tensors;
}

}  // namespace shardplan
