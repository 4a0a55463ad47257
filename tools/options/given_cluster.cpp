#include "tools/options/given_cluster.h"

#include "search/space/resize.h"
#include "tools/options/options.h"

namespace shardplan {
namespace {

// Whole nodes, or a part of one node. `found`: what says the number.
void resize(ClusterSpec& cluster, std::int64_t num_gpus, const std::string& found) {
  const std::optional<ClusterSpec> other = resized(cluster, num_gpus);
  if (!other) {
    throw InputError(found + ", expected a multiple of the " +
                     std::to_string(cluster.gpus_per_node) + " GPUs of a node of " + cluster.name);
  }
  cluster = *other;
  cluster.name += " limited to " + std::to_string(num_gpus) + " GPUs";
}

}  // namespace

ClusterSpec cluster_of(const Options& options, const Library& library, std::int64_t of_launcher,
                       std::vector<std::string>& warnings) {
  ClusterSpec cluster = library.cluster(required_text(options, "cluster"));
  const std::int64_t num_gpus = count_or(options, "num-gpus", of_launcher);
  if (num_gpus > 0 && num_gpus != cluster.world_size()) {
    if (!given(options, "num-gpus")) {
      warnings.push_back("the run's launcher starts " + std::to_string(num_gpus) + " ranks, " +
                         cluster.name + " has " + std::to_string(cluster.world_size()) +
                         ": as many nodes of it as needed are assumed; --num-gpus says otherwise");
    }
    const std::string number = std::to_string(num_gpus);
    resize(cluster, num_gpus,
           given(options, "num-gpus") ? "--num-gpus: found " + number
                                      : text_or(options, "from", "") +
                                            ": found a launcher that starts " + number + " ranks");
  }
  if (given(options, "gpu-memory")) {
    cluster.memory_limit_bytes = count_or(options, "gpu-memory", 0);
  }
  return cluster;
}

}  // namespace shardplan
