#include "tools/from/log_machine.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "tools/from/launcher_prefix.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMostRanks = std::int64_t{1} << 22;

// Names as torch.cuda.get_device_name and nvidia-smi print them. In tables of nvidia-smi two blanks
// end a name.
void add_gpus(LogMachine& machine, std::string_view line, std::int64_t number) {
  constexpr std::string_view kMaker = "NVIDIA ";
  constexpr std::size_t kMostGpus = 64;
  for (std::size_t at = line.find(kMaker); at != std::string_view::npos;
       at = line.find(kMaker, at + 1)) {
    std::string_view words = line.substr(at + kMaker.size());
    words = words.substr(0, words.find_first_of("|(\"',;:<>{}"));
    words = words.substr(0, words.find("  "));
    words = words.substr(0, words.find_last_not_of(" \t\r") + 1);  // npos + 1 is 0
    const bool is_new =
        std::ranges::find(machine.gpus, words, &PrintedGpu::words) == machine.gpus.end();
    if (!words.empty() && is_new && machine.gpus.size() < kMostGpus) {
      machine.gpus.push_back({.words = std::string(words), .line = number});
    }
  }
}

// "total capacity of 79.11 GiB" and its older spellings: oom_log.cpp.
void add_capacity(LogMachine& machine, std::string_view line, std::int64_t number) {
  if (machine.capacity || line.find("total capac") == std::string_view::npos) {
    return;
  }
  for (const std::string_view words : {"total capacity of ", "total capacty of "}) {
    machine.capacity = machine.capacity ? machine.capacity : size_after(line, words);
  }
  machine.capacity = machine.capacity ? machine.capacity : size_before(line, " total capacity");
  machine.capacity_line = machine.capacity ? number : 0;
}

// A product that is no more than kMostRanks, else 0.
std::int64_t bounded_product(std::int64_t one, std::int64_t other) {
  return one > 0 && other > 0 && other <= kMostRanks / one ? one * other : 0;
}

// core_v0.16.1 training/arguments.py: "using world size: 8, data-parallel size: 4, ..." of
// validate_args, "  world_size ...................................... 8" of _print_args.
// DeepSpeed 0.19.8 launcher/launch.py: "dist_world_size=8".
std::int64_t world_size_in(std::string_view line) {
  for (const std::string_view words : {"using world size: ", "dist_world_size="}) {
    if (const auto size = integer_after(line, words)) {
      return *size;
    }
  }
  constexpr std::string_view kArgument = " world_size ..";
  const std::size_t at = line.find(kArgument);
  if (at == std::string_view::npos) {
    return 0;
  }
  const std::string_view rest = line.substr(at + kArgument.size());
  return next_integer(rest.substr(std::min(rest.find_first_not_of('.'), rest.size()))).value_or(0);
}

// torchtitan distributed/parallel_dims.py: up to v0.2.0 "Building 2-D device mesh with ['pp',
// 'dp_shard'], [2, 4]", in v0.2.2 "Building device mesh with parallelism: pp=2, dp_replicate=1,
// dp_shard=4, cp=1, tp=1, ep=1, etp=1", of which experts take no ranks of their own.
std::int64_t mesh_size_in(std::string_view line) {
  const std::size_t at = line.find("device mesh with ");
  if (at == std::string_view::npos) {
    return 0;
  }
  std::int64_t ranks = 1;
  if (line.find("parallelism: ", at) != std::string_view::npos) {
    for (const std::string_view size : {" pp=", "dp_replicate=", "dp_shard=", " cp=", " tp="}) {
      ranks = bounded_product(ranks, integer_after(line, size).value_or(0));
    }
    return ranks;
  }
  const std::size_t sizes = line.find("], [", at);
  if (sizes == std::string_view::npos) {
    return 0;
  }
  for (std::size_t next = sizes + 3; next != std::string_view::npos && next < line.size();
       next = line.find(',', next + 1)) {
    ranks = bounded_product(ranks, next_integer(line.substr(next + 1)).value_or(0));
  }
  return ranks;
}

// What a word of a command says, "--nnodes 2" or "--nnodes=2"; 0: nothing, or no plain number.
std::int64_t count_behind(std::string_view line, std::string_view name) {
  const std::size_t at = line.find(name);
  if (at == std::string_view::npos) {
    return 0;
  }
  std::string_view rest = line.substr(at + name.size());
  rest.remove_prefix(std::min(rest.find_first_not_of("= "), rest.size()));
  const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r\\'\","));
  const bool is_number =
      !word.empty() && word.size() < 8 && std::all_of(word.begin(), word.end(), is_digit);
  return is_number ? next_integer(word).value() : 0;
}

// A command as `set -x` and launchers print it: torchrun's number of nodes is 1 where it stands not
// there (torch/distributed/run.py, get_args_parser), accelerate's processes are those of all nodes.
PrintedRanks ranks_of_command(std::string_view line) {
  PrintedRanks ranks{.source = "command"};
  for (const std::string_view name : {"--nproc_per_node", "--nproc-per-node"}) {
    ranks.per_node = std::max(ranks.per_node, count_behind(line, name));
  }
  if (ranks.per_node > 0) {
    const bool has_nodes = line.find("--nnodes") != std::string_view::npos;
    ranks.num = bounded_product(ranks.per_node, has_nodes ? count_behind(line, "--nnodes") : 1);
    return ranks;
  }
  if (line.find("accelerate") != std::string_view::npos) {
    ranks.num = std::min(count_behind(line, "--num_processes"), kMostRanks);
  }
  return ranks;
}

// transformers 5.17 trainer.py, _inner_training_loop, prints what a device, all of them and the
// steps of accumulation have; where no rank is inside another, these are the ranks.
class TrainerBatch {
 public:
  std::int64_t ranks_with(std::string_view line) {
    read(line, "Instantaneous batch size per device = ", per_device_);
    read(line, "Total train batch size (w. parallel, distributed & accumulation) = ", total_);
    const bool is_last = read(line, "Gradient Accumulation steps = ", steps_);
    const std::int64_t each = bounded_product(per_device_, steps_);
    return is_last && each > 0 && total_ % each == 0 ? std::min(total_ / each, kMostRanks) : 0;
  }

 private:
  static bool read(std::string_view line, std::string_view words, std::int64_t& number) {
    const std::size_t at = line.find(words);
    if (at == std::string_view::npos) {
      return false;
    }
    std::string digits(line.substr(at + words.size()));
    std::erase(digits, ',');
    number = next_integer(digits).value_or(0);
    return true;
  }

  std::int64_t per_device_ = 0;
  std::int64_t total_ = 0;
  std::int64_t steps_ = 0;
};

std::int64_t rank_of_prefix(std::string_view line) {
  std::int64_t highest = -1;
  for (const std::string_view tag : kRankTags) {
    for (std::size_t at = line.find(tag); at != std::string_view::npos;
         at = line.find(tag, at + 1)) {
      const std::string_view rest = line.substr(at + tag.size());
      const std::size_t end = rest.find_first_not_of("0123456789");
      const bool is_tag = end != std::string_view::npos && end > 0 && rest[end] == ']';
      const std::int64_t rank = is_tag ? next_integer(rest).value_or(-1) : -1;
      highest = rank < kMostRanks ? std::max(highest, rank) : highest;
    }
  }
  return highest;
}

// What the framework itself says goes before a command, which may be another run's.
void take_ranks(LogMachine& machine, PrintedRanks found, std::int64_t number) {
  const bool is_command = found.source == "command";
  const bool has_better =
      machine.ranks.num > 0 && is_command && machine.ranks.source != found.source;
  if (found.num < 1 || found.num > kMostRanks || has_better) {
    return;
  }
  const bool is_same = machine.ranks.num == found.num;
  const std::int64_t per_node = is_same ? machine.ranks.per_node : 0;
  found.per_node = found.per_node > 0 ? found.per_node : per_node;
  found.line = number;
  machine.ranks = std::move(found);
}

}  // namespace

LogMachine read_log_machine(TextFile& log) {
  LogMachine machine;
  TrainerBatch batch;
  std::int64_t number = 0;
  for (std::string line; log.next_line(line);) {
    ++number;
    add_gpus(machine, line, number);
    add_capacity(machine, line, number);
    machine.highest_rank = std::max(machine.highest_rank, rank_of_prefix(line));
    take_ranks(machine, ranks_of_command(line), number);
    take_ranks(machine, {.num = world_size_in(line), .source = "world size"}, number);
    take_ranks(machine, {.num = mesh_size_in(line), .source = "device mesh"}, number);
    take_ranks(machine, {.num = batch.ranks_with(line), .source = "batch of all devices"}, number);
  }
  return machine;
}

}  // namespace shardplan
