#include "tools/from/shell/launch.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "data/read/input_error.h"
#include "data/read/json_message.h"
#include "tools/from/trainer_command.h"

namespace shardplan {
namespace {

using Words = std::vector<std::string>;

// Options that only a training has.
const Words kTrainingArguments = {"--num-layers",         "--hidden-size",
                                  "--micro-batch-size",   "--tensor-model-parallel-size",
                                  "--seq-length",         "--job.config_file",
                                  "--job.config-file",    "--use-checkpoint-args",
                                  "--model_name_or_path", "--tensor_model_parallel_size",
                                  "--micro_batch_size"};

bool is_training_argument(const std::string& word) {
  return std::ranges::find(kTrainingArguments, word.substr(0, word.find('='))) !=
         kTrainingArguments.end();
}

// The program: the last .py file before the training's arguments, since a launcher may be one too
// ("launch.py pretrain_gpt.py --num-layers 4"), but not an option's value; else the first; or the
// module behind "-m" of a training.
Words::const_iterator program_of(const Words& words) {
  const auto sizes = std::ranges::find_if(words, is_training_argument);
  auto found = words.end();
  for (auto each = words.begin(); each != words.end(); ++each) {
    const bool is_value = each != words.begin() && (each - 1)->starts_with("--");
    if (each->ends_with(".py") && (found == words.end() || (each < sizes && !is_value)) &&
        (found == words.end() || sizes != words.end())) {
      found = each;
    }
  }
  if (found == words.end()) {
    found = std::ranges::find(words, "axolotl.cli.train");
  }
  if (found == words.end() && sizes != words.end()) {
    for (auto each = words.begin(); each + 1 < sizes; ++each) {
      const bool launches = (each + 1)->starts_with("torch.distributed");
      if (*each == "-m" && !launches) {
        found = each + 1;
      }
    }
  }
  return found;
}

constexpr std::int64_t kMostRanks = std::int64_t{1} << 22;  // and nodes, and GPUs

// 0 for what is no count; kMostRanks + 1 for any that is larger.
std::int64_t count_in(const std::string& text) {
  std::int64_t count = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result read = std::from_chars(text.data(), end, count);
  if (read.ec == std::errc::result_out_of_range && read.ptr == end && text.front() != '-') {
    count = kMostRanks + 1;
  }
  return read.ptr == end && count > 0 ? std::min(count, kMostRanks + 1) : 0;
}

InputError too_many(const std::string& place, const std::string& option, const std::string& found) {
  return InputError(place + ": " + option + ": found " + shown(found, Encoding::kUnchecked) +
                    ", expected an integer from 1 to " + std::to_string(kMostRanks));
}

// What an option says: 0 if it is there without a known count.
struct Count {
  bool given = false;
  std::int64_t count = 0;
  std::string text = "";  // "--nnodes $N"
};

// Words, and where they stand: "run.sh:12".
struct PlacedWords {
  Words words;
  std::string place;
};

// "--nproc_per_node 8", "--nproc-per-node=8", "-N 4", "-N4"; "gpu:h100:8" counts 8.
Count option_count(const PlacedWords& placed, const Words& names) {
  const Words& words = placed.words;
  Count found;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    std::ranges::replace(word, '_', '-');
    for (const std::string& name : names) {
      std::string text;
      if (word == name) {
        text = i + 1 < words.size() ? words[i + 1] : "";
      } else if (word.starts_with(name + "=")) {
        text = words[i].substr(name.size() + 1);
      } else if (name.size() == 2 && word.starts_with(name) && word.size() > 2 &&
                 count_in(word.substr(2)) > 0) {
        text = word.substr(2);
      } else {
        continue;
      }
      found = {.given = true,
               .count = count_in(text.substr(text.rfind(':') + 1)),
               .text = std::string(name).append(" ").append(text)};
      if (found.count > kMostRanks) {
        throw too_many(placed.place, name, text);
      }
    }
  }
  return found;
}

Words split(const std::string& text) {
  Words words;
  std::size_t start = 0;
  while ((start = text.find_first_not_of(" \t", start)) != std::string::npos) {
    const std::size_t end = std::min(text.find_first_of(" \t", start), text.size());
    words.push_back(text.substr(start, end - start));
    start = end;
  }
  return words;
}

const Words kProcesses = {"--num-processes"};  // of accelerate
const Words kNodes = {"--nodes", "-N"};
const Words kTasks = {"--ntasks", "-n"};
const Words kTasksPerNode = {"--ntasks-per-node"};
const Words kGpusPerNode = {"--gpus-per-node", "--gres"};

Words batch_words(const std::vector<std::string>& comments) {
  Words words;
  for (const std::string& comment : comments) {
    for (std::string& word : split(comment.substr(std::string_view("#SBATCH").size()))) {
      if (word.starts_with('#')) {
        break;
      }
      words.push_back(std::move(word));
    }
  }
  return words;
}

// The first that says something: srun's own options, then the job's.
std::int64_t count_of(const PlacedWords& own, const PlacedWords& job, const Words& names) {
  const Count count = option_count(own, names);
  return count.given ? count.count : option_count(job, names).count;
}

bool is_launched_by(const Words& launcher, const Words& programs) {
  return std::ranges::any_of(launcher, [&](const std::string& word) {
    return std::ranges::any_of(programs,
                               [&](const std::string& program) { return word.ends_with(program); });
  });
}

// Ranks, and what states them without a known number.
struct Ranks {
  std::int64_t count = 0;
  std::string open = "";
};

Ranks ranks_of(const Count& stated) {
  return {.count = stated.count, .open = stated.given && stated.count == 0 ? stated.text : ""};
}

// torchrun: ranks of a node, times nodes.
Ranks product(const Count& per_node, const Count& launched, std::int64_t job_nodes) {
  if (per_node.count == 0) {
    return ranks_of(per_node);
  }
  const std::int64_t nodes = !launched.given ? 1 : launched.count > 0 ? launched.count : job_nodes;
  return nodes > 0 ? Ranks{.count = per_node.count * nodes} : ranks_of(launched);
}

// As many processes as it says, or as Slurm has tasks.
Ranks ranks_of_mpi(const PlacedWords& launcher, const PlacedWords& job) {
  const Count processes = option_count(launcher, {"-np", "-n", "--np"});
  const Count per_node = option_count(launcher, {"-N", "-npernode", "--npernode", "-ppn"});
  const Count nodes = option_count(job, kNodes);
  const Count tasks = option_count(job, kTasks);
  if (processes.given) {
    return ranks_of(processes);
  }
  if (per_node.given) {
    return product(per_node, {.given = true, .count = nodes.count, .text = per_node.text}, 0);
  }
  return {.count =
              tasks.count > 0 ? tasks.count : nodes.count * option_count(job, kTasksPerNode).count};
}

// deepspeed --include localhost:0,1,2,3, of several hosts with '@' between them (DeepSpeed
// launcher/runner.py, parse_resource_filter); 0 where it names no GPUs.
std::int64_t num_included(const Words& launcher) {
  const auto option = std::ranges::find(launcher, "--include");
  if (option == launcher.end() || option + 1 == launcher.end()) {
    return 0;
  }
  const std::string& hosts = *(option + 1);
  const std::int64_t slots = std::ranges::count(hosts, ':');
  const std::int64_t all = std::ranges::count(hosts, '@') + 1;
  return slots == all ? slots + std::ranges::count(hosts, ',') : 0;
}

Ranks num_gpus_of(const PlacedWords& launcher, const PlacedWords& job, std::int64_t node_gpus) {
  const std::int64_t nodes = count_of(launcher, job, kNodes);
  Count per_node = option_count(launcher, {"--nproc-per-node", "--num-gpus"});
  if (per_node.text.ends_with(" gpu") || per_node.text.ends_with(" auto")) {
    per_node.count = node_gpus;
  }
  if (per_node.given) {
    return product(per_node, option_count(launcher, {"--nnodes", "--num-nodes"}), nodes);
  }
  if (const std::int64_t included = num_included(launcher.words); included > 0) {
    return {.count = included};
  }
  const Count all = option_count(launcher, kProcesses);
  if (all.given) {
    return ranks_of(all);
  }
  if (is_launched_by(launcher.words, {"mpirun", "mpiexec"})) {
    return ranks_of_mpi(launcher, job);
  }
  const bool is_slurm = is_launched_by(launcher.words, {"srun"});
  const PlacedWords own = is_slurm ? launcher : PlacedWords{};
  const std::int64_t tasks = count_of(own, job, kTasks);
  if (is_slurm && tasks > 0) {
    return {.count = tasks};
  }
  const std::int64_t tasks_per_node = count_of(own, job, kTasksPerNode);
  const std::int64_t gpus_per_node = count_of(own, job, kGpusPerNode);
  // One process per GPU; fewer tasks than GPUs start the others themselves.
  return {.count = nodes * std::max(tasks_per_node, gpus_per_node)};
}

// Commands that start torchrun or accelerate themselves: "megatron sft", "swift sft",
// "llamafactory-cli train", "trl sft". The last word of their program; the end where it is none.
Words::const_iterator own_launcher(const Words& words) {
  const auto command = trainer_command(words);
  return command == words.end() ? command : command + 1;
}

// "/env/bin/trl", "sft" -> "trl sft".
std::string name_of_command(Words::const_iterator task) {
  const std::string& program = *(task - 1);
  return program.substr(program.rfind('/') + 1) + " " + *task;
}

// What these say is what torchrun is told (ms-swift swift/cli/main.py, get_torchrun_args;
// LLaMA-Factory launcher.py).
Ranks ranks_of_environment(const ShellCommand& command, std::int64_t node_gpus) {
  const auto count = [&](const char* name) {
    const auto found = command.environment.find(name);
    if (found == command.environment.end()) {
      return Count{};
    }
    const std::int64_t ranks = count_in(found->second);
    if (ranks > kMostRanks) {
      throw too_many(command.place, name, found->second);
    }
    return Count{.given = true, .count = ranks, .text = std::string(name) + "=" + found->second};
  };
  Count per_node = count("NPROC_PER_NODE");
  const Count nodes = count("NNODES");
  if (!per_node.given && nodes.given) {
    per_node = {.given = true, .count = node_gpus, .text = nodes.text};
  }
  return product(per_node, nodes, 0);
}

// CUDA_VISIBLE_DEVICES=0,1: how many; 0 where it is not there or no list of numbers.
std::int64_t num_visible(const ShellCommand& command) {
  const auto found = command.environment.find("CUDA_VISIBLE_DEVICES");
  const bool is_list = found != command.environment.end() && !found->second.empty() &&
                       found->second.find_first_not_of("0123456789,") == std::string::npos;
  return is_list ? std::ranges::count(found->second, ',') + 1 : 0;
}

// A Trainer's that nothing else says: as many as it sees. ms-swift starts one process unless
// NPROC_PER_NODE, which may come from outside, says otherwise.
Ranks ranks_unsaid(const ShellCommand& command, const Launch& launch) {
  const std::int64_t visible = num_visible(command);
  if (launch.program.starts_with("swift ")) {
    return visible > 0 ? Ranks{.count = 1} : Ranks{.open = "NPROC_PER_NODE"};
  }
  const bool is_trainer = starts_trainer(launch) || launch.program.starts_with("axolotl ");
  return {.count = is_trainer ? visible : 0};
}

// Every command that starts a Python program with arguments, in order; the same one once.
std::vector<Launch> launches_of(const ShellScript& script, std::int64_t node_gpus) {
  PlacedWords job = {.words = batch_words(script.comments), .place = ""};
  std::vector<Launch> launches;
  for (const ShellCommand& command : script.commands) {
    const auto own = own_launcher(command.words);
    const bool starts_itself = own != command.words.end();
    const auto program = starts_itself ? own : program_of(command.words);
    if (program == command.words.end() || program + 1 == command.words.end()) {
      continue;
    }
    Launch launch{.launcher = command.launcher,
                  .program = starts_itself ? name_of_command(program) : *program,
                  .arguments = {program + 1, command.words.end()},
                  .place = command.place,
                  .line = command.line,
                  .environment = command.environment};
    launch.launcher.insert(launch.launcher.end(), command.words.begin(), program);
    job.place = command.place;
    const PlacedWords launcher = {.words = launch.launcher, .place = command.place};
    const PlacedWords words = {.words = launch.arguments, .place = command.place};
    Ranks ranks = is_trl_program(launch.program) ? ranks_of(option_count(words, kProcesses))
                  : starts_itself                ? ranks_of_environment(command, node_gpus)
                                                 : num_gpus_of(launcher, job, node_gpus);
    if (ranks.count > kMostRanks) {
      throw too_many(command.place, "ranks of the launcher", std::to_string(ranks.count));
    }
    if (ranks.count == 0 && ranks.open.empty()) {
      ranks = ranks_unsaid(command, launch);
    }
    launch.num_gpus = ranks.count;
    launch.open_ranks = ranks.open;
    const bool known = std::ranges::any_of(launches, [&](const Launch& each) {
      return each.program == launch.program && each.arguments == launch.arguments &&
             each.num_gpus == launch.num_gpus;
    });
    if (!known) {
      launches.push_back(std::move(launch));
    }
  }
  return launches;
}

}  // namespace

bool has_training_argument(const std::vector<std::string>& words) {
  return std::ranges::any_of(words, is_training_argument);
}

std::map<std::string, std::string> slurm_variables(const std::string& script,
                                                   const std::string& file) {
  std::vector<std::string> comments;
  std::size_t start = 0;
  while (start < script.size()) {
    const std::size_t end = std::min(script.find('\n', start), script.size());
    if (script.compare(start, 8, "#SBATCH ") == 0) {
      comments.push_back(script.substr(start, end - start));
    }
    start = end + 1;
  }
  const PlacedWords job = {.words = batch_words(comments), .place = file + ": #SBATCH"};
  std::map<std::string, std::string> variables;
  const auto put = [&](const char* name, std::int64_t count) {
    if (count > 0) {
      variables[name] = std::to_string(count);
    }
  };
  const std::int64_t nodes = option_count(job, kNodes).count;
  const std::int64_t tasks = option_count(job, kTasks).count;
  const std::int64_t per_node = option_count(job, kTasksPerNode).count;
  put("SLURM_NNODES", nodes);
  put("SLURM_JOB_NUM_NODES", nodes);
  put("SLURM_NTASKS_PER_NODE", per_node);
  if (nodes > 1 && per_node > 0) {
    variables["SLURM_TASKS_PER_NODE"] =
        std::to_string(per_node) + "(x" + std::to_string(nodes) + ")";
  } else {
    put("SLURM_TASKS_PER_NODE", per_node);
  }
  put("SLURM_NTASKS", tasks > 0 ? tasks : nodes * per_node);
  put("SLURM_GPUS_PER_NODE", option_count(job, {"--gpus-per-node"}).count);
  put("SLURM_GPUS_ON_NODE", option_count(job, kGpusPerNode).count);
  return variables;
}

std::vector<Launch> trainings_of(const ShellScript& script, std::int64_t node_gpus) {
  std::vector<Launch> all = launches_of(script, node_gpus);
  std::vector<Launch> trainings;
  for (const Launch& launch : all) {
    if (has_training_argument(launch.arguments)) {
      trainings.push_back(launch);
    }
  }
  return trainings.empty() ? all : trainings;
}

}  // namespace shardplan
