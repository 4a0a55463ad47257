// Where the CUDA driver puts what cudaMalloc asks for: of equal cached blocks the allocator takes
// the one with the lowest address.
#pragma once

#include <cstdint>
#include <map>

namespace shardplan {

// Observed in addresses of segments (driver 580, H200, sizes 2 MiB to 2 GiB): address space is used
// downwards in pieces of 32 MiB; what an allocation leaves of its pieces is given to the next one
// that fits, the lowest such rest first.
class DriverAddresses {
 public:
  std::int64_t take(std::int64_t bytes);
  void give_back(std::int64_t address, std::int64_t bytes);

 private:
  std::int64_t lowest_ = std::int64_t{1} << 47;  // user addresses end there
  std::map<std::int64_t, std::int64_t> rests_;   // bytes by address
};

}  // namespace shardplan
