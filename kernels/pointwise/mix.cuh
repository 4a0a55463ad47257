// Random bits by counter. Device code only.
#pragma once

#include <cstdint>

namespace shardplan {

// SplitMix64 (Steele et al., OOPSLA 2014): its odd constant, which keeps the counters of different
// seeds apart, and its finalizer, which makes 64 well mixed bits of every counter.
inline constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15ULL;

__device__ inline std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace shardplan
