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

std::string words_of(const ClusterSpec& cluster) {
  const std::string nodes =
      cluster.nodes == 1 ? "one node of " : std::to_string(cluster.nodes) + " nodes of ";
  return nodes + std::to_string(cluster.gpus_per_node) + " x " + cluster.gpu.id;
}

// Says what a word was understood as that is no name, and whether nodes and GPUs may have changed
// places.
void note_meaning(const std::string& word, const ClusterSpec& cluster, const Library& library,
                  std::vector<std::string>& warnings) {
  if (is_path(word)) {
    return;
  }
  if (cluster.name != in_lower_case(word)) {
    warnings.push_back("--cluster " + word + ": understood as " + cluster.name + ", " +
                       words_of(cluster));
  }
  const bool has_single_gpus = cluster.gpus_per_node == 1 && cluster.nodes > 1;
  if (has_single_gpus && cluster.nodes <= library.usual_cluster(cluster.gpu.id).gpus_per_node) {
    const std::size_t machine = cluster.name.find('-');
    warnings.push_back("--cluster " + word + ": " + std::to_string(cluster.nodes) +
                       " nodes of one GPU each; one node of them is 1x" +
                       std::to_string(cluster.nodes) + cluster.name.substr(machine));
  }
}

}  // namespace

std::string cluster_word(const Options& options, const Library& library) {
  if (!given(options, "gpu")) {
    return required_text(options, "cluster");
  }
  if (given(options, "cluster")) {
    throw InputError("--gpu: found --cluster beside it, expected one of them");
  }
  const std::string gpu = text_or(options, "gpu", "");
  const ClusterSpec usual = library.usual_cluster(gpu, "--gpu: ");
  return "1x" + std::to_string(usual.gpus_per_node) + "-" + gpu;
}

ClusterSpec cluster_of(const Options& options, const Library& library, std::int64_t of_launcher,
                       std::vector<std::string>& warnings) {
  const std::string word = cluster_word(options, library);
  ClusterSpec cluster = library.cluster(word);
  if (given(options, "cluster")) {
    note_meaning(word, cluster, library, warnings);
  }
  const std::int64_t of_run = of_launcher > 0 ? of_launcher : options.least_ranks;
  const std::int64_t num_gpus = count_or(options, "num-gpus", of_run);
  if (num_gpus > 0 && num_gpus != cluster.world_size()) {
    if (!given(options, "num-gpus") && of_launcher > 0) {
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
