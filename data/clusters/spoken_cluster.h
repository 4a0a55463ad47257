// Clusters as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardplan {

// "16x8-h100": 16 nodes of 8 GPUs of a machine.
struct ShapedName {
  std::int64_t nodes = 0;
  std::int64_t gpus_per_node = 0;
  std::string machine;
};

// Exactly NODESxGPUS-MACHINE. Counts beyond 64 bits are the largest that they hold.
std::optional<ShapedName> parse_shaped_name(const std::string& name);

// One way to read a name: so many nodes of so many GPUs; where nodes are 0, so many GPUs, or
// machines, in all; where that is 0, too, the machine alone.
struct SpokenCluster {
  std::int64_t nodes = 0;
  std::int64_t gpus_per_node = 0;
  std::int64_t total = 0;
  std::string machine;
};

// The ways to read "1x8:h100", "8xh100", "gpu_8x_h100_sxm5", "h100 x 8" or "h100", in lower case,
// those that say most first. Whether there is such a machine is left to the caller.
std::vector<SpokenCluster> ways_to_read(const std::string& name);

}  // namespace shardplan
