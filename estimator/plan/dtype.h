// Data types of tensors: size and name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string_view>

namespace shardplan {

enum class DType { kFp32, kBf16, kFp16, kFp8, kInt64, kInt32, kBool };

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::int64_t bytes;
};

inline constexpr std::array<DTypeRow, 7> kDTypes = {{
    {.dtype = DType::kFp32, .name = "fp32", .bytes = 4},
    {.dtype = DType::kBf16, .name = "bf16", .bytes = 2},
    {.dtype = DType::kFp16, .name = "fp16", .bytes = 2},
    {.dtype = DType::kFp8, .name = "fp8", .bytes = 1},
    {.dtype = DType::kInt64, .name = "int64", .bytes = 8},
    {.dtype = DType::kInt32, .name = "int32", .bytes = 4},
    {.dtype = DType::kBool, .name = "bool", .bytes = 1},
}};

constexpr const DTypeRow& dtype_row(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) {
      return row;
    }
  }
  throw std::logic_error("dtype_row: unknown dtype");
}

constexpr std::int64_t bytes_of(DType dtype) {
  return dtype_row(dtype).bytes;
}
constexpr std::string_view name_of(DType dtype) {
  return dtype_row(dtype).name;
}
constexpr std::optional<DType> dtype_named(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace shardplan
