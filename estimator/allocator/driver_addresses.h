// Where the CUDA driver puts what cudaMalloc asks for: of equal cached blocks the allocator takes
// the one with the lowest address.
#pragma once

#include <cstdint>
#include <vector>

#include "estimator/allocator/sorted_arrays.h"

namespace shardplan {

// Observed in addresses of segments (driver 580, H200, sizes 2 MiB to 2 GiB): address space is used
// downwards in pieces of 32 MiB; what an allocation leaves of its pieces is given to the next one
// that fits, the lowest such rest first.
class DriverAddresses {
 public:
  std::int64_t take(std::int64_t bytes);
  void give_back(std::int64_t address, std::int64_t bytes);

 private:
  struct Rest {
    std::int64_t address = 0;
    std::int64_t bytes = 0;
    friend bool operator<(const Rest& a, const Rest& b) { return a.address > b.address; }
  };
  struct SameSize {
    std::int64_t bytes = 0;
    SortedArrays<std::int64_t> addresses = {};  // never none
  };

  void add(const Rest& rest);
  void remove(const Rest& rest);

  std::int64_t lowest_ = std::int64_t{1} << 47;  // user addresses end there
  SortedArrays<Rest> rests_;                     // the highest first, which ends below an address
  std::vector<SameSize> sizes_;                  // rising; rests are many, their sizes few
};

}  // namespace shardplan
