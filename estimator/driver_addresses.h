// Where the CUDA driver puts what cudaMalloc asks for: of equal cached blocks the allocator takes
// the one with the lowest address.
#pragma once

#include <cstdint>
#include <vector>

namespace shardplan {

// Observed in addresses of segments (driver 580, H200, sizes 2 MiB to 2 GiB): address space is used
// downwards in pieces of 32 MiB; what an allocation leaves of its pieces is given to the next one
// that fits, the lowest such rest first.
class DriverAddresses {
 public:
  std::int64_t take(std::int64_t bytes);
  void give_back(std::int64_t address, std::int64_t bytes);

 private:
  // Rests of one size. The lowest, which is taken first and mostly came last, is the last one.
  struct SameSize {
    std::int64_t bytes = 0;
    std::vector<std::int64_t> addresses = {};  // falling
  };

  void add(std::int64_t address, std::int64_t bytes);
  bool remove(std::int64_t address, SameSize& rests);

  std::int64_t lowest_ = std::int64_t{1} << 47;  // user addresses end there
  std::vector<SameSize> rests_;                  // rising; rests are many, their sizes few
};

}  // namespace shardplan
