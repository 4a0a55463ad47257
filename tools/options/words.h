// Words of the command line and of reports for what the estimator's tables do not name.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "data/read/json_message.h"
#include "estimator/plan/job.h"
#include "search/walk/search.h"

namespace shardplan {

inline constexpr std::array<NamedValue<MemoryBasis>, 4> kMemoryBases = {{
    {.value = MemoryBasis::kAllocated, .name = "allocated"},
    {.value = MemoryBasis::kReserved, .name = "reserved"},
    {.value = MemoryBasis::kRequired, .name = "required"},
    {.value = MemoryBasis::kDeviceUsed, .name = "device_used"},
}};
constexpr const auto& names_of(MemoryBasis) {
  return kMemoryBases;
}

// Types that gradients, main parameters and moments may have.
inline constexpr std::array<DType, 4> kStateDTypes = {DType::kFp32, DType::kBf16, DType::kFp16,
                                                      DType::kFp8};

inline std::vector<std::string> state_dtype_words() {
  std::vector<std::string> words;
  words.reserve(kStateDTypes.size());
  for (const DType dtype : kStateDTypes) { words.push_back(std::string(name_of(dtype))); }
  return words;
}

}  // namespace shardplan
