#include "tools/options/machine_of_log.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "data/gpus/gpu_key.h"
#include "data/read/json_message.h"
#include "data/read/text_file.h"
#include "tools/from/log_machine.h"

namespace shardplan {
namespace {

// A GPU of the library, and what of the log says that it is this one.
struct FoundGpu {
  std::string id;
  std::string because;
};

// A card's total capacity differs by the driver's release: of one H100 logs have 79.10 to 79.65
// GiB.
constexpr double kSameCapacity = 0.01;

double difference_to(const PrintedBytes& capacity, const GpuSpec& gpu) {
  const auto bytes = static_cast<double>(gpu.memory_bytes);
  return std::abs(static_cast<double>(capacity.middle()) - bytes) / bytes;
}

// The GPU that the first words name, as many of them as name one; "" where none do.
std::string gpu_of_words(const std::string& words,
                         const std::vector<std::pair<std::string, std::string>>& ids_of_keys) {
  constexpr std::size_t kMostWords = 8;
  std::istringstream stream(words);
  std::vector<std::string> openings;
  for (std::string word; openings.size() < kMostWords && stream >> word;) {
    openings.push_back(openings.empty() ? word : openings.back() + " " + word);
  }
  for (auto opening = openings.rbegin(); opening != openings.rend(); ++opening) {
    const auto found = std::ranges::find(ids_of_keys, gpu_key(*opening),
                                         &std::pair<std::string, std::string>::first);
    if (found != ids_of_keys.end()) {
      return found->second;
    }
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> ids_by_keys(const std::vector<GpuSpec>& gpus) {
  std::vector<std::pair<std::string, std::string>> keys;
  for (const GpuSpec& gpu : gpus) {
    keys.emplace_back(gpu_key(gpu.id), gpu.id);
    for (const std::string& alias : gpu.aliases) { keys.emplace_back(gpu_key(alias), gpu.id); }
  }
  return keys;
}

// The first that a line names; of several the one with the capacity of the message.
std::optional<FoundGpu> named_gpu(const LogMachine& machine, const std::vector<GpuSpec>& gpus) {
  const std::vector<std::pair<std::string, std::string>> keys = ids_by_keys(gpus);
  std::optional<FoundGpu> first;
  for (const PrintedGpu& printed : machine.gpus) {
    const std::string id = gpu_of_words(printed.words, keys);
    if (id.empty()) {
      continue;
    }
    FoundGpu found = {.id = id, .because = "line " + std::to_string(printed.line) + " names it"};
    const auto spec = std::ranges::find(gpus, id, &GpuSpec::id);
    if (!machine.capacity || difference_to(*machine.capacity, *spec) <= kSameCapacity) {
      return found;
    }
    first = first ? first : std::move(found);
  }
  return first;
}

// The shorter a GPU's first alias, the more usual it is: "a100" of A100-SXM-80GB, "a100-pcie".
std::string spoken_name(const GpuSpec& gpu) {
  return gpu.aliases.empty() ? in_lower_case(gpu.id) : gpu.aliases.front();
}

// By the total capacity of a message. Of those that it cannot tell apart the newest architecture,
// then the nearest capacity, then the most usual name.
std::optional<FoundGpu> gpu_of_capacity(const LogMachine& machine,
                                        const std::vector<GpuSpec>& gpus) {
  if (!machine.capacity) {
    return std::nullopt;
  }
  std::vector<const GpuSpec*> near;
  for (const GpuSpec& gpu : gpus) {
    if (difference_to(*machine.capacity, gpu) <= kSameCapacity) {
      near.push_back(&gpu);
    }
  }
  const auto order_of = [&](const GpuSpec* gpu) {
    constexpr double kStep = 5e-4;  // H100-SXM and H100-PCIe differ by less
    const std::string name = spoken_name(*gpu);
    return std::tuple(-gpu->compute_capability,
                      std::llround(difference_to(*machine.capacity, *gpu) / kStep), name.size(),
                      name);
  };
  std::ranges::sort(near, {}, order_of);
  if (near.empty()) {
    return std::nullopt;
  }
  std::string because = "the total capacity " + machine.capacity->text + " in line " +
                        std::to_string(machine.capacity_line);
  for (std::size_t i = 1; i < near.size(); ++i) {
    because += (i == 1 ? "; as large: " : ", ") + near[i]->id;
  }
  return FoundGpu{.id = near.front()->id, .because = because};
}

void refuse_uncovered(const LogMachine& machine, const std::string& file) {
  for (const PrintedGpu& printed : machine.gpus) {
    if (const std::string reason = why_not_covered(printed.words); !reason.empty()) {
      throw InputError(place(file, printed.line, "") + "found NVIDIA " +
                           shown(printed.words, Encoding::kUnchecked) +
                           ", which is not covered: " + reason,
                       "all: shardplan list gpus; a file of another: data/README.md");
    }
  }
}

std::optional<FoundGpu> found_gpu(const LogMachine& machine, const Library& library,
                                  const std::string& file) {
  std::vector<GpuSpec> gpus;
  for (const std::string& id : library.gpu_names()) { gpus.push_back(library.gpu(id)); }
  std::optional<FoundGpu> found = named_gpu(machine, gpus);
  found = found ? found : gpu_of_capacity(machine, gpus);
  if (!found) {
    refuse_uncovered(machine, file);
  }
  return found;
}

// As few nodes as hold the ranks, none with more than the usual number.
std::int64_t num_nodes(std::int64_t ranks, const PrintedRanks& told, std::int64_t usual) {
  if (told.per_node > 0 && ranks % told.per_node == 0) {
    return ranks / told.per_node;
  }
  std::int64_t nodes = (ranks + usual - 1) / usual;
  while (ranks % nodes != 0) { ++nodes; }
  return nodes;
}

// One more than the highest rank, as many as the sizes of the plan that are given ask for, and
// whole nodes of them.
std::int64_t least_ranks(const Options& options, const LogMachine& machine, std::int64_t usual) {
  std::int64_t unit = 1;
  for (const char* const size : {"tp", "pp", "cp", "dp"}) { unit *= count_or(options, size, 1); }
  const auto whole = [](std::int64_t number, std::int64_t of) {
    return (number + of - 1) / of * of;
  };
  const std::int64_t ranks = whole(machine.highest_rank + 1, unit);
  return ranks > usual ? whole(ranks, usual) : ranks;
}

void set_option(Options& options, const char* name, std::string value) {
  options.values[name] = {std::move(value)};
}

// How many ranks there were, where no option says so; what was taken, in words.
std::string take_ranks(Options& options, const LogMachine& machine, const ClusterSpec& usual) {
  const PrintedRanks& ranks = machine.ranks;
  const std::int64_t each = usual.gpus_per_node;
  if (ranks.num > 0) {
    const std::int64_t nodes = num_nodes(ranks.num, ranks, each);
    const std::string shape = std::to_string(nodes) + "x" + std::to_string(ranks.num / nodes);
    if (given(options, "gpu") || given(options, "from")) {  // before the number of a launcher
      set_option(options, "num-gpus", std::to_string(ranks.num));
    }
    if (!given(options, "gpu")) {
      set_option(options, "cluster", shape + "-" + spoken_name(usual.gpu));
    }
    return std::to_string(ranks.num) + " ranks (" + ranks.source + " in line " +
           std::to_string(ranks.line) + "), " + shape;
  }
  if (machine.highest_rank < 0) {
    return "no number of ranks, so one node of " + std::to_string(each);
  }
  options.least_ranks = least_ranks(options, machine, each);
  return "at least " + std::to_string(options.least_ranks) +
         (options.least_ranks == 1 ? " rank" : " ranks") + " (the highest that writes to it is " +
         std::to_string(machine.highest_rank) + ")";
}

}  // namespace

Options with_machine_of_log(Options options, const std::string& log_path, const Library& library,
                            std::vector<std::string>& notes) {
  const bool says_gpu = given(options, "gpu");
  const bool says_ranks = given(options, "num-gpus");
  if (given(options, "cluster") || given(options, "case") || (says_gpu && says_ranks)) {
    return options;
  }
  TextFile log(log_path);
  const LogMachine machine = read_log_machine(log);
  std::string taken;
  std::string name = text_or(options, "gpu", "");
  if (!says_gpu) {
    const std::optional<FoundGpu> gpu = found_gpu(machine, library, log.name());
    if (!gpu) {
      return options;
    }
    name = gpu->id;
    taken = gpu->id + " (" + gpu->because + ")";
  }
  const ClusterSpec usual = library.usual_cluster(name, "--gpu: ");
  if (!says_ranks) {
    taken += (taken.empty() ? "" : ", ") + take_ranks(options, machine, usual);
  }
  if (!says_gpu && !given(options, "cluster")) {
    set_option(options, "gpu", spoken_name(usual.gpu));
  }
  notes.push_back("from the log: " + taken + "; " +
                  (says_ranks ? "--gpu NAME"
                   : says_gpu ? "--num-gpus N"
                              : "--cluster NODESxGPUS-GPU") +
                  " says otherwise");
  return options;
}

}  // namespace shardplan
