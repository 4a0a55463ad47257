// The host's definition of an operation of experts in double precision, as the reference of its
// kernel.
#pragma once

#include <vector>

#include "tests/kernels/device.h"
#include "validator/host/moe.h"
#include "validator/host/ops.h"

namespace shardplan {

struct HostTensor {
  HostTensor(std::int64_t tensor_rows, std::int64_t tensor_cols)
      : rows(tensor_rows),
        cols(tensor_cols),
        values(static_cast<std::size_t>(tensor_rows * tensor_cols)) {}
  template <class T>
  HostTensor(std::int64_t tensor_rows, std::int64_t tensor_cols, const std::vector<T>& from)
      : HostTensor(tensor_rows, tensor_cols) {
    for (std::size_t i = 0; i < values.size(); ++i) { values[i] = to_double(from[i]); }
  }
  template <class T>
  std::vector<T> as() const {
    std::vector<T> converted;
    for (const double value : values) { converted.push_back(from_double<T>(value)); }
    return converted;
  }
  HostView<double> view() {
    return {.data = values.data(), .rows = rows, .cols = cols, .row_step = cols, .step = 1};
  }

  std::int64_t rows;
  std::int64_t cols;
  std::vector<double> values;
};

template <>
inline std::vector<std::int32_t> HostTensor::as<std::int32_t>() const {
  std::vector<std::int32_t> converted;
  for (const double value : values) { converted.push_back(static_cast<std::int32_t>(value)); }
  return converted;
}

// Null: absent.
inline void run_twin(OpKind kind, const OpAttributes& attributes,
                     const std::vector<HostTensor*>& in, const std::vector<HostTensor*>& out) {
  HostArguments<double> arguments{.attributes = attributes, .in = {}, .out = {}};
  const auto view = [](HostTensor* tensor) {
    return tensor == nullptr ? HostView<double>{} : tensor->view();
  };
  for (HostTensor* tensor : in) { arguments.in.push_back(view(tensor)); }
  for (HostTensor* tensor : out) { arguments.out.push_back(view(tensor)); }
  run_experts_on_host(kind, arguments);
}

// Of integers, and of floats that hold them.
template <class T>
std::int64_t num_unequal(const std::vector<T>& got, const std::vector<double>& want) {
  std::int64_t unequal = got.size() == want.size() ? 0 : 1;
  for (std::size_t i = 0; i < got.size() && i < want.size(); ++i) {
    unequal += static_cast<double>(got[i]) == want[i] ? 0 : 1;
  }
  return unequal;
}

}  // namespace shardplan
