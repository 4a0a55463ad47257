// Where the CUDA driver puts what cudaMalloc asks for: of equal cached blocks the allocator takes
// the one with the lowest address.
#pragma once

#include <cstdint>
#include <map>
#include <set>

namespace shardplan {

// Observed in addresses of segments (driver 580, H200, sizes 2 MiB to 2 GiB): address space is used
// downwards in pieces of 32 MiB; what an allocation leaves of its pieces is given to the next one
// that fits, the lowest such rest first.
class DriverAddresses {
 public:
  std::int64_t take(std::int64_t bytes);
  void give_back(std::int64_t address, std::int64_t bytes);

 private:
  void add(std::int64_t address, std::int64_t bytes);
  void remove(std::int64_t address, std::int64_t bytes);

  std::int64_t lowest_ = std::int64_t{1} << 47;  // user addresses end there
  // Rests are many, their sizes few: the lowest that fits is the first of one of the sizes.
  std::map<std::int64_t, std::int64_t> rests_;                // bytes by address
  std::map<std::int64_t, std::set<std::int64_t>> addresses_;  // the same by bytes
};

}  // namespace shardplan
