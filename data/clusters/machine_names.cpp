#include "data/clusters/machine_names.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "data/clusters/machine.h"
#include "data/clusters/spoken_cluster.h"
#include "data/gpus/gpu_key.h"
#include "data/read/json_message.h"

namespace shardplan {
namespace {

constexpr const char* kOwnGpu = "all: shardplan list gpus; a file of another: data/README.md";

GpuSpec gpu_of_file(const std::string& path, const Library& library) {
  const JsonFile& gpu = library.parse(path);
  return read_gpu(gpu.json, gpu.file);
}

std::string path_of_gpu(const std::string& id) {
  return "gpus/" + id + ".json";
}

// The words that name a GPU: ids and aliases of every file.
std::vector<std::string> gpu_words(const Library& library) {
  std::vector<std::string> words;
  for (const std::string& id : library.gpu_names()) {
    const GpuSpec spec = gpu_of_file(path_of_gpu(id), library);
    words.insert(words.end(), spec.aliases.begin(), spec.aliases.end());
    words.push_back(in_lower_case(id));
  }
  return words;
}

InputError not_covered(const std::string& found, const std::string& opening,
                       const std::string& reason) {
  return InputError(opening + "found \"" + shown(found, Encoding::kUnchecked) +
                        "\", which is not covered: " + reason,
                    kOwnGpu);
}

// So many GPUs in nodes as full as the usual ones, if they fill them.
std::string whole_nodes(std::int64_t total, std::int64_t gpus_per_node,
                        const std::string& machine) {
  if (total > gpus_per_node && total % gpus_per_node != 0) {
    return "";
  }
  const std::int64_t nodes = std::max<std::int64_t>(total / gpus_per_node, 1);
  return std::to_string(nodes) + "x" + std::to_string(total / nodes) + "-" + machine;
}

InputError no_whole_nodes(const SpokenCluster& spoken, std::int64_t gpus_per_node,
                          const std::string& machine, const std::string& opening) {
  const std::string total = std::to_string(spoken.total);
  const std::string node = std::to_string(gpus_per_node);
  std::string hint = "NODESxGPUS-GPU says both, as 2x" + node + "-" + machine;
  const std::int64_t nodes = (spoken.total + gpus_per_node - 1) / gpus_per_node;
  if (spoken.total % nodes == 0) {
    const std::string other = std::to_string(nodes) + "x" + std::to_string(spoken.total / nodes);
    hint += ", or " + other + "-" + machine + " for these " + total;
  }
  return InputError(
      opening + "found " + total + " GPUs of " + machine + ", which fill no whole nodes of " + node,
      hint);
}

}  // namespace

InputError unknown_gpu(const std::string& found, const std::string& opening,
                       const Library& library) {
  if (const std::string reason = why_not_covered(found); !reason.empty()) {
    return not_covered(found, opening, reason);
  }
  return InputError(opening + "found GPU \"" + shown(found, Encoding::kUnchecked) +
                        "\", expected one that `shardplan list gpus` has, also as nvidia-smi "
                        "prints it, or the path of its file" +
                        suggestion(in_lower_case(found), gpu_words(library)),
                    kOwnGpu);
}

InputError unknown_cluster(const std::string& found, const std::string& opening,
                           const Library& library) {
  for (const SpokenCluster& spoken : ways_to_read(in_lower_case(found))) {
    if (const std::string reason = why_not_covered(spoken.machine); !reason.empty()) {
      return not_covered(found, opening, reason);
    }
  }
  return InputError(
      opening + "found \"" + shown(found, Encoding::kUnchecked) +
          "\", expected NODESxGPUS-GPU such as 1x8-h200, a name that `shardplan list clusters` "
          "has, or the path of a file" +
          suggestion(in_lower_case(found), library.cluster_names()),
      "one node of 8: 1x8-h100; all GPUs: shardplan list gpus; a file of your own: data/README.md");
}

// Ids are file names; an alias is looked for only in files whose text holds the word.
std::string Library::gpu_path(const std::string& name) const {
  const std::string lower = in_lower_case(name);
  const std::vector<std::string> ids = gpu_names();
  for (const std::string& id : ids) {
    if (in_lower_case(id) == lower) {
      return path_of_gpu(id);
    }
  }
  for (const std::string& id : ids) {
    std::string path = path_of_gpu(id);
    if (text_of(path).find('"' + lower + '"') == std::string::npos) {
      continue;
    }
    const std::vector<std::string> aliases = gpu_of_file(path, *this).aliases;
    if (std::ranges::find(aliases, lower) != aliases.end()) {
      return path;
    }
  }
  return "";
}

std::string Library::spoken_gpu_path(const std::string& name) const {
  if (std::string path = gpu_path(name); !path.empty()) {
    return path;
  }
  const std::string key = gpu_key(name);
  for (const std::string& id : gpu_names()) {
    std::string path = path_of_gpu(id);
    const std::vector<std::string> aliases = gpu_of_file(path, *this).aliases;
    const bool is_alias = std::ranges::any_of(
        aliases, [&](const std::string& alias) { return gpu_key(alias) == key; });
    if (is_alias || gpu_key(id) == key) {
      return path;
    }
  }
  return "";
}

// "Standard_" opens the names of Azure's machines in its own lists.
std::string Library::cluster_path(const std::string& name) const {
  constexpr std::string_view kAzure = "standard_";
  const std::string word = name.starts_with(kAzure) ? name.substr(kAzure.size()) : name;
  for (const std::string& each : cluster_names()) {
    std::string path = "clusters/" + each + ".json";
    if (each == word) {
      return path;
    }
    if (text_of(path).find('"' + word + '"') == std::string::npos) {
      continue;
    }
    const JsonFile& file = parse(path);
    ObjectReader reader(file.json, file.file);
    const std::vector<std::string> aliases =
        reader.has("aliases") ? reader.strings("aliases") : std::vector<std::string>{};
    if (std::ranges::find(aliases, word) != aliases.end()) {
      return path;
    }
  }
  return "";
}

std::string Library::machine_named(const std::string& word) const {
  if (const std::string path = cluster_path(word); !path.empty()) {
    return std::filesystem::path(path).stem().string();
  }
  if (!gpu_path(word).empty()) {
    return word;
  }
  const std::string path = spoken_gpu_path(word);
  if (path.empty()) {
    return "";
  }
  const GpuSpec gpu = gpu_of_file(path, *this);
  return gpu.aliases.empty() ? in_lower_case(gpu.id) : gpu.aliases.front();
}

std::string Library::cluster_named(const std::string& word, const std::string& where) const {
  const std::string name = in_lower_case(word);
  for (const SpokenCluster& spoken : ways_to_read(name)) {
    const std::string machine = machine_named(spoken.machine);
    if (machine.empty()) {
      continue;
    }
    const bool is_cluster = has("clusters/" + machine + ".json");
    if (spoken.nodes > 0) {
      return std::to_string(spoken.nodes) + "x" + std::to_string(spoken.gpus_per_node) + "-" +
             machine;
    }
    if (is_cluster && spoken.total == 0) {
      return machine;
    }
    const std::int64_t gpus_per_node =
        (is_cluster ? cluster(machine) : usual_cluster(machine)).gpus_per_node;
    if (is_cluster) {  // so many machines
      return std::to_string(spoken.total) + "x" + std::to_string(gpus_per_node) + "-" + machine;
    }
    const std::int64_t total = spoken.total > 0 ? spoken.total : gpus_per_node;
    std::string nodes = whole_nodes(total, gpus_per_node, machine);
    if (nodes.empty()) {
      throw no_whole_nodes(spoken, gpus_per_node, machine, where.empty() ? "cluster: " : where);
    }
    return nodes;
  }
  return "";
}

}  // namespace shardplan
