// How bitsandbytes (0.50.2 optim/optimizer.py init_state) and torchao (0.18 optim/adam.py) keep
// moments of few bits.
#pragma once

#include <cstdint>

namespace shardplan::huggingface {

inline constexpr std::int64_t kMomentBlock = 256;    // elements that share a scale in fp32
inline constexpr std::int64_t kLeastOf8bit = 4096;   // elements; smaller tensors stay in 32 bits
inline constexpr std::int64_t kValuesOf8Bits = 256;  // their values in fp32, a table

// bitsandbytes: elements from which on a paged moment lies in managed memory (get_state_buffer).
inline constexpr std::int64_t kLeastPaged = 100'000;

}  // namespace shardplan::huggingface
